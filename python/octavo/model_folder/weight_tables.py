"""Tables about weights: formats compared, tensors packed, files inspected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from octavo.display.console import table
from octavo.display.numbers import decibels, finite, shape_text, size

if TYPE_CHECKING:
    from octavo.model_folder.pack_checkpoint import Comparison, TensorReport
    from octavo.tensors.container import TensorEntry


def comparison_table(compared: list[Comparison]) -> Table:
    """One row a format, in the order given."""
    columns = (">bits", ">size", ">of before", ">SQNR dB", ">max error", ">cosine", ">enc GB/s", ">dec GB/s")
    rows = table("format", *columns)
    for entry in compared:
        rows.add_row(
            str(entry.format),
            f"{entry.bits_per_element:.4g}",
            size(entry.nbytes),
            f"{100 * entry.nbytes / max(entry.nbytes_before, 1):.1f}%",
            decibels(entry.errors.sqnr_db),
            f"{entry.errors.largest:.3g}",
            f"{entry.errors.cosine:.6f}",
            f"{entry.encode_gbps:.2f}",
            f"{entry.decode_gbps:.2f}",
        )
    return rows


def comparison_dict(entry: Comparison) -> dict[str, Any]:
    """Return one row for programs, times left out: the rest is the same in every run."""
    return {
        "format": str(entry.format),
        "elements": entry.elements,
        "bits_per_element": entry.bits_per_element,
        "bytes": entry.nbytes,
        "bytes_before": entry.nbytes_before,
        "sqnr_db": finite(entry.errors.sqnr_db),
        "largest_error": entry.errors.largest,
        "cosine": entry.errors.cosine,
    }


def packing_table(reports: list[TensorReport]) -> Table:
    """One row a tensor that is packed; those kept share the last row. Sparse codes add their two columns."""
    sparse = any(report.zeros is not None for report in reports)
    more = (">zeros", ">dense bytes") if sparse else ()
    rows = table("tensor", "format", ">shape", ">bytes", ">bits", ">SQNR dB", *more)
    kept = [report for report in reports if report.format is None]
    for report in reports:
        if report.format is not None:
            sqnr = "" if report.errors is None else decibels(report.errors.sqnr_db)
            rows.add_row(
                report.name,
                report.format,
                shape_text(report.shape),
                f"{report.nbytes:,}",
                f"{report.bits_per_element:.4g}",
                sqnr,
                *(_zeros(report.zeros, report.dense_nbytes) if sparse else ()),
            )
    if kept:
        tensors = "tensor" if len(kept) == 1 else "tensors"
        rows.add_row(f"({len(kept)} {tensors} kept as before)", "", "", f"{sum(r.nbytes for r in kept):,}", "", "")
    return rows


def packing_dict(report: TensorReport) -> dict[str, Any]:
    """Return one row for programs: a kept tensor has no format, and a reason."""
    return {
        "name": report.name,
        "shape": list(report.shape),
        "dtype": report.dtype,
        "format": report.format,
        "reason": report.reason,
        "bytes_before": report.nbytes_before,
        "bytes": report.nbytes,
        "sqnr_db": None if report.errors is None else finite(report.errors.sqnr_db),
        **({} if report.zeros is None else {"zeros": report.zeros, "dense_bytes": report.dense_nbytes}),
    }


def entry_table(entries: list[TensorEntry]) -> Table:
    """One row a tensor of a file. Sparse codes add their two columns."""
    sparse = any(entry.nonzero is not None for entry in entries)
    rows = table(
        "tensor", "format", ">shape", "dtype", ">bytes", ">bits", *((">zeros", ">dense bytes") if sparse else ())
    )
    for entry in entries:
        rows.add_row(
            entry.name,
            entry.format or "-",
            shape_text(entry.shape),
            entry.dtype,
            f"{entry.nbytes:,}",
            f"{entry.bits_per_element:.4g}",
            *(_zeros(entry.zeros, entry.dense_nbytes) if sparse else ()),
        )
    return rows


def _zeros(share: float | None, dense_nbytes: int | None) -> tuple[str, str]:
    """Return the share of zeros and the dense bytes of sparse codes as they are shown."""
    return ("" if share is None else f"{share:.1%}", "" if dense_nbytes is None else f"{dense_nbytes:,}")


def entry_dict(entry: TensorEntry) -> dict[str, Any]:
    """Return one row for programs."""
    return {
        "name": entry.name,
        "kind": entry.kind,
        "format": entry.format,
        "shape": list(entry.shape),
        "dtype": entry.dtype,
        "bytes": entry.nbytes,
        "bits_per_element": entry.bits_per_element,
        **({} if entry.nonzero is None else {"zeros": entry.zeros, "dense_bytes": entry.dense_nbytes}),
    }
