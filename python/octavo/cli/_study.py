"""Shared by the commands of ``octavo study``: parsing of lists, saving and showing of results."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.errors import Interrupted, SettingError

if TYPE_CHECKING:
    from rich.table import Table


def show(
    study: str,
    rows: list[dict[str, Any]],
    facts: dict[str, Any],
    folder: Path,
    *,
    table: Callable[[Any], Table],
    notes: Callable[[Any], list[str]],
    draw: Callable[[Any], Any],
    json: bool,
) -> None:
    """Write CSV, JSON and the picture into ``folder``, and print the table, or JSON.

    ``facts``: what the rows are about; the command line is added to them.
    """
    from octavo.display.console import console, print_json, print_table
    from octavo.errors import PackageError
    from octavo.report import study_plots
    from octavo.studies import result_files as studies

    facts = {**facts, "command": ["octavo", *sys.argv[1:]]}
    studies.save(folder, rows, facts)
    written = [studies.CSV, studies.JSON, "study.jsonl"]
    try:
        written += [path.name for path in study_plots.save(draw(rows), folder, study)]
    except PackageError as missing:
        console(stderr=True).print(str(missing))
    if json:
        print_json({**facts, "rows": rows, "folder": str(folder)})
        return
    shown = console()
    print_table(shown, table(rows))
    shown.print()
    for line in notes(rows):
        shown.print(line)
    shown.print(f"written to {folder}: {', '.join(written)}")


@contextmanager
def resumable(folder: Path) -> Iterator[None]:
    """Say of a study that a signal ends that the same command goes on. Raises Interrupted."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as end:
        number = signal.SIGINT if isinstance(end, KeyboardInterrupt) else signal.SIGTERM
        if isinstance(end, SystemExit) and end.code != 128 + number:
            raise
        raise Interrupted(f"interrupted: the same command goes on from {folder}", number) from None


def words(text: str) -> list[str]:
    """Return words separated by commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(option: str, text: str, what: str = "width") -> tuple[int, ...]:
    """Read whole numbers separated by commas. Raises SettingError naming the option and the word."""
    found = []
    for word in words(text):
        if not (word.isascii() and word.isdigit() and len(word) < 7):
            raise SettingError(f"{option}: {word!r} is no {what}; accepted are whole numbers separated by commas")
        found.append(int(word))
    return tuple(found)
