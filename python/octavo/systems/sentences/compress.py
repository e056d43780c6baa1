"""A text encoder within a budget of bits: the format of least error on its weights, measured on its embeddings."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from octavo import __version__, folders
from octavo.display.progress import progress
from octavo.folder.companion_files import REPORTS
from octavo.folder.pack_checkpoint import best_format, compare_formats
from octavo.folder.pack_folder import OpenFolder, write_folder
from octavo.folder.weight_files import PACKED_NAME, Checkpoint, replaced
from octavo.formats import Format
from octavo.recipe import Recipe, Rule
from octavo.systems.compress_report import Candidate, CompressReport, EmbeddingOutcome
from octavo.systems.sentences.examples import SENTENCES
from octavo.systems.sentences.text_encoder import Encoder, agreement


def compress_encoder(
    model: str, source: Checkpoint, budget: float, candidates: list[Format], out: Path
) -> CompressReport:
    """Compare, choose, pack, save, read back and run; the folder ``out`` appears when all of that is done.

    Both sides are what octavo.load_model reads: the folder that was given, and the packed one, whose layers multiply
    codes. Raises FormatError if no format fits ``budget`` bits per weight, OctavoError for a folder that cannot be run.
    """
    opened = OpenFolder.open(source)
    before = Encoder(source.folder).embed(SENTENCES)  # first: it refuses what cannot be run
    weights = opened.matrices()
    with progress("comparing", sum(weight.nbytes for weight in weights.values())) as done:
        compared = compare_formats(weights, candidates, progress=done)
    chosen = best_format(compared, budget)
    with progress("packing", opened.nbytes) as done:
        packed = opened.pack(Recipe([Rule(weight=chosen.format)]), progress=done)
    with folders.whole(out, owned=replaced(out, PACKED_NAME, *REPORTS)) as folder:
        file = write_folder(source, folder, packed.model)
        after = Encoder(folder).embed(SENTENCES)
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
