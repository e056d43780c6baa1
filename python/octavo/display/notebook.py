"""Reports in notebooks: their table as HTML, with the lines that ``print`` shows below it."""

from __future__ import annotations

from abc import abstractmethod
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


class InNotebooks:
    """A report with a table, which Jupyter shows as HTML."""

    @abstractmethod
    def to_table(self) -> Table:
        """Return the table.

        Returns:
            A table of rich.
        """

    def _repr_html_(self) -> str:
        from octavo.display.console import plain_text

        rows = self.to_table()
        text, grid = str(self), plain_text(rows)
        below = text.replace(grid, "", 1).strip() if grid in text else ""
        return html_table(rows) + (f"<pre>{escape(below)}</pre>" if below else "")


def html_table(rows: Table) -> str:
    """Return a table as HTML, numbers aligned as in the terminal."""
    cells = [[str(cell) for cell in column.cells] for column in rows.columns]
    styles = [f' style="text-align: {column.justify}"' for column in rows.columns]
    head = "".join(
        f"<th{style}>{escape(str(column.header))}</th>" for column, style in zip(rows.columns, styles, strict=True)
    )
    body = "".join(
        f"<tr>{''.join(f'<td{style}>{escape(cell)}</td>' for cell, style in zip(row, styles, strict=True))}</tr>"
        for row in zip(*cells, strict=True)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
