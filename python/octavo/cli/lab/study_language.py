"""``octavo lab study language``: what every technique of a language model is worth, from the lines of benches."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated, Any

import typer

from octavo.cli._app import JsonOption

PAGE, JSON = "language.html", "language.json"


def language(
    benches: Annotated[
        list[Path], typer.Argument(metavar="BENCH...", help="Folders of octavo lab bench gpt, or files of its lines.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FOLDER", help="Where the page goes.  [default: the first BENCH's folder]"),
    ] = None,
    title: Annotated[str, typer.Option(metavar="TEXT", help="Of the page.")] = "Techniques of language models",
    json: JsonOption = False,
) -> None:
    """Draw the results of `octavo lab bench gpt` as one page.

    The page shows the gain of every technique, and loads nothing from elsewhere.

    The page has a row an arm: its loss and its difference from the baseline at every budget, both with intervals; what
    was expected; the verdict in words; and the command line that repeats it. A second table goes through the techniques
    of the reports: what was claimed, what was measured at fixed tokens and at fixed time, negative results included,
    and for what these benches did not measure, the line that does. Curves, bounds on likelihoods, which
    compare with no exact loss, and whether the scale is sound follow. Nothing is run: `octavo lab bench gpt` does that.

    \b
    Examples:
      octavo lab study language octavo-bench-gpt
      octavo lab study language first/ second/results.jsonl -o page
    """
    from octavo.display.console import console, print_json, print_table, table
    from octavo.lab.language.language_study import read_benches, study_table
    from octavo.report.html_page import language_page
    from octavo.storage import files

    found = study_table(read_benches(benches), title=title)
    first = benches[0]
    folder = out or (first if first.is_dir() else first.parent)
    folder.mkdir(parents=True, exist_ok=True)
    files.write(folder / JSON, jsonlib.dumps(found, indent=1, allow_nan=False) + "\n")
    files.write(folder / PAGE, language_page(found))
    if json:
        print_json(found)
        return
    stdout = console()
    for arm in found["arms"]:
        stdout.print(f"{arm['arm']}: {arm['sentence']}", soft_wrap=True)
    for bound in found["bounds"]:
        stdout.print(f"{bound['arm']}: {bound['sentence']}", soft_wrap=True)
    rows = table("list", "technique", "claimed or proposed", "arm", ">fixed tokens", ">fixed time")
    before = ""
    for claim in found["claims"]:
        cells = [_measured(claim, name) for name in ("at_tokens", "at_time")]
        begins = f"{claim['list']} {claim['technique']}" != before
        before = f"{claim['list']} {claim['technique']}"
        facts = [claim[name] if begins else "" for name in ("list", "technique", "claimed")]
        rows.add_row(*facts, claim["arm"] or claim["command"], *cells)
    if found["claims"]:
        print_table(stdout, rows)
    for times in found["times"]:
        for arm in times["arms"]:
            reached = f"{arm['reached']} of {arm['seeds']} runs reach {times['loss']:.4f} nats a token"
            stdout.print(f"{arm['arm']}: {reached}", soft_wrap=True)
    stdout.print(f"written: {folder / PAGE}, {folder / JSON}")


def _measured(claim: dict[str, Any], name: str) -> str:
    """Return the loss and the difference of a cell, as a text."""
    from octavo.lab.language.claims import UNMEASURED

    cell = claim.get(name)
    if cell is None:
        if not claim["arm"] or name != "at_tokens":
            return ""
        return "not measured" if claim["verdict"] == UNMEASURED else "a bound alone"
    if "loss" not in cell:
        return str(cell["verdict"])
    if "difference" not in cell:
        return f"{cell['loss']:.4f}"
    return f"{cell['loss']:.4f} ({cell['difference']:+.4f}, {cell['verdict']})"
