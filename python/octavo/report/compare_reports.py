"""Compares reports: values side by side with paired differences, formats layer by layer, fronts in one picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.errors import DataError
from octavo.report.compression_report import SCHEMA, VERSION
from octavo.report.html_page import html_page
from octavo.report.value_texts import verdict_sentence

_NORMAL = 1.959964  # 97.5 % quantile
_MOST = 6  # runs; charts have as many marks and colours


def compare_reports(reports: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return runs, rows, layers that differ, fronts and notes as plain values; differences are to the first report.

    ``reports``: names, and reports as :func:`octavo.report.compression_report.check_report` accepts them. A difference
    is paired where both reports hold values of the same examples; else its interval follows from those of both, as if
    they were independent. Raises DataError for fewer than two reports, and more than six.
    """
    if not 2 <= len(reports) <= _MOST:
        raise DataError(f"{len(reports)} reports; accepted are 2 to {_MOST}")
    names = _unique([name for name, _ in reports])
    contents = [report for _, report in reports]
    rows = [*_rows(contents, "metrics"), *_rows(contents, "costs")]
    return {
        "schema": SCHEMA, "version": VERSION, "kind": "comparison",
        "runs": [
            {"name": name, "model": report["model"]["name"], "sentence": verdict_sentence(report),
             "created": report.get("created"), "commands": report.get("commands") or []}
            for name, report in zip(names, contents, strict=True)
        ],
        "rows": rows, **_layers(contents), "front": _front(names, contents), "notes": _notes(names, contents, rows),
    }  # fmt: skip


def comparison_page(comparison: Mapping[str, Any]) -> str:
    """Return the page of what :func:`compare_reports` found: one file of HTML, nothing loaded from elsewhere."""
    return html_page("comparison_page.html", " against ".join(run["name"] for run in comparison["runs"]), comparison)


def _unique(names: Sequence[str]) -> list[str]:
    return [name if names.count(name) == 1 else f"{name} ({at + 1})" for at, name in enumerate(names)]


def _rows(reports: Sequence[Mapping[str, Any]], part: str) -> list[dict[str, Any]]:
    by_report = [{(row["key"], row["unit"]): row for row in report.get(part) or ()} for report in reports]
    table = []
    for key in dict.fromkeys(key for rows in by_report for key in rows):
        sides = [rows.get(key) for rows in by_report]
        known = next(row for row in sides if row)
        first = sides[0]
        table.append({
            **{name: known.get(name) for name in ("key", "label", "unit", "better", "interval", "split")},
            "before": known.get("before"),
            "values": [row.get("after") if row else None for row in sides],
            "differences": [None, *(_difference(first, row) for row in sides[1:])],
        })  # fmt: skip
    return table


def _difference(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return second minus first with its 95 % interval, where one can be had."""
    if not first or not second or not first.get("after") or not second.get("after"):
        return None
    one, two = first.get("examples"), second.get("examples")
    if one and two and one["id"] == two["id"] and len(one["after"]) == len(two["after"]) > 1:
        each = [after - before for before, after in zip(one["after"], two["after"], strict=True)]
        mean = math.fsum(each) / len(each)
        half = _NORMAL * math.sqrt(math.fsum((it - mean) ** 2 for it in each) / (len(each) - 1) / len(each))
        return {"value": mean, "low": mean - half, "high": mean + half, "paired": True, "examples": len(each)}
    value = second["after"]["value"] - first["after"]["value"]
    halves = [_half(row["after"]) for row in (first, second)]
    if None in halves or first.get("interval") == "IQR":
        return {"value": value, "paired": False}
    half = math.hypot(*(it for it in halves if it is not None))
    return {"value": value, "low": value - half, "high": value + half, "paired": False}


def _half(value: Mapping[str, Any]) -> float | None:
    low, high = value.get("low"), value.get("high")
    return None if low is None or high is None else (high - low) / 2


def _layers(reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    by_report = [{row["path"]: row for row in report.get("layers") or ()} for report in reports]
    if not all(by_report):
        return {"layers": None, "equal_layers": 0}
    rows, equal = [], 0
    for path in dict.fromkeys(path for rows_ in by_report for path in rows_):
        sides = [rows_.get(path) for rows_ in by_report]
        if len({_told(row) for row in sides}) == 1:
            equal += 1
            continue
        rows.append({"path": path, "formats": [_told(row) for row in sides],
                     "bits": [row["bits"] if row else None for row in sides],
                     "bytes": [row["bytes"] if row else None for row in sides]})  # fmt: skip
    return {"layers": rows, "equal_layers": equal}


def _told(row: Mapping[str, Any] | None) -> str | None:
    if row is None:
        return None
    name = row.get("format") or row.get("dtype") or "float"
    return f"{name} x {row['input']}" if row.get("input") else str(name)


def _front(names: Sequence[str], reports: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the fronts as one, each point with its run; the metric is drawn where all runs have the same."""
    fronts = [(name, report["front"]) for name, report in zip(names, reports, strict=True) if report.get("front")]
    if not fronts:
        return None
    metrics = [front.get("metric") for _, front in fronts]
    losses = [front.get("loss") for _, front in fronts]
    same = all(it and it["label"] == (metrics[0] or {}).get("label") for it in metrics)
    alike = all(it == losses[0] for it in losses)
    points = [
        {key: it for key, it in {**point, "run": name}.items() if alike or key not in ("predicted", "measured_loss")}
        for name, front in fronts
        for point in front["points"]
        if point["series"] == "front"
    ]
    return {"metric": metrics[0] if same else None, "loss": losses[0], "runs": [name for name, _ in fronts],
            "points": points}  # fmt: skip


def _notes(names: Sequence[str], reports: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what makes the reports hard to compare."""
    notes = []
    first = reports[0]["model"]
    for name, report in zip(names[1:], reports[1:], strict=True):
        other = report["model"]
        if (other["name"], other["parameters"]) != (first["name"], first["parameters"]):
            notes.append(
                f"{name} is of another model: {other['name']}, {other['parameters']:,} parameters, not "
                f"{first['name']}, {first['parameters']:,}"
            )
        if (report.get("machine") or {}) != (reports[0].get("machine") or {}):
            notes.append(f"{name} was measured on another machine or with other threads: its times are not comparable")
    unpaired = [
        row["label"]
        for row in rows
        if any(it and not it["paired"] and it.get("low") is not None for it in row["differences"])
    ]
    if unpaired:
        notes.append(
            f"not paired, since values of the same examples are not in both reports: {', '.join(unpaired)}; the "
            "intervals of their differences are wider than paired ones"
        )
    return notes
