"""The report of a compressed model as plain data, ``report.json``: its fields, what is refused, reading and writing.

A *value* is ``{"value", "low", "high", "count", "seeds"}``, all but the first optional. Units are ``share`` (0 to 1),
``nats``, ``bits``, ``B`` (bytes), ``s``, ``dB``, and none for plain numbers such as a perplexity.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from octavo.errors import DataError
from octavo.report.compression_page import compression_page
from octavo.report.plain_fields import NUMBER, check_fields
from octavo.storage import files
from octavo.storage.arguments import checks_arguments
from octavo.storage.reading import RECORD_BYTES, read_json, shown

SCHEMA, VERSION = "octavo.report", 1
JSON, HTML = "report.json", "report.html"
UNITS = ("share", "nats", "bits", "B", "s", "dB", "")
_FLOAT = (*NUMBER, None)

_VALUE = {"value": NUMBER, "low?": NUMBER, "high?": NUMBER, "count?": int, "seeds?": int}
_ROW = {
    "key": str, "label": str, "unit": str, "better": str, "before?": _VALUE, "after?": _VALUE, "difference?": _VALUE,
    "interval?": str, "others?": {"*": _VALUE}, "split?": str, "told?": str, "missing?": str,
    "examples?": {"id": str, "before?": [NUMBER], "after": [NUMBER]},
}  # fmt: skip
_POINT = {
    "series": str, "label": str, "bytes": NUMBER, "bits": NUMBER, "predicted?": NUMBER, "measured?": _VALUE,
    "measured_loss?": NUMBER, "chosen?": bool, "knee?": bool, "trained?": bool, "told?": str,
}  # fmt: skip
PARTS: dict[str, Any] = {
    "metrics": [_ROW],
    "costs": [_ROW],
    "front": {
        "metric?": {"label": str, "unit": str, "better": str, "before?": NUMBER},
        "loss?": {"label": str, "unit": str},
        "points": [_POINT],
    },
    "prediction": {
        "unit": str, "label": str, "measured?": {"label": str, "unit": str},
        "pairs": [{"label": str, "predicted": NUMBER, "measured": NUMBER}],
        "rank_correlation?": NUMBER, "method?": str, "told?": str,
        "chosen?": {"label": str, "predicted": NUMBER, "measured": NUMBER},
        "quality?": {"label": str, "rank_correlation": NUMBER},
    },
    "sensitivity": {
        "measure": str, "unit": str, "samples?": int, "tokens?": int, "formats": [str],
        "groups": [{"name": str, "paths?": [str], "parameters?": int}], "loss": [[_FLOAT]], "chosen?": [(str, None)],
        "fast?": {"measure": str, "loss?": [[_FLOAT]], "rank_correlation?": NUMBER},
    },
    "layers": [{
        "path": str, "group?": str, "class?": str, "shape": [int], "parameters": int, "format?": str, "dtype?": str,
        "input?": str, "bits": NUMBER, "bytes": NUMBER, "bytes_before?": NUMBER, "sqnr_db?": NUMBER,
        "sensitivity?": NUMBER, "sparsity?": NUMBER, "rule?": str, "told?": str,
    }],
    "histograms": [{
        "path": str, "format": str, "why?": str, "edges": [NUMBER], "counts": [NUMBER], "grid": [NUMBER],
        "grid_told?": str, "sqnr_db?": NUMBER,
    }],
    "rejected": [{"what": str, "why": str, "bytes?": NUMBER, "bits?": NUMBER, "measured?": _VALUE}],
    "machine": {"*": (str, int, float, bool, None)},
    "versions": {"*": str},
    "seeds": {"*": (int, str)},
    "commands": [str],
    "data": [{"split": str, "source": str, "count?": int, "reads?": int, "digest?": str}],
    "effort": [{"what": str, "value": NUMBER, "unit": str}],
}  # fmt: skip
"""The parts of a report. One that is not there has its reason in ``missing``."""

_REPORT: dict[str, Any] = {
    "kind": str,
    "created?": str,
    "model": {
        "name": str, "class?": str, "task?": str, "parameters": int, "quantized_parameters?": int, "source?": str,
    },
    "verdict": {
        "goal?": str, "limit?": NUMBER, "unit?": str, "reached?": NUMBER, "met?": bool, "measures?": str,
        "sentence?": str,
    },
    "notes?": [str],
    "changed?": {
        "count": int, "worse": int, "better": int,
        "rows": [{"text": str, "before": str, "after": str, "expected?": str}],
    },
    "missing?": {"*": str},
    **{f"{part}?": fields for part, fields in PARTS.items()},
}  # fmt: skip


@checks_arguments
def check_report(report: object, what: str = "report") -> dict[str, Any]:
    """Return a report that is whole: every part is there or named in ``missing`` with its reason.

    Keys that are not known are kept and not looked at.

    Args:
        report: plain values.
        what: name of the report in errors.

    Returns:
        The report.

    Raises:
        DataError: names the field, the value and what is accepted; also for another program's file and another version.
    """
    if not isinstance(report, dict) or report.get("schema") != SCHEMA:
        schema = shown(report.get("schema")) if isinstance(report, dict) and "schema" in report else "missing"
        raise DataError(
            f"{what}: no report of octavo compress, its schema is {schema}; accepted is '{SCHEMA}', which version "
            f"{VERSION} of reports has: run octavo compress again"
        )
    if report.get("version") != VERSION:
        raise DataError(f"{what}: version {shown(report.get('version'))} of reports; accepted is {VERSION}")
    check_fields(report, _REPORT, what)
    if report["kind"] != "compression":
        raise DataError(f"{what}.kind is {shown(report['kind'])}; accepted is 'compression'")
    missing = report.get("missing") or {}
    for part in PARTS:
        if report.get(part) is None and not missing.get(part):
            raise DataError(f"{what}.{part} is missing; give it, or its reason in missing.{part}")
    for part in ("metrics", "costs"):
        for number, row in enumerate(report.get(part) or ()):
            _check_row(row, f"{what}.{part}[{number}]")
    if report.get("sensitivity") is not None:
        _check_matrix(report["sensitivity"], f"{what}.sensitivity")
    for number, histogram in enumerate(report.get("histograms") or ()):
        _check_histogram(histogram, f"{what}.histograms[{number}]")
    return report


def _check_row(row: Mapping[str, Any], label: str) -> None:
    if row["unit"] not in UNITS:
        raise DataError(f"{label}.unit is {shown(row['unit'])}; accepted are {', '.join(map(repr, UNITS))}")
    if row["better"] not in ("higher", "lower"):
        raise DataError(f"{label}.better is {shown(row['better'])}; accepted are 'higher' and 'lower'")
    for side in ("before", "after"):
        if row.get(side) is None and not row.get("missing"):
            raise DataError(f"{label}.{side} is missing; give it, or its reason in {label}.missing")
    examples = row.get("examples")
    if examples and examples.get("before") is not None and len(examples["before"]) != len(examples["after"]):
        counts = f"{len(examples['before'])} before and {len(examples['after'])} after"
        raise DataError(f"{label}.examples: {counts}; accepted are as many of both")


def _check_matrix(sensitivity: Mapping[str, Any], label: str) -> None:
    groups, formats, chosen = sensitivity["groups"], sensitivity["formats"], sensitivity.get("chosen")
    matrices = {"loss": sensitivity["loss"], "fast.loss": (sensitivity.get("fast") or {}).get("loss")}
    for name, matrix in matrices.items():
        if matrix is None:
            continue
        if len(matrix) != len(groups) or any(len(row) != len(formats) for row in matrix):
            raise DataError(
                f"{label}.{name}: {len(matrix)} rows; accepted is a row for each of {len(groups)} groups, with "
                f"a number for each of {len(formats)} formats"
            )
    if chosen is not None and len(chosen) != len(groups):
        raise DataError(f"{label}.chosen: {len(chosen)} formats; accepted is one for each of {len(groups)} groups")


def _check_histogram(histogram: Mapping[str, Any], label: str) -> None:
    edges, counts = histogram["edges"], histogram["counts"]
    rises = all(low < high for low, high in pairwise(edges))
    if not counts or len(edges) != len(counts) + 1 or not rises or min(counts) < 0:
        raise DataError(
            f"{label}: {len(counts)} counts and {len(edges)} edges; "
            "accepted are counts from 0 and one edge more, rising"
        )


@checks_arguments
def read_report(path: Path | str) -> dict[str, Any]:
    """Return the report of a folder or file.

    Args:
        path: a folder with ``report.json``, or the file.

    Returns:
        The report.

    Raises:
        DataError: as :func:`check_report`.
        OSError: as the system gives it.
    """
    place = Path(path)
    file = place / JSON if place.is_dir() else place
    if file.suffix == ".html":
        raise DataError(f"{file}: a page for people; give {JSON} beside it, or the folder")
    return check_report(read_json(file, RECORD_BYTES, error=DataError), str(file))


@checks_arguments
def write_report(folder: Path | str, report: Mapping[str, Any]) -> list[Path]:
    """Write ``report.json`` and the page ``report.html`` into a folder, made if it is missing.

    Args:
        folder: folder to write to.
        report: plain values.

    Returns:
        The paths of both files.

    Raises:
        DataError: as :func:`check_report`.
        OSError: as the system gives it.
    """
    checked = check_report({"schema": SCHEMA, "version": VERSION, "kind": "compression", **report})
    page = compression_page(checked)
    Path(folder).mkdir(parents=True, exist_ok=True)
    files.write(Path(folder) / JSON, json.dumps(checked, indent=1, allow_nan=False) + "\n")
    files.write(Path(folder) / HTML, page)
    return [Path(folder) / JSON, Path(folder) / HTML]
