"""The console: a terminal gets colour and its width; a file or pipe gets plain text that is never cut."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    pass

PLAIN_WIDTH = 100_000  # wider than any row, so that nothing is wrapped or cut


def printable(text: str) -> str:
    """Return ``text`` with control characters, but for newlines, as escapes: names in a file may hold anything."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n " else c.encode("unicode_escape").decode() for c in text)


class _Console(Console):
    """A console that texts cannot steer."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, with control characters of plain texts escaped."""
        super().print(*(printable(item) if isinstance(item, str) else item for item in objects), **options)


class _Table(Table):
    """A table whose cells cannot steer the terminal or break their row."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        """Add a row, with control characters of plain texts escaped."""
        safe = (printable(cell).replace("\n", "\\n") if isinstance(cell, str) else cell for cell in cells)
        super().add_row(*safe, **options)


def console(*, stderr: bool = False) -> Console:
    """Return a console for stdout (results) or stderr (progress, warnings and errors)."""
    stream = sys.stderr if stderr else sys.stdout
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")  # a terminal without Unicode shows '?', not a traceback
    plain: dict[str, Any] = {} if stream.isatty() else {"width": PLAIN_WIDTH, "color_system": None}
    return _Console(file=stream, markup=False, emoji=False, highlight=False, soft_wrap=False, **plain)


def table(*columns: str) -> Table:
    """Return an empty table. A column named ``>bytes`` is aligned right; ``name`` left, and folded where it is long."""
    grid = _Table(header_style="bold", box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        right = column.startswith(">")
        grid.add_column(column.removeprefix(">"), justify="right" if right else "left", no_wrap=right, overflow="fold")
    return grid


def print_table(out: Console, rows: Table) -> None:
    """Print a table; off a terminal without the spaces that pad the last column."""
    if out.is_terminal:
        out.print(rows)
        return
    with out.capture() as captured:
        out.print(rows)
    out.print("\n".join(line.rstrip() for line in captured.get().split("\n")).rstrip("\n"))


def plain_text(rows: Table) -> str:
    """Return a table as text, without colour and the spaces that pad the last column."""
    written = io.StringIO()
    out = _Console(file=written, width=PLAIN_WIDTH, color_system=None, markup=False, emoji=False, highlight=False)
    print_table(out, rows)
    return written.getvalue().rstrip("\n")


def print_json(value: object, *, one_line: bool = False) -> None:
    """Print a value as JSON for programs. ``one_line``: one of several, which a program may wait for."""
    print(json.dumps(value, indent=None if one_line else 2, allow_nan=False), flush=one_line)
