"""Draws the explanation of a recipe as text, as HTML and for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console

from octavo.display.console import PLAIN_WIDTH, print_table, printable, table
from octavo.display.numbers import shape_text, size
from octavo.recipe.expert_families import expert_family
from octavo.recipe.explanation_rows import Row, Unreached

if TYPE_CHECKING:
    from octavo.recipe.explanation_rows import Explained

R = TypeVar("R", Row, Unreached)

COLUMNS = ("layer", "role", ">shape", "format", ">bits", "scales", "rule", "overrode")


def print_explanation(out: Console, explained: Explained) -> None:
    """Print who got what, then what no rule reached, then the totals; first of all why there is no model."""
    if explained.without_model is not None:
        out.print(explained.without_model)
        out.print()
    if explained.rows:
        reached = table(*COLUMNS)
        for row in _folded(explained.rows, "module"):
            reached.add_row(*_cells(row))
        print_table(out, reached)
        out.print()
    if explained.unreached:
        missed = table("no rule reached", ">shape", "dtype", "why")
        for tensor in _folded(explained.unreached, "name"):
            missed.add_row(tensor.name, shape_text(tensor.shape), tensor.dtype, tensor.reason)
        print_table(out, missed)
        out.print()
    for label, text in _totals(explained):
        out.print(f"{label:16} {text}")


def explanation_text(explained: Explained) -> str:
    """Return the tables as plain text, never cut."""
    written = StringIO()
    print_explanation(
        Console(
            file=written,
            width=PLAIN_WIDTH,
            color_system=None,
            force_terminal=False,
            markup=False,
            emoji=False,
            highlight=False,
        ),
        explained,
    )
    return printable(written.getvalue().rstrip("\n"))


def explanation_html(explained: Explained) -> str:
    """Return the tables as HTML, for notebooks."""
    reached = _html(COLUMNS, [_cells(row) for row in _folded(explained.rows, "module")])
    missed = [(t.name, shape_text(t.shape), t.dtype, t.reason) for t in _folded(explained.unreached, "name")]
    parts = [reached if explained.rows else "", _html(("no rule reached", ">shape", "dtype", "why"), missed)]
    return "\n".join([*(part for part in parts if part), _html(("total", ""), _totals(explained))])


def _folded(rows: Sequence[R], name: str) -> list[R]:
    """Return rows in their order, with one for experts of a mixture that got the same: ``experts.*.down_proj (8)``.

    ``name``: the field that tells a layer or a tensor.
    """
    families = [expert_family(getattr(row, name)) for row in rows]
    shared = [row if family is None else _named(row, name, family) for row, family in zip(rows, families, strict=True)]
    counts = Counter(one for one, family in zip(shared, families, strict=True) if family is not None)
    folded: list[R] = []
    for row, one, family in zip(rows, shared, families, strict=True):
        count = counts[one]
        if family is None or count == 1:
            folded.append(row)
        elif count:
            folded.append(_named(one, name, f"{family} ({count})"))
            counts[one] = 0
    return folded


def _named(row: R, field: str, name: str) -> R:
    changes: dict[str, Any] = {field: name}
    return replace(row, **changes)


def _cells(row: Row) -> tuple[str, ...]:
    rule = row.rule if row.tied_to is None else f"{row.rule} (tied to {row.tied_to})"
    return (
        row.module,
        row.role,
        "" if row.shape is None else shape_text(row.shape),
        row.format or "kept",
        "" if row.bits is None else f"{row.bits:.4g}",
        row.calibration or "",
        rule,
        "; ".join(row.overrode),
    )


def _totals(explained: Explained) -> list[tuple[str, str]]:
    totals = explained.totals
    share = 100 * totals.quantized / max(totals.parameters, 1)
    lines = [
        ("parameters", f"{totals.parameters:,}, {share:.1f}% quantized; what is shared counts once"),
        ("bytes", f"{size(totals.bytes_before)} -> {size(totals.bytes_after)}"),
    ]
    if totals.bits_of_quantized is not None:
        lines.append(
            ("average bits", f"{totals.bits_of_quantized:.4g} of the quantized, {totals.bits_of_all:.4g} of all")
        )
    if totals.inputs or totals.outputs:
        lines.append(("activations", f"{totals.inputs} inputs and {totals.outputs} outputs quantized"))
    lines += [("tied", sentence) for sentence in explained.tied]
    if uneven := [row for row in explained.rows if row.last_group]:
        shown = ", ".join(f"{row.module} {row.role}: {row.format}, last {row.last_group}" for row in uneven[:3])
        more = f" and {len(uneven) - 3} more" if len(uneven) > 3 else ""
        lines.append(("uneven groups", f"rows end in a shorter group: {shown}{more}"))
    return lines


def _html(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(column.removeprefix('>'))}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
