"""Pictures of the choice of formats: a heat map of sensitivities, and accuracy before and after training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.report.study_plots import COLOURS, Rows, figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEGIBLE = 60  # groups whose numbers are written into the map


def sensitivity_figure(rows: Rows, *, title: str) -> Figure:
    """Draw the loss of each format in each group as colours on a logarithmic scale, its number inside."""
    import numpy as np

    drawing, (panel,) = figure()  # first: it says which package is missing
    from matplotlib.colors import LogNorm

    groups, formats = (list(dict.fromkeys(row[key] for row in rows)) for key in ("group", "format"))
    values = np.full((len(groups), len(formats)), np.nan)
    for row in rows:
        if row["loss"]:  # 0 has no logarithm, None no value
            values[groups.index(row["group"]), formats.index(row["format"])] = row["loss"]
    drawing.set_size_inches(3.4 + 0.75 * len(formats), 1.6 + 0.24 * len(groups))
    panel.grid(visible=False)
    known = values[np.isfinite(values)]
    norm = LogNorm(known.min(), max(known.max(), known.min() * 1.01)) if known.size else None
    drawn = panel.imshow(values, aspect="auto", cmap="cividis", norm=norm)
    panel.set_xticks(range(len(formats)), formats, rotation=30, ha="right")
    panel.set_yticks(range(len(groups)), groups, fontsize="small")
    panel.set(title=title, xlabel="format", ylabel="group of layers")
    if known.size:
        drawing.colorbar(
            drawn, ax=panel, label=f"loss ({'nats' if rows[0]['measure'] == 'kl' else rows[0]['measure']})"
        )
        if len(groups) <= _LEGIBLE:
            _write(panel, values, norm)
    return drawing


def _write(panel: Any, values: Any, norm: Any) -> None:
    for (row, column), value in _finite(values):
        ink = "white" if norm(value) < 0.55 else "black"
        panel.text(column, row, f"{value:.1e}", ha="center", va="center", fontsize=6, color=ink)


def _finite(values: Any) -> list[tuple[tuple[int, int], float]]:
    import numpy as np

    return [((int(row), int(column)), float(values[row, column])) for row, column in np.argwhere(np.isfinite(values))]


def combined_figure(rows: Rows, *, metric: str, title: str) -> Figure:
    """Draw the accuracy of each model before (hollow) and after training, with 95 % intervals."""
    names = list(dict.fromkeys(row["model"] for row in rows))
    drawing, (panel,) = figure()
    for tuned, shift, face, label in ((False, 0.14, "white", "as made"), (True, -0.14, COLOURS[0], "after training")):
        chosen = [row for row in rows if row["tuned"] is tuned]
        panel.errorbar(
            [100 * row["accuracy"] for row in chosen],
            [-names.index(row["model"]) + shift for row in chosen],
            xerr=[100 * (row["half_interval_95"] or 0.0) for row in chosen],
            label=label, linestyle="", marker="o", color=COLOURS[0], markerfacecolor=face, capsize=2,
        )  # fmt: skip
    panel.axvline(100 * rows[0]["accuracy"], color="black", linewidth=1, linestyle=":", label="fp32")
    panel.set_yticks([-at for at in range(len(names))], names)
    panel.set(xlabel=f"{metric} on test texts (%)", title=title)
    panel.legend(fontsize="small")
    return drawing
