"""Pictures of studies: colours of Okabe and Ito, which people with any colour vision tell apart, and a marker each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.errors import PackageError
from octavo.storage import files

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D1F")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")

Rows = Sequence[dict[str, Any]]


def figure(panels: int = 1) -> tuple[Figure, list[Axes]]:
    """Return a figure and its panels, side by side. Raises PackageError where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise PackageError(
            "no picture: matplotlib is not installed; pip install matplotlib, and the same command draws it"
        ) from None
    drawing = Figure(figsize=(6.4 * panels, 4.6), layout="constrained")
    axes = [drawing.add_subplot(1, panels, number + 1) for number in range(panels)]
    for panel in axes:
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    return drawing, axes


def save(drawing: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and SVG and return their paths."""
    paths = [folder / f"{name}.{kind}" for kind in ("png", "svg")]
    for path in paths:
        with files.whole(path) as file:
            drawing.savefig(file, format=path.suffix[1:], dpi=150)
    return paths


def width_figure(rows: Rows, *, metric: str, title: str) -> Figure:
    """Draw accuracy against width: dashes before training, lines after it, bars for the 95 % interval."""
    drawing, (panel,) = figure()
    for position, family in enumerate(_families(rows)):
        style = line_style(position)
        for method, line, face in (("ptq", "--", "white"), ("qat", "-", style["color"])):
            chosen = sorted(
                (r for r in rows if (r["family"], r["method"]) == (family, method)), key=lambda r: r["width"]
            )
            if chosen:
                _errorbar(
                    panel, chosen, "width", f"{family} {method.upper()}", linestyle=line, markerfacecolor=face, **style
                )
    _fp32_line(panel, rows)
    widths = sorted({row["width"] for row in rows if row["family"] != "fp32"})
    panel.set_xscale("log", base=2)
    panel.set_xticks(widths, [str(width) for width in widths])
    panel.minorticks_off()
    panel.set(xlabel="width of an element (bits)", ylabel=f"{metric} on test texts (%)", title=title)
    panel.legend(fontsize="small")
    return drawing


def format_figure(rows: Rows, *, metric: str, title: str) -> Figure:
    """Draw accuracy against average bits: one panel for weights alone, one for weights and inputs."""
    modes = [mode for mode in ("weights", "both") if any(r["mode"] == mode and r["family"] != "fp32" for r in rows)]
    drawing, panels = figure(max(1, len(modes)))
    names = {"weights": "weights quantized", "both": "weights and inputs quantized"}
    for panel, mode in zip(panels, modes, strict=False):
        for position, family in enumerate(_families(rows)):
            chosen = sorted(
                (r for r in rows if (r["family"], r["mode"]) == (family, mode)), key=lambda r: r["weight_bits"]
            )
            if chosen:
                _errorbar(panel, chosen, "weight_bits", family, linestyle="-", **line_style(position))
        _fp32_line(panel, rows)
        panel.set(
            xlabel="average weight bits, scales included", ylabel=f"{metric} on test texts (%)", title=names[mode]
        )
    panels[-1].legend(fontsize="small", ncols=2)
    drawing.suptitle(title)
    return drawing


def memory_figure(rows: Rows, *, metric: str, title: str) -> Figure:
    """Draw counted bytes by component, stacked, and bytes measured in a process; a bar a model."""
    drawing, panels = figure(2)
    names = list(dict.fromkeys(row["model"] for row in rows))
    for panel, kind, label in zip(
        panels, ("counted", "measured"), ("weights, counted", "process, measured"), strict=True
    ):
        parts = [p for p in dict.fromkeys(r["what"] for r in rows if r["kind"] == kind) if p != "all weights"]
        below = [0.0] * len(names)
        for position, part in enumerate(parts):
            heights = [
                sum(r["bytes"] for r in rows if (r["model"], r["what"], r["kind"]) == (n, part, kind)) / 1e6
                for n in names
            ]
            if kind == "counted":
                panel.bar(names, heights, bottom=below, label=part, color=COLOURS[position % 4], edgecolor="white")
                below = [low + height for low, height in zip(below, heights, strict=True)]
            else:
                wide = 0.8 / len(parts)
                places = [number + wide * (position - (len(parts) - 1) / 2) for number in range(len(names))]
                # Colours that mean no component.
                panel.bar(places, heights, wide, label=part, color=COLOURS[position + 4], edgecolor="white")
        panel.set_xticks(range(len(names)), names)
        panel.set(xlabel="model", ylabel="memory (MB, 1e6 bytes)", title=label)
        panel.legend(fontsize="small")
    drawing.suptitle(title)
    return drawing


def lora_figure(rows: Rows, *, metric: str, title: str) -> Figure:
    """Draw accuracy against trained parameters, and peak memory against time; a line a method and base."""
    drawing, (accuracy, costs) = figure(2)
    for position, (method, base) in enumerate(dict.fromkeys((row["method"], row["base"]) for row in rows)):
        chosen = [row for row in rows if (row["method"], row["base"]) == (method, base)]
        label, style = f"{method} on {base}", {"linestyle": "-", **line_style(position)}
        _errorbar(accuracy, chosen, "trained", label, **style)
        times, peaks = [1e3 * row["step_s"] for row in chosen], [row["peak_bytes"] / 1e6 for row in chosen]
        costs.plot(times, peaks, label=label, markersize=5, linewidth=1.3, **style)
    accuracy.set_xscale("log")
    accuracy.tick_params(axis="x", which="minor", labelbottom=False)
    accuracy.set(xlabel="trained parameters", ylabel=f"{metric} on test texts (%)", title="accuracy")
    costs.set(xlabel="time of a step (ms)", ylabel="peak memory (MB, 1e6 bytes)", title="costs of a step")
    accuracy.legend(fontsize="small")
    drawing.suptitle(title)
    return drawing


def prune_figure(rows: Rows, *, metric: str, title: str) -> Figure:
    """Draw accuracy against sparsity, a panel a granularity (dashes: as pruned), and time against sparsity."""
    cut = [row for row in rows if row["sparsity"]]
    kinds = list(dict.fromkeys(row["granularity"] for row in cut))
    drawing, panels = figure(len(kinds) + 1)
    ways = list(dict.fromkeys((row["criterion"], row["scope"]) for row in cut))
    for panel, kind in zip(panels, kinds, strict=False):
        for position, (criterion, scope) in enumerate(ways):
            style = line_style(position)
            for tuned, line, face in ((False, "--", "white"), (True, "-", style["color"])):
                key = (kind, criterion, scope, tuned)
                chosen = [r for r in cut if (r["granularity"], r["criterion"], r["scope"], r["tuned"]) == key]
                if chosen:
                    label = f"{criterion} {scope}{', tuned' if tuned else ''}"
                    _errorbar(panel, chosen, "sparsity", label, linestyle=line, markerfacecolor=face, **style)
        panel.axhline(100 * rows[0]["accuracy"], color="black", linewidth=1, linestyle=":", label="dense")
        panel.set(xlabel="sparsity", ylabel=f"{metric} on test texts (%)", title=kind)
        panel.legend(fontsize="small")
    times = panels[-1]
    for position, kind in enumerate(kinds):
        for fact, face in (("forward_s", None), ("packed_s", "white")):
            timed = [r for r in cut if r["granularity"] == kind and not r["tuned"] and r.get(fact) is not None]
            across, style = [row["sparsity"] for row in timed], line_style(position)
            label = f"{kind}, {'float' if fact == 'forward_s' else 'packed'}"
            times.plot(
                across, [1e3 * row[fact] for row in timed], label=label, linestyle="", markersize=5,
                markerfacecolor=face or style["color"], **style,
            )  # fmt: skip
    times.set(xlabel="sparsity", ylabel="time of eight texts (ms)", title="measured time")
    times.set_ylim(bottom=0)
    times.legend(fontsize="small")
    drawing.suptitle(title)
    return drawing


def _families(rows: Rows) -> list[str]:
    return [family for family in dict.fromkeys(row["family"] for row in rows) if family != "fp32"]


def line_style(position: int) -> dict[str, Any]:
    """Return colour and marker of the line at a position."""
    # Colour and marker repeat with different periods, so that no two of eighty families look the same.
    return {"color": COLOURS[position % len(COLOURS)], "marker": _MARKERS[position % len(_MARKERS)]}


def _errorbar(panel: Axes, rows: Rows, across: str, label: str, **style: Any) -> None:
    panel.errorbar(
        [row[across] for row in rows],
        [100 * row["accuracy"] for row in rows],
        yerr=[100 * (row["half_interval_95"] or 0.0) for row in rows],
        label=label,
        capsize=2,
        markersize=5,
        linewidth=1.3,
        **style,
    )


def _fp32_line(panel: Axes, rows: Rows) -> None:
    for row in rows:
        if row["family"] == "fp32":
            panel.axhline(100 * row["accuracy"], color="black", linewidth=1, linestyle=":", label="fp32")
