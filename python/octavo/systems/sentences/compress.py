"""A text encoder within a budget of bits: the format of least error on its weights, measured on its embeddings."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from octavo import __version__, container, folders
from octavo.display.console import progress
from octavo.folder.pack_checkpoint import best_format, compare_formats, pack_tensors, unpack_tensors
from octavo.folder.weight_files import CONFIGURATIONS, PACKED_NAME, Checkpoint, fill_folder
from octavo.formats import Format
from octavo.recipe import Recipe, Rule
from octavo.recipe.tensor_decisions import select
from octavo.systems.compress_report import REPORTS, Candidate, CompressReport, EmbeddingOutcome
from octavo.systems.sentences.examples import SENTENCES
from octavo.systems.sentences.text_encoder import Encoder, agreement


def compress_encoder(
    model: str, source: Checkpoint, budget: float, candidates: list[Format], out: Path
) -> CompressReport:
    """Compare, choose, pack, save, read back and run; the folder ``out`` appears when all of that is done.

    Raises FormatError if no format fits ``budget`` bits per weight, OctavoError for a folder that cannot be run.
    """
    tensors = source.tensors()
    before = Encoder(source.path, unpack_tensors(tensors)).embed(SENTENCES)  # first: it refuses what cannot be run
    nbytes = sum(tensors[weight].nbytes for weight in select(tensors))
    with progress("comparing", nbytes) as done:
        compared = compare_formats(tensors, candidates, progress=done)
    chosen = best_format(compared, budget)
    with progress("packing", sum(tensor.nbytes for tensor in tensors.values())) as done:
        packing = pack_tensors(tensors, Recipe([Rule(weight=chosen.format)]), progress=done)
    with folders.whole(out, owned={PACKED_NAME, *CONFIGURATIONS, *REPORTS}) as folder:
        file = fill_folder(source, folder, PACKED_NAME, packing.tensors)
        after = Encoder(folder, unpack_tensors(container.load(file))).embed(SENTENCES)
        report = CompressReport(
            model=model,
            budget=budget,
            candidates=[Candidate(entry) for entry in compared],
            chosen=Candidate(chosen),
            file=PACKED_NAME,
            bytes_before=source.nbytes,
            bytes_after=file.stat().st_size,
            outcome=EmbeddingOutcome(agreement(before, after)),
            versions={"octavo": __version__, **{package: version(package) for package in ("torch", "transformers")}},
        )
        report.save(folder)
    return report
