"""Table, notes and picture of the study of memory on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from octavo.display.console import table
from octavo.lab.studies.device_memory import PARTS
from octavo.report.study_plots import COLOURS, Rows, figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def device_memory_table(rows: Rows) -> Table:
    """Return bytes by part, a column a model; the peak also against float32, and how the answers agree."""
    shown = table("MB (1e6 bytes)", *(f">{row['model']}" for row in rows))
    for part in PARTS:
        shown.add_row(part, *(f"{row[part] / 1e6:.2f}" for row in rows))
    shown.add_row("peak", *(f"{row['peak'] / 1e6:.2f}" for row in rows))
    shown.add_row("peak to fp32", "", *(f"{change(row, rows[0]):+.1%}" for row in rows[1:]))
    shown.add_row("reserved", *(f"{row['reserved'] / 1e6:.2f}" for row in rows))
    shown.add_row("same labels", "", *(f"{row['same_labels']:,} of {row['texts']:,}" for row in rows[1:]))
    shown.add_row("same top three", "", *(f"{row['same_top']:,} of {row['texts']:,}" for row in rows[1:]))
    shown.add_row("largest difference", "", *(f"{row['difference']:.1e}" for row in rows[1:]))
    return shown


def change(row: dict[str, float], base: dict[str, float]) -> float:
    """Return the change of the peak, as a share of that of ``base``."""
    return row["peak"] / base["peak"] - 1


def device_memory_notes(rows: Rows) -> list[str]:
    """Return what the parts are, and why the peak falls by less than the weights do."""
    notes = [
        "weights: packed codes; scales: of packed weights; float: what stayed float; allocator: rounding of blocks.",
        "activations: most bytes alive between layers; temporaries: what the peak has beyond, taken inside a layer.",
        "The parts add up to the peak. reserved: what the allocator held for it, its cache included.",
        "same labels, same top three: highest score, and the three highest in order, as of fp32.",
    ]
    for row in rows[1:]:
        model = sum(row[part] for part in ("weights", "scales", "float"))
        stayed = row["float"] / model
        notes.append(
            f"{row['model']}: the model is {model / rows[0]['float'] - 1:+.1%}, the peak {change(row, rows[0]):+.1%}; "
            f"{stayed:.0%} of its bytes stayed float"
        )
    return notes


def device_memory_figure(rows: Rows, *, metric: str, title: str) -> Figure:
    """Draw the parts of the peak, stacked; a bar a model."""
    drawing, (panel,) = figure()
    names, below = [row["model"] for row in rows], [0.0] * len(rows)
    for position, part in enumerate(PARTS):
        heights = [row[part] / 1e6 for row in rows]
        panel.bar(names, heights, bottom=below, label=part, color=COLOURS[position], edgecolor="white")
        below = [low + height for low, height in zip(below, heights, strict=True)]
    panel.set(xlabel="model", ylabel="peak memory (MB, 1e6 bytes)", title=title)
    panel.legend(fontsize="small")
    return drawing
