"""Tables of what graphs tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.display.console import table
from octavo.display.numbers import size

if TYPE_CHECKING:
    from rich.table import Table

    from octavo.graph.costs import Costs


def count(value: int | None) -> str:
    """Return a number with commas; ``missing`` where there is none."""
    return "missing" if value is None else f"{value:,}"


def nbytes(value: int | None) -> str:
    """Return bytes as people read them; ``missing`` where they are not known."""
    return "missing" if value is None else size(value)


def costs_table(costs: Costs, **sizes: int) -> Table:
    """Return the totals of costs, at sizes."""
    totals = costs.at(**sizes)
    made = table("cost", ">value")
    made.add_row("multiply-adds", count(totals.macs))
    made.add_row("elementwise operations", count(totals.elementwise))
    made.add_row("FLOPs", count(totals.flops))
    made.add_row("bit operations", count(totals.bitops))
    made.add_row("weights", nbytes(totals.weight_bytes))
    if costs.bits_of_quantized is not None:
        made.add_row("bits of quantized weights", f"{costs.bits_of_quantized:.4g}")
    if costs.bits_of_all is not None:
        made.add_row("bits of all weights", f"{costs.bits_of_all:.4g}")
    made.add_row("traffic", nbytes(totals.traffic_bytes))
    made.add_row("peak memory", nbytes(totals.peak_bytes))
    for op, times in costs.unknown.items():
        made.add_row(f"unknown: {op}", count(times))
    return made
