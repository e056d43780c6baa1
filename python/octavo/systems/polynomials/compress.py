"""A polynomial model within a budget of bits: the format of most right answers, measured through the native engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from octavo import __version__, folders
from octavo.engine.native_engine import Engine
from octavo.errors import OctavoError
from octavo.folder.companion_files import REPORTS
from octavo.folder.pack_checkpoint import best_format, compare_formats
from octavo.formats import Format
from octavo.systems.compress_report import Candidate, CompressReport, ExpansionOutcome
from octavo.systems.polynomials.accuracy import Accuracy, expander, measure
from octavo.systems.polynomials.data import splits
from octavo.systems.polynomials.export import FILES, WEIGHTS, export_model, fill_folder, load_model
from octavo.systems.polynomials.train_configs import SPLIT_SEED, TEST, VALIDATION

# Validation lines that each format answers; the choice never sees a test line.
TRIED = 4000

Say = Callable[[str], None]


def compress_polynomials(
    model: str,
    folder: Path,
    budget: float,
    formats: list[Format],
    out: Path,
    *,
    lines: int = TEST,
    overwrite: bool = False,
    say: Say = lambda text: None,
) -> CompressReport:
    """Evaluate in fp32, try formats, pack at the budget, and evaluate the packed model through the native engine.

    ``folder``: an exported model. Every format within ``budget`` bits per weight answers 4,000 validation lines through
    the engine; the one with most right answers, then with the least error on the weights, packs the model. Before
    (PyTorch, eager, batches of 512) and after (engine) answer the same ``lines`` test lines. ``say`` hears what begins.

    Raises FormatError if no format fits, OctavoError for a number of lines that is not there, and as ``load_model``.
    """
    if not 1 <= lines <= TEST:
        raise OctavoError(f"{lines:,} test lines; accepted are 1 to {TEST:,}")
    network, tokenizer = load_model(folder)
    compared = compare_formats(dict(network.state_dict()), formats)
    best_format(compared, budget)  # refuses a budget that nothing fits, before the minutes begin
    data = splits(SPLIT_SEED, VALIDATION, TEST)
    validation, test = data.validation[:TRIED], data.test[:lines]
    say(f"fp32, PyTorch: {lines:,} test lines")
    before, before_per_s = timed(expander(network, tokenizer), test)
    candidates = []
    with folders.scratch() as scratch:
        plain = export_model(network, tokenizer, scratch / "fp32", format=None)
        bytes_before = (plain / WEIGHTS).stat().st_size
        for number, entry in enumerate(compared):
            exact = None
            if entry.bits_per_element <= budget:
                say(f"{entry.format}: {len(validation):,} validation lines")
                packed = export_model(network, tokenizer, scratch / str(number), format=str(entry.format))
                exact = measure(Engine.load(packed).expand, validation).share
            candidates.append(Candidate(entry, exact))
    chosen = max((entry for entry in candidates if entry.exact is not None), key=Candidate.merit)
    with folders.whole(out, owned={*FILES, *REPORTS}, overwrite=overwrite) as stage:
        fill_folder(network, tokenizer, stage, format=str(chosen.comparison.format))
        say(f"{chosen.comparison.format}, engine: {lines:,} test lines")
        after, after_per_s = timed(Engine.load(stage).expand, test)
        report = CompressReport(
            model=model,
            budget=budget,
            candidates=candidates,
            chosen=chosen,
            file=WEIGHTS,
            bytes_before=bytes_before,
            bytes_after=(stage / WEIGHTS).stat().st_size,
            outcome=ExpansionOutcome(before, after, before_per_s, after_per_s),
            versions={"octavo": __version__, "torch": version("torch")},
        )
        report.save(stage)
    return report


def timed(expand: Callable[[list[str]], Sequence[str]], lines: Sequence[str]) -> tuple[Accuracy, float]:
    """Return the accuracy over ``left=right`` lines, and the lines a second from text to text, the first call apart."""
    lefts = [line.partition("=")[0] for line in lines]
    expand(lefts[:64])
    begin = time.perf_counter()
    answers = expand(lefts)
    seconds = time.perf_counter() - begin
    return measure(lambda _: answers, lines), len(lines) / seconds
