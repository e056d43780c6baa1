"""``octavo lab expand``: run an exported model on expressions, lines or files."""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from collections.abc import Callable

# At least one line had no answer; 2 is every other error.
EXIT_FAILED = 1
# What begins with a minus and has a product or parentheses is an expression, not an option.
_NEGATIVE = re.compile(r"-[^-].*[(*]", re.DOTALL)
# Marks such an expression; no argument of a process can hold it.
_MARK = "\0"


class Command(TyperCommand):
    """The command; expressions may begin with a minus."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments."""
        return super().parse_args(ctx, [_MARK + arg if _NEGATIVE.match(arg) else arg for arg in args])


def run(
    expressions: Annotated[
        list[str] | None, typer.Argument(metavar="[EXPRESSION]...", help="What to expand.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="IN", help="A file of lines.  [default: standard input]")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="OUT", help="Where answers go.  [default: standard output]")
    ] = None,
    beam: Annotated[int, typer.Option(metavar="N", help="Hypotheses kept a line; 1 is greedy.")] = 1,
    format: Annotated[
        str, typer.Option(metavar="FORM", help="text: the answer; pairs: line=answer; json: an object a line.")
    ] = "text",
    precision: Annotated[
        str, typer.Option(metavar="NAME", help="float, bfloat16, or integer: int8, greedy only.")
    ] = "float",
    route: Annotated[
        str, typer.Option(metavar="NAME", help="auto, general, or fused: kernels for the shipped architecture.")
    ] = "auto",
    threads: Annotated[int | None, typer.Option(metavar="N", help="[default: all cores]", show_default=False)] = None,
    device: Annotated[
        str, typer.Option(metavar="NAME", help="cpu; cuda or cuda:N: a GPU, with torch, greedy, float or bfloat16.")
    ] = "cpu",
    model: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="An exported model.  [default: the one that comes along]")
    ] = None,
) -> None:
    """Expand polynomials with a trained model.

    It runs natively and without torch, or on a GPU.

    Lines come from the arguments, from a file, or from standard input when there is neither; answers leave in the same
    order, one a line. A line that cannot be answered is named on stderr with the reason, leaves an empty line, and
    makes the exit code 1. Any number of lines streams through in bounded memory.

    \b
    Examples:
      octavo lab expand '(7-3*z)*(2*z+5)'
      octavo lab expand '(x+1)*(x-2)' '-5*s*(4-s)' --format pairs
      octavo lab expand -f lines.txt -o answers.txt --beam 4
      generate | octavo lab expand --precision integer --format json
      octavo lab expand -f lines.txt -o answers.txt --device cuda
    """
    if expressions and file is not None:
        raise typer.BadParameter("give either EXPRESSION or --file")
    from octavo.lab.polynomials.native_engine import Engine
    from octavo.storage.files import whole

    engine = Engine.load(model, precision=precision, route=route, threads=threads, device=device)  # type: ignore[arg-type] # load checks it
    options: dict[str, Any] = {"beam": beam, "format": format, "failed": _failed}
    with ExitStack() as stack:
        if file is not None:
            options["progress"] = _bar(stack, file, out)
        if file is not None and out is not None:
            summary = engine.expand_file(file, out, **options)
        else:
            reader = stack.enter_context(file.open("rb")) if file is not None else _lines(expressions)
            writer = sys.stdout.buffer if out is None else stack.enter_context(whole(out))
            summary = engine.expand_stream(reader, writer, **options)
    if summary.failed:
        raise typer.Exit(EXIT_FAILED)


def _lines(expressions: list[str] | None) -> IO[bytes]:
    if not expressions:
        return sys.stdin.buffer
    texts = [expression.removeprefix(_MARK) for expression in expressions]
    for text in texts:
        if "\n" in text:
            raise typer.BadParameter(f"{text!r} has a line feed; give its lines one by one")
    return BytesIO("".join(f"{text}\n" for text in texts).encode(errors="surrogateescape"))


def _failed(number: int, reason: str) -> None:
    typer.echo(f"line {number}: {reason}", err=True)


def _bar(stack: ExitStack, file: Path, out: Path | None) -> Callable[[int, int], None] | None:
    """Show a bar over the bytes of a file, on a terminal that no answers go to."""
    if not sys.stderr.isatty() or (out is None and sys.stdout.isatty()):
        return None
    from octavo.display.progress import progress

    advance = stack.enter_context(progress("expanding", file.stat().st_size))
    before = 0

    def show(lines: int, nbytes: int) -> None:
        nonlocal before
        advance(f"{lines:,} lines", nbytes - before)
        before = nbytes

    return show
