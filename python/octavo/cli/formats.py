"""``octavo formats``: lists the formats, or explains one."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli._app import JsonOption

if TYPE_CHECKING:
    from rich.console import Console

    from octavo.tensors.formats import Format

PLOT_WIDTH = 76
EXAMPLE = [0.02, -0.3, 0.7, 1.0, -1.5, 3.1416, 10.0]


def run(
    text: Annotated[str | None, typer.Argument(metavar="FORMAT", help="A format to explain, such as mxfp4.")] = None,
    json: JsonOption = False,
) -> None:
    """List the number formats, or explain one.

    Of one format it shows bits, scale, range, every value where they are few, a plot of its grid, and some numbers
    rounded. The grammar has more than the list: any width, block and bias (FORMATS.md, section 1).

    \b
    Examples:
      octavo formats
      octavo formats mxfp4
      octavo formats int4:g32
      octavo formats e4m3b11 --json
    """
    from octavo.cli._format_words import as_dict
    from octavo.display.console import print_json
    from octavo.tensors.formats import Format, formats

    if text is None:
        listed = formats()
        print_json([as_dict(fmt) for fmt in listed]) if json else _print_list(listed)
    else:
        fmt = Format(text)
        print_json(as_dict(fmt)) if json else _explain(fmt)


def _print_list(listed: list[Format]) -> None:
    """Print one line a format under a line a family, columns aligned over the whole list."""
    from octavo.cli._format_words import FAMILIES, describe, range_text, scale_text, smallest_text
    from octavo.display.console import console

    header = ("format", "bits", "range", "smallest", "scale", "element")
    rows = [
        (str(fmt), f"{fmt.bits:.5g}", range_text(fmt), smallest_text(fmt), scale_text(fmt), describe(fmt))
        for fmt in listed
    ]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(cells: tuple[str, ...]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return ("  " + "  ".join(padded)).rstrip()

    out = console()
    out.print(line(header), style="bold")
    for family, members in groupby(zip(listed, rows, strict=True), key=lambda pair: pair[0].family):
        out.print()
        out.print(FAMILIES[family], style="bold")
        for _, row in members:
            out.print(line(row))
    out.print()
    out.print("bits: per element, scales included, in long rows. range, smallest positive value: at scale 1.")
    out.print("The grammar has more: other widths, blocks and biases. Explained one by one: octavo formats FORMAT")
    out.print("GGUF files bring q2_k, q3_k, q4_k, q5_k and q6_k along, in which nothing is encoded.")


def _explain(fmt: Format) -> None:
    from octavo.cli._format_words import FAMILIES, FEW, describe, list_values, number, range_text, scale_text
    from octavo.display.console import console
    from octavo.report.plots import linear_grid, log_grid

    values = list_values(fmt)
    out = console()
    out.print(f"{fmt} - {FAMILIES[fmt.family]}", style="bold")
    out.print()
    facts = {
        "element": describe(fmt),
        "bits per element": f"{fmt.bits:.6g}"
        + (f" ({fmt.width} and the share of the scale)" if fmt.bits != fmt.width else ""),
        "scale": scale_text(fmt),
        "range": range_text(fmt) + _at_scale(fmt),
        "smallest positive": number(fmt.smallest) + _at_scale(fmt),
        "values": f"{len(values):,}" if values else f"2^{fmt.width}",
    }
    for name, fact in facts.items():
        out.print(f"  {name:18} {fact}")
    if values and len(values) <= FEW:
        out.print()
        out.print("every value" + _at_scale(fmt))
        _print_values(out, [number(value) for value in values])
    if values:
        for title, lines in (
            ("linear", linear_grid(values, PLOT_WIDTH)),
            ("logarithmic, positive values", log_grid(values, PLOT_WIDTH)),
        ):
            out.print()
            out.print(f"where the values lie, {title}")
            for line in lines:
                out.print(f"  {line}")
    out.print()
    if fmt.core.instead is not None:
        out.print("example: octavo pack model.gguf -o model/ keeps tensors of this type as they are")
    else:
        _print_example(out, fmt)


def _at_scale(fmt: Format) -> str:
    return " times the scale" if fmt.scale_type else ""


def _print_values(out: Console, texts: list[str]) -> None:
    width = max(map(len, texts)) + 2
    per_line = max(1, (PLOT_WIDTH + 2) // width)
    for start in range(0, len(texts), per_line):
        out.print("".join(text.rjust(width) for text in texts[start : start + per_line]))


def _print_example(out: Console, fmt: Format) -> None:
    """Round a few numbers as one row."""
    import torch

    from octavo.ops.codec import quantize

    x = torch.tensor(EXAMPLE)
    rounded = quantize(x, fmt).tolist()
    together = " as one row" if fmt.scale_type else ""
    out.print(f"example: octavo.quantize(x, '{fmt}'){together}")
    for name, numbers in (("x", EXAMPLE), ("rounded", rounded)):
        out.print(f"  {name:8}" + "".join(f"{value:.5g}".rjust(10) for value in numbers))
