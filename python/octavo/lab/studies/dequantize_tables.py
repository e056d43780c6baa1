"""Table, notes and picture of the study of decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from octavo.display.console import table
from octavo.lab.studies.dequantize_speed import crossing
from octavo.report.study_plots import Rows, figure, line_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LINES = ("-", "--", ":", "-.")


def device_names(rows: Rows) -> list[str]:
    """Return the devices that were measured."""
    return [name.removesuffix("_gb_s") for name in rows[0] if name.endswith("_gb_s")]


def dequantize_table(rows: Rows) -> Table:
    """Return a row for each group and size."""
    devices = device_names(rows)
    columns = [column for name in devices for column in (f">{name} us", f">{name} GB/s")]
    pair = len(devices) == 2
    shown = table("format", ">elements", *columns, *([">speed-up"] if pair else []), ">unlike mase-cuda")
    for row in rows:
        rates = [cell for d in devices for cell in (f"{1e6 * row[f'{d}_s']:,.1f}", f"{row[f'{d}_gb_s']:.2f}")]
        ratio = [f"{row[f'{devices[0]}_s'] / row[f'{devices[1]}_s']:.2f}"] if pair else []
        bits = "" if row["unlike_mase"] is None else f"{row['unlike_mase']:,}"
        shown.add_row(row["format"], f"{row['elements']:,}", *rates, *ratio, bits)
    return shown


def dequantize_notes(rows: Rows) -> list[str]:
    """Return what the columns mean, and from which size on the second device is the faster one."""
    devices = device_names(rows)
    notes = [
        "us: latency of one call, until its result is there, median of the rounds; a GPU's inputs are in its memory.",
        "GB/s: bytes of codes and scales read once, and of values written once.",
        "unlike mase-cuda: elements with other bits than its rule for MXINT8 gives in bfloat16.",
    ]
    if len(devices) != 2:
        return [*notes, f"measured on {devices[0]} alone: --device cpu,cuda finds where a GPU becomes the faster one"]
    for format, own in _by_format(rows).items():
        point = crossing_of(own, devices)
        if point is None:
            notes.append(f"{format}: {devices[0]} is faster at the largest size")
        else:
            size, estimate = point
            notes.append(f"{format}: {devices[1]} is faster from about {estimate:,.0f} elements (measured at {size:,})")
    return notes


def crossing_of(rows: Rows, devices: list[str]) -> tuple[int, float] | None:
    """Return the crossing point of rows of one format; see :func:`octavo.lab.studies.dequantize_speed.crossing`."""
    sizes = [row["elements"] for row in rows]
    first, second = ([row[f"{name}_s"] for row in rows] for name in devices)
    return crossing(sizes, first, second)


def dequantize_figure(rows: Rows, *, title: str) -> Figure:
    """Draw latency and GB/s against the size: a colour a format, a line style a device, dots at crossing points."""
    drawing, panels = figure(2)
    devices = device_names(rows)
    for position, (format, own) in enumerate(_by_format(rows).items()):
        looks, sizes = line_style(position), [row["elements"] for row in own]
        for name, line in zip(devices, _LINES, strict=False):
            label = f"{format}, {name}"
            panels[0].plot(sizes, [1e6 * row[f"{name}_s"] for row in own], label=label, linestyle=line, **looks)
            panels[1].plot(sizes, [row[f"{name}_gb_s"] for row in own], label=label, linestyle=line, **looks)
        point = crossing_of(own, devices) if len(devices) == 2 else None
        if point is not None:
            panels[0].axvline(point[1], color=looks["color"], alpha=0.4, linewidth=1)
    for panel, label in zip(panels, ("latency (us)", "GB/s"), strict=True):
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set(xlabel="elements", ylabel=label)
    panels[0].legend(fontsize="small")
    drawing.suptitle(title)
    return drawing


def _by_format(rows: Rows) -> dict[str, list[dict[str, Any]]]:
    return {name: [row for row in rows if row["format"] == name] for name in dict.fromkeys(r["format"] for r in rows)}
