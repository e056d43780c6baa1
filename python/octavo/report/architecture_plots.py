"""Pictures of searches: the best value so far against distinct builds, and values by the choices of each axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from octavo.report.study_plots import COLOURS, figure, line_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[dict[str, Any]]
_LINES = ("-", "--", ":", "-.")


def best_so_far_figure(
    rows: Rows, *, lines: str, panels: str, metric: str, title: str, titles: Mapping[str, str] | None = None
) -> Figure:
    """Draw ``best_so_far`` against ``builds``: a panel for each value of ``panels``, a line for each of ``lines``.

    All panels have the same axes. Where there are several, a panel before them has all lines: colours are those of
    ``lines``, and dashes those of ``panels``. ``titles``: titles of panels.

    Searches that differ in ``sampler_seed`` alone are one line, their mean, in a band from the least to the largest.
    """
    kinds = list(dict.fromkeys(row[panels] for row in rows))
    names = list(dict.fromkeys(row[lines] for row in rows))
    labels = {kind: (titles or {}).get(kind, str(kind)) for kind in kinds}
    is_joined = len(kinds) > 1
    drawing, axes = figure(len(kinds) + is_joined)
    if is_joined:
        for number, kind in enumerate(kinds):
            for position, name in enumerate(names):
                chosen = [row for row in rows if (row[panels], row[lines]) == (kind, name)]
                if chosen:
                    _band(axes[0], chosen, f"{name}, {labels[kind]}", position, dashes=_LINES[number % len(_LINES)])
        axes[0].set(xlabel="distinct builds", ylabel=f"best {metric} so far (%)", title="all of them")
        axes[0].legend(fontsize="x-small")
    for panel, kind in zip(axes[is_joined:], kinds, strict=True):
        if panel is not axes[0]:
            panel.sharex(axes[0])
            panel.sharey(axes[0])
        for position, name in enumerate(names):
            chosen = [row for row in rows if (row[panels], row[lines]) == (kind, name)]
            if chosen:
                _band(panel, chosen, name, position)
        panel.set(xlabel="distinct builds", ylabel=f"best {metric} so far (%)", title=labels[kind])
    axes[-1].legend(fontsize="small")
    drawing.suptitle(title)
    return drawing


def axis_figure(rows: Rows, axes_of: Sequence[str], *, metric: str, title: str) -> Figure:
    """Draw boxes of ``accuracy`` for each choice of each axis; every build counts once. Whiskers reach all values."""
    builds = list({row["identity"]: row for row in rows if row["accuracy"] is not None}.values())
    drawing, panels = figure(len(axes_of))
    drawing.set_figwidth(max(3.2 * len(axes_of), 6.4))
    for position, (panel, axis) in enumerate(zip(panels, axes_of, strict=True)):
        choices = sorted({row[axis] for row in builds if axis in row}, key=lambda choice: (str(type(choice)), choice))
        values = [[100 * row["accuracy"] for row in builds if row.get(axis) == choice] for choice in choices]
        drawn = panel.boxplot(values, whis=(0, 100), patch_artist=True, widths=0.6)
        for box in drawn["boxes"]:
            box.set(facecolor=COLOURS[position % len(COLOURS)], alpha=0.5)
        for line in drawn["medians"]:
            line.set(color="black")
        panel.set_xticks(range(1, len(choices) + 1), [str(choice) for choice in choices])
        panel.set(xlabel=axis, ylabel=f"{metric} (%)" if position == 0 else "")
    drawing.suptitle(title)
    return drawing


def epoch_figure(rows: Rows, *, metric: str, title: str) -> Figure:
    """Draw accuracy against epochs, with bars for the 95 % interval; a line a measure."""
    drawing, (panel,) = figure()
    for position, name in enumerate(("accuracy", "compressed", "tuned")):
        chosen = [row for row in rows if name in row]
        if chosen:
            panel.errorbar(
                [row["epochs"] for row in chosen], [100 * row[name] for row in chosen],
                yerr=[100 * (row[f"{name}_half_interval_95"] or 0.0) for row in chosen],
                label=name, capsize=2, markersize=5, linewidth=1.3, linestyle="-", **line_style(position),
            )  # fmt: skip
    panel.set(xlabel="epochs", ylabel=f"{metric} (%)")
    panel.legend(fontsize="small")
    drawing.suptitle(title)
    return drawing


def _band(panel: Axes, rows: Rows, name: str, position: int, *, dashes: str | None = None) -> None:
    values_at: dict[int, list[float]] = {}
    for row in rows:
        if row["best_so_far"] is not None:
            values_at.setdefault(row["builds"], []).append(100 * row["best_so_far"])
    across = sorted(values_at)
    means = [sum(values_at[number]) / len(values_at[number]) for number in across]
    style = line_style(position)
    panel.plot(
        across, means, label=name, linestyle=dashes or _LINES[position // len(COLOURS) % len(_LINES)], linewidth=1.3,
        markersize=4, markevery=max(1, len(across) // 8), **style,
    )  # fmt: skip
    if any(len(values) > 1 for values in values_at.values()):
        lows, highs = [min(values_at[n]) for n in across], [max(values_at[n]) for n in across]
        panel.fill_between(across, lows, highs, color=style["color"], alpha=0.12, linewidth=0)
