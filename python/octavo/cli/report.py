"""``octavo report``: draws the report of a compression anew, or compares several."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli._app import JsonOption
from octavo.storage import files

if TYPE_CHECKING:
    from rich.table import Table


def run(
    reports: Annotated[
        list[Path], typer.Argument(metavar="RUN [RUN]...", help="Folders that octavo compress wrote, or report.json.")
    ],
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where the page goes.  [default: report.html of one RUN; none of several]"),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show the report of a compression, or compare several.

    Of one RUN it prints the verdict and the table, and draws report.html anew from report.json. Of several it prints
    every value side by side, with differences to the first, and the layers whose formats differ. --html writes a page
    that draws their fronts as one. Differences are paired where the reports hold values of the same examples, which
    makes their interval narrower.

    \b
    Examples:
      octavo report small/
      octavo report small/ --html verdict.html
      octavo report small/ smaller/ --html both.html
      octavo report small/report.json smaller/report.json --json
    """
    from octavo.display.console import console, print_json, print_table
    from octavo.report.compare_reports import compare_reports, comparison_page
    from octavo.report.compression_page import compression_page
    from octavo.report.compression_report import HTML, read_report
    from octavo.report.value_texts import verdict_sentence

    found = [(_name(path), read_report(path)) for path in reports]
    stdout = console()
    if len(found) > 1:
        compared = compare_reports(found)
        if html is not None:
            files.write(html, comparison_page(compared))
        if json:
            print_json(compared)
            return
        print_table(stdout, _compared_table(compared))
        _tell_layers(compared, stdout)
        for note in compared["notes"]:
            stdout.print(note)
    else:
        _, report = found[0]
        folder = reports[0] if reports[0].is_dir() else reports[0].parent
        html = html or folder / HTML
        files.write(html, compression_page(report))
        if json:
            print_json(report)
            return
        stdout.print(verdict_sentence(report))
        stdout.print()
        print_table(stdout, _report_table(report))
    if html is not None:
        stdout.print()
        stdout.print(f"written to {html}")


def _name(path: Path) -> str:
    return (path if path.is_dir() else path.resolve().parent).resolve().name or str(path)


def _report_table(report: Mapping[str, Any]) -> Table:
    """Return before and after, a row a value."""
    from octavo.display.console import table
    from octavo.report.value_texts import row_difference

    made = table("", ">original", ">compressed", ">change")
    for row in [*(report.get("metrics") or ()), *(report.get("costs") or ())]:
        change = _change(row, row.get("before"), row.get("after"), row_difference(row))
        made.add_row(_label(row), _cell(row.get("before"), row), _cell(row.get("after"), row), change)
    return made


def _compared_table(compared: Mapping[str, Any]) -> Table:
    """Return the values of all runs, with differences to the first."""
    from octavo.display.console import table

    first, *others = (run["name"] for run in compared["runs"])
    made = table("", f">{first}", *(f">{word}" for name in others for word in (name, "change")))
    for row in compared["rows"]:
        cells = [_cell(row["values"][0], row)]
        for value, difference in zip(row["values"][1:], row["differences"][1:], strict=True):
            cells += [_cell(value, row), _change(row, row["values"][0], value, difference)]
        made.add_row(_label(row), *cells)
    return made


def _label(row: Mapping[str, Any]) -> str:
    """Return what a row is of: accuracies of two splits have one name."""
    return f"{row['label']}, {row['split']} data" if row.get("split") else str(row["label"])


def _tell_layers(compared: Mapping[str, Any], out: Any) -> None:
    if compared["layers"] is None:
        return
    out.print()
    out.print(f"formats differ in {len(compared['layers'])} tensors and agree in {compared['equal_layers']}")


def _cell(value: Mapping[str, Any] | None, row: Mapping[str, Any]) -> str:
    from octavo.report.value_texts import value_text

    return "" if not value else value_text(value["value"], "" if row["unit"] == "bits" else row["unit"])


def _change(
    row: Mapping[str, Any], before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, difference: Any
) -> str:
    """Return a factor for bytes, bits and times, else the difference with its interval."""
    from octavo.report.value_texts import difference_text

    if not before or not after or difference is None:
        return row.get("missing") or ""
    if row["unit"] in ("B", "s", "bits") and before["value"] > 0 and after["value"] > 0:
        return f"x {after['value'] / before['value']:.3g}"
    return difference_text(difference, row["unit"]).replace(" (95 % interval ", " (").replace("\N{MINUS SIGN}", "-")
