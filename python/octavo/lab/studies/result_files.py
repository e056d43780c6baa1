"""Files of a study's result: CSV, JSON, and a picture where matplotlib is installed."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from octavo.display.console import table
from octavo.storage import files

CSV, JSON = "results.csv", "results.json"
# Bytes below which what a process grew by says nothing about a model.
_MEASURABLE = 10_000_000

Rows = Sequence[dict[str, Any]]


def save(folder: Path, rows: Rows, facts: dict[str, Any]) -> None:
    """Write ``results.csv`` and ``results.json``; ``facts``: what the rows are about, for JSON."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    files.write(folder / CSV, text.getvalue())
    files.write(folder / JSON, json.dumps({**facts, "rows": list(rows)}, indent=2, allow_nan=False) + "\n")


def accuracy_cell(row: dict[str, Any]) -> str:
    """Return a mean with its 95 % interval, where several seeds give one."""
    half = row["half_interval_95"]
    return f"{row['accuracy']:.2%}" + ("" if half is None else f" ± {100 * half:.2f}")


def width_table(rows: Rows) -> Table:
    """Return accuracy by family and width, before and after training, beside each other."""
    trained = any(row["method"] == "qat" for row in rows)
    made = table("family", ">width", ">PTQ", ">to fp32", *((">QAT", ">to fp32") if trained else ()))
    pairs: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
    for row in rows:
        pairs.setdefault((row["family"], row["width"]), {})[row["method"]] = row
    for (family, width), found in pairs.items():
        cells = []
        for method in ("ptq", "qat") if trained else ("ptq",):
            best = found.get(method) or (found.get("fp32") if method == "ptq" else None)
            cells += ["", ""] if best is None else [accuracy_cell(best), _difference(best)]
        made.add_row(family, str(width), *cells)
    return made


def width_notes(rows: Rows) -> list[str]:
    """Return the notes of accuracies, and where all weights of layers round to 0."""
    notes = accuracy_notes(rows)
    for row in rows:
        if row.get("zero_layers"):
            whole = row["zero_layers"] == row["quantized_layers"]
            layers = f"all {row['quantized_layers']}" if whole else f"{row['zero_layers']} of {row['quantized_layers']}"
            after = "after training" if row["method"] == "qat" else "before training"
            share = "" if row.get("zero_share") is None else f", and {row['zero_share']:.2%} of all quantized weights"
            end = ": all texts have the same scores" if whole else share
            notes.append(f"{row['family']}, {row['width']} bits, {after}: all weights of {layers} layers are 0{end}")
    return notes


def format_table(rows: Rows) -> Table:
    """Return each family at its best: bits with scales, accuracy, and the configuration that was chosen."""
    made = table("family", ">width", ">weight bits", ">input bits", ">accuracy", ">to fp32", "chosen")
    for row in rows:
        bits = (f"{row['weight_bits']:.4g}", f"{row['input_bits']:.4g}")
        chosen = (row["recipe"] or "-").removeprefix("type:Linear ")
        made.add_row(row["family"], str(row["width"]), *bits, accuracy_cell(row), _difference(row), chosen)
    return made


def memory_table(rows: Rows) -> Table:
    """Return bytes by component, counted, and those of files and processes, measured; each as a share of fp32's."""
    names = list(dict.fromkeys(row["model"] for row in rows))
    made = table(
        "MB (1e6 bytes)", *(column for name in names for column in (f">{name}", *((">of fp32",) * (name != names[0]))))
    )
    held = {(row["model"], row["what"], row["kind"]): row["bytes"] for row in rows if row["kind"] != "answers"}
    for what, kind in dict.fromkeys((what, kind) for _, what, kind in held):
        base, cells = held[names[0], what, kind], []
        for name in names:
            count = held[name, what, kind]
            cells.append(f"{count / 1e6:.2f}")
            if name != names[0]:
                cells.append(f"{count / base:.1%}" if kind == "counted" or base >= _MEASURABLE else "")
        made.add_row(f"{what}, {kind}", *cells)
    return made


def memory_notes(rows: Rows) -> list[str]:
    """Return what the measured numbers mean, and how packed models answered."""
    packed = [row for row in rows if row["kind"] == "answers"]
    return [
        "loaded: what a fresh process grew by, after its imports, with the model; peak: while it answered, too.",
        "A model of few MB fits into memory that Python holds already, and seems to take none.",
        *(f"{row['model']}: {row['same']:,} of {row['texts']:,} answers as simulated{_top(row)}" for row in packed),
    ]


def _top(row: dict[str, Any]) -> str:
    return f", {row['same_top']:,} with the same three highest scores" if "same_top" in row else ""


def lora_table(rows: Rows) -> Table:
    """Return accuracy and costs of training, a row a variant."""
    made = table("method", "base", ">rank", ">accuracy", ">to full", ">trained", ">optimizer", ">peak", ">step")
    for row in rows:
        cells = (
            row["method"], row["base"], "" if row["rank"] is None else str(row["rank"]), accuracy_cell(row),
            "" if row is rows[0] else f"{row['difference_points']:+.2f}", f"{row['trained']:,}",
            f"{row['optimizer_bytes'] / 1e6:.2f} MB", f"{row['peak_bytes'] / 1e6:.1f} MB",
            f"{1e3 * row['step_s']:.1f} ms",
        )  # fmt: skip
        made.add_row(*cells)
    return made


def lora_notes(rows: Rows) -> list[str]:
    """Return what the columns mean."""
    return [
        f"{rows[0]['texts']:,} test texts; 'to full': points of percent to full fine-tuning of the float base.",
        "peak: model, optimizer and what torch's allocator gave out in a step; step: median of steps that take turns.",
    ]


def prune_table(rows: Rows) -> Table:
    """Return accuracy before and after fine-tuning, bytes and times, a row a cut."""
    tuned = any(row["tuned"] for row in rows)
    after = (">tuned", ">to dense") if tuned else ()
    made = table(
        "criterion", "granularity", "scope", ">sparsity", ">as pruned", ">to dense", *after, ">file", ">packed",
        ">time", ">packed",
    )  # fmt: skip
    pairs: dict[tuple[Any, ...], dict[bool, dict[str, Any]]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("criterion", "granularity", "scope", "sparsity", "recipe"))
        pairs.setdefault(key, {})[row["tuned"]] = row
    for (criterion, granularity, scope, sparsity, recipe), found in pairs.items():
        cells = []
        for is_tuned in (False, True) if tuned else (False,):
            own = found.get(is_tuned)
            cells += ["", ""] if own is None else [accuracy_cell(own), f"{own['difference_points']:+.2f}"]
        costs = found[False]
        sizes = (costs[name] for name in ("file_bytes", "packed_bytes"))
        bytes_ = ("" if size is None else f"{size / 1e6:.2f} MB" for size in sizes)
        times = ("" if costs[name] is None else f"{1e3 * costs[name]:.2f} ms" for name in ("forward_s", "packed_s"))
        plain = ("", "", "") if sparsity == 0 else (granularity, scope, f"{sparsity:g}")
        made.add_row(f"{criterion}{' quantized' if recipe else ''}", *plain, *cells, *bytes_, *times)
    return made


def prune_notes(rows: Rows) -> list[str]:
    """Return what the columns mean, and how far two models on the same texts can be told apart."""
    return [
        *accuracy_notes(rows),
        "file, time: of the float model; packed: with its Linear layers at 8 bits; time: of eight texts, in turns.",
        "Where whole rows, heads or neurons went, what reaches nothing is taken out of the model first.",
        "Zeros take the bytes and time of other weights, unless the columns say otherwise.",
    ]


def accuracy_notes(rows: Rows) -> list[str]:
    """Return how many texts an accuracy is of, and how far two models on the same texts can be told apart."""
    error = max((row["paired_error_points"] for row in rows), default=0.0)
    return [
        f"{rows[0]['texts']:,} test texts; they alone give differences a standard error of up to {error:.2f} points"
    ]


def _difference(row: dict[str, Any]) -> str:
    return "" if row["recipe"] is None else f"{row['difference_points']:+.2f}"
