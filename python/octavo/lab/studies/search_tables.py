"""Tables of the studies that choose formats: sensitivity by group and format, and the combined study."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from octavo.display.console import table
from octavo.lab.studies.format_sensitivity import agreement
from octavo.lab.studies.result_files import accuracy_cell, accuracy_notes

Rows = Sequence[dict[str, Any]]
_MEASURES = {
    "kl": "relative entropy of the outputs, in nats",
    "cosine": "1 - cosine of the outputs",
    "mse": "squared error of the outputs",
}


def sensitivity_table(rows: Rows) -> Table:
    """Return the loss, a row a group and a column a format."""
    formats = list(dict.fromkeys(row["format"] for row in rows))
    made = table("group", ">elements", *(f">{text}" for text in formats))
    held: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        held.setdefault(row["group"], {})[row["format"]] = row
    for group, found in held.items():
        cells = ("-" if found[text]["loss"] is None else f"{found[text]['loss']:.2e}" for text in formats)
        elements = next(iter(found.values()))["elements"]
        made.add_row(group, f"{elements:,}" if elements else "-", *cells)
    return made


def sensitivity_notes(rows: Rows) -> list[str]:
    """Return what the numbers are, and how well the estimate orders them."""
    told = [f"loss: {_MEASURES.get(rows[0]['measure'], rows[0]['measure'])}, one group in the format, the rest float."]
    correlation = agreement(rows)
    if correlation is not None:
        told.append(f"The estimate from one backward pass has a rank correlation of {correlation:.3f} with it.")
    return told


def combined_table(rows: Rows) -> Table:
    """Return accuracy before and after training, a row a model."""
    made = table("model", ">bits", ">accuracy", ">to fp32", ">after training", ">to fp32")
    pairs: dict[str, dict[bool, dict[str, Any]]] = {}
    for row in rows:
        pairs.setdefault(row["model"], {})[row["tuned"]] = row
    for name, found in pairs.items():
        cells = []
        for tuned in (False, True):
            own = found[tuned]
            cells += [accuracy_cell(own), f"{own['difference_points']:+.2f}"]
        made.add_row(name, f"{found[False]['bits']:.3g}", *cells)
    return made


def combined_notes(rows: Rows) -> list[str]:
    """Return the recipe that was found, and what the columns mean."""
    recipe = next(row["recipe"] for row in rows if row["recipe"] and row["criterion"] != "mase")
    return [
        *accuracy_notes(rows),
        "bits: of all parameters, scales included; zeros of pruning take the bits of other weights.",
        "after training: every model is trained as long, the float one too; masks and formats stay.",
        f"recipe: {recipe}",
    ]
