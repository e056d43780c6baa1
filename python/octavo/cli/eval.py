"""``octavo eval``: measures a model on lines from a file."""

from __future__ import annotations

import json as jsonlib
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli._app import JsonOption
from octavo.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.systems.polynomials.evaluate import Mistake

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Measure a model on data of your own.")


@app.callback()
def _eval() -> None:
    """Measure a model on data of your own."""


@app.command("polynomials")
def polynomials(
    data: Annotated[
        Path, typer.Option(metavar="FILE", help="Lines left=right, plain, .xz or .gz; a pipe is read, too.")
    ],
    model: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="An exported model.  [default: the one that comes along]")
    ] = None,
    beam: Annotated[int, typer.Option(metavar="N", help="Hypotheses kept a line; 1 is greedy.")] = 1,
    precision: Annotated[
        str, typer.Option(metavar="NAME", help="float, bfloat16, or integer: int8, greedy only.")
    ] = "float",
    threads: Annotated[int | None, typer.Option(metavar="N", help="[default: all cores]", show_default=False)] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="cpu; cuda or cuda:N: a GPU, with torch.")] = "cpu",
    mistakes: Annotated[int, typer.Option(metavar="N", help="Show the first N lines that were answered wrong.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write all of them, a JSON object a line.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Count the lines of a file whose right side a model gives exactly, to the last character.

    The engine answers the left sides, natively and without torch; a file of any size streams through. A line that the
    model cannot read counts as wrong; one that is no left=right line is an error.

    \b
    Examples:
      octavo eval polynomials --data lines.txt
      octavo eval polynomials --data lines.txt.xz --model octavo-hybrid/model --mistakes 10
      octavo eval polynomials --data lines.txt --precision integer -o wrong.jsonl --json
    """
    from octavo.display.console import console, print_json
    from octavo.engine.native_engine import Engine
    from octavo.files import whole
    from octavo.systems.polynomials.evaluate import evaluate

    if mistakes < 0:
        raise SettingError(f"--mistakes is {mistakes}; accepted are 0 and more")
    if out is not None and out.is_file() and data.is_file() and out.samefile(data):
        raise SettingError(f"--out is {out}, the file of --data, whose lines would be lost; give another --out")
    engine = Engine.load(model, precision=precision, threads=threads, device=device)  # type: ignore[arg-type] # load checks it
    shown: list[Mistake] = []
    with ExitStack() as stack:
        file = None if out is None else stack.enter_context(whole(out, "w"))

        def mistaken(mistake: Mistake) -> None:
            if len(shown) < mistakes:
                shown.append(mistake)
            if file is not None:
                file.write(jsonlib.dumps(mistake.as_dict()) + "\n")

        found = evaluate(engine, data, beam=beam, mistaken=mistaken, progress=_bar(stack, data))
    if json:
        listed = {"mistakes": [mistake.as_dict() for mistake in shown]} if mistakes else {}
        print_json({"data": str(data), "model": None if model is None else str(model), **found.as_dict(), **listed})
        return
    stdout = console()
    for label, text in found.results():
        stdout.print(f"{label:34} {text}")
    for mistake in shown:
        answer = f"answered {mistake.given}" if mistake.given is not None else f"no answer: {mistake.reason}"
        stdout.print(f"line {mistake.line}: {mistake.left}={mistake.right}, {answer}")
    if out is not None:
        stdout.print(f"{'written':34} {out}: {found.lines - found.exact:,} mistakes")


def _bar(stack: ExitStack, data: Path) -> Callable[[int, int], None]:
    """Show a bar over the bytes of a file, on a terminal."""
    from octavo.display.progress import progress

    advance: Any = stack.enter_context(progress("evaluating", data.stat().st_size))
    before = 0

    def show(lines: int, nbytes: int) -> None:
        nonlocal before
        advance(f"{lines:,} lines", nbytes - before)
        before = nbytes

    return show
