"""The job of compressing a model of transformers that reads texts: encoder, classifier or language model.

Labelled texts give a classifier's accuracy, a plain text a language model's perplexity; without them, and for encoders,
the agreement with the float model is measured. One file of data is cut in three: calibration, validation and test.
Texts go by their own SHA-256, so that no text decides about another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import field as described
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from octavo.compress.compress_model import AGREEMENT
from octavo.compress.compression_job import DataFacts, Examples, Job, Quality
from octavo.compress.examples import SENTENCES
from octavo.compress.text_models import TextModel, labelled_for, open_text_model
from octavo.data.batches import Batches, call_on
from octavo.data.calibration_texts import (
    cut_windows,
    end_of_text,
    has_labels,
    read_texts,
    text_ids,
    window_batches,
)
from octavo.data.labelled import Sentences
from octavo.data.labelled_files import is_json_lines, read_text_file
from octavo.errors import DataError, ModelError, SettingError
from octavo.model_folder.pack_folder import write_folder
from octavo.model_folder.save_load import file_bytes, load_model
from octavo.model_folder.weight_files import Checkpoint, layers_of
from octavo.nn.tied_weights import untie_heads
from octavo.search.fingerprints import identity_of
from octavo.search.short_training import BatchTask, Loss, Training, distillation, short_config
from octavo.train.evaluate_model import context_of, evaluate
from octavo.train.measurement import digest_of
from octavo.train.model_agreement import agreement
from octavo.train.model_outputs import evaluating, read_output

#: Texts or windows that calibrate where nobody says how many, and the most that validate and test.
CALIBRATED, VALIDATED, TESTED = 128, 1000, 10_000
#: Texts of a short training at most, those that choose and test not among them, and its learning rates.
TRAINED, RATES = 20_000, {"classifier": 2e-5, "embeddings": 5e-5, "language": 5e-5}
_BATCH = 32
# Tokens of a text or window that calibrate, those of built-in sentences, and tokens of a plain text that validate and
# test at most.
_MOST_TOKENS = 1 << 20
_TASKS = {"embeddings": "text encoder", "classifier": "classifier of texts", "language": "language model"}
_WINDOW, _SENTENCES, _VALIDATION, _TEST = 64, 32, 16_384, 65_536
_SHORT = 8_192  # tokens of both with --fast
_ROWS_OF_BATCH = 8  # of windows of the usual length


@dataclass(frozen=True)
class Reading:
    """How files of texts are read, and how much of them calibrates.

    ``field``: field of the text in JSON objects. ``samples``: most texts that calibrate, windows of a language model.
    ``tokens``: of a window, and of a text at most. None: as usual. ``short``: fewer tokens of a plain text choose and
    are reported. Raises SettingError for sizes below 1.
    """

    field: str | None = None
    samples: int | None = None
    tokens: int | None = None
    short: bool = described(default=False, compare=False)

    def __post_init__(self) -> None:
        """Check the sizes."""
        for name, value in (("samples", self.samples), ("tokens", self.tokens)):
            if value is not None and value < 1:
                raise SettingError(f"{name} is {value}; accepted are whole numbers from 1 on")

    @property
    def calibrated(self) -> int:
        """Most texts or windows that calibrate."""
        return CALIBRATED if self.samples is None else self.samples

    def length(self, model: nn.Module, usual: int = _WINDOW) -> int:
        """Return the tokens of a window. Raises SettingError for more than the model has positions for."""
        if self.tokens is None:
            return usual
        most = context_of(model, _MOST_TOKENS)
        if self.tokens > most:
            raise SettingError(f"tokens is {self.tokens:,}; the {type(model).__name__} reads at most {most:,} at once")
        return self.tokens


USUAL = Reading()


def text_job(
    given: str, data: Path | None = None, test: Path | None = None, reading: Reading = USUAL, *, untie: bool = False
) -> Job:
    """Return the job of ``minilm``, a folder of transformers, or one that ``octavo lab train`` wrote of a text model.

    ``data``: labelled texts (``.tsv``, ``.jsonl``) for a classifier, a plain text for a language model, texts, a line
    each, for an encoder; for all of them JSON objects with a text or chat messages (``.jsonl``); None: built-in
    sentences. ``test``: the same, reported alone; None: a part of ``data``. ``reading``: how much of it calibrates.
    ``untie``: with a weight of its own for a head that has the table of the embedding.
    Raises ModelError for a model that is packed or reads no texts, DataError for data that does not fit it.
    """
    opened = open_text_model(given)
    source = Checkpoint.open(opened.folder)
    if packed := list(layers_of(source)):
        raise ModelError(f"{given}: already packed, as {packed[0]} is; octavo unpack comes first to compress it anew")
    if opened.task == "other":
        raise ModelError(
            f"{given}: a {type(opened.model).__name__} is not an encoder, classifier or language model; name a "
            "function that makes the model, its batches and its evaluation: package.module:function"
        )
    untied = untie_heads(opened.model) if untie else None
    if data is not None and opened.task == "classifier" and has_labels(data):
        parts = _classifier(opened, data, test, reading)
    elif data is not None and opened.task == "language":
        parts = _language(opened, data, test, reading)
    else:
        parts = _agreement(opened, data, test, reading)
    calibration, quality, tested, measures, facts, examples, (trained, loss, told), unseen = parts

    def read(folder: Path) -> nn.Module:
        return load_model(folder).float()

    def training(steps: int | None) -> Training:
        batches = trained()
        known = identity_of(loss=told, data=batches)
        config = short_config(steps, learning_rate=RATES[opened.task])
        return Training(BatchTask(batches, loss), config, told, {**known.digests}, known.unknown)

    known = identity_of(model=opened.model, data=calibration, evaluate=quality)
    metadata = source.metadata()

    return Job(
        name=given,
        model=opened.model,
        batches=Batches(calibration),
        evaluate=quality,
        test=tested,
        examples=examples,
        measures=measures,
        task=_TASKS[opened.task],
        write=lambda model, folder: write_folder(source, folder, model, untied=untie),
        read=read,
        identity={**known.digests},
        unknown=known.unknown,
        sized=lambda model: file_bytes(model, metadata),
        untied=untied,
        unseen=unseen,
        unseen_source="a part of the validation data",
        file_bytes=source.nbytes,
        data=facts,
        samples=reading.calibrated,
        training=training,
    )  # fmt: skip


_Row = TypeVar("_Row")
# Calls that guard one of the many measurements that choose; those that are reported have all, or so many.
_GUARD, _SHORT_GUARD = 8, 4
# Validation texts, and tokens of a language model, on which divergences are measured.
_HELD_TEXTS, _HELD_TOKENS = 128, 2048
# What makes batches with what they are trained to, the loss of one, and what it is, for people.
Trained = tuple[Callable[[], list[tuple[dict[str, Tensor], Tensor | None]]], Loss, str]
Parts = tuple[
    list[dict[str, Tensor]], Quality, Quality | None, str, tuple[DataFacts, ...], Examples | None, Trained,
    list[dict[str, Tensor]] | None,
]  # fmt: skip


def _class_loss(model: nn.Module, batch: tuple[dict[str, Tensor], Tensor]) -> Tensor:
    """Return the cross-entropy of the classes of texts."""
    scores = read_output(call_on(model, batch[0]), batch[0])[1]
    return functional.cross_entropy(scores.float(), batch[1])


def _token_loss(model: nn.Module, batch: tuple[dict[str, Tensor], None]) -> Tensor:
    """Return the cross-entropy of every token but the first, from those before it."""
    (ids,), given = batch[0].values(), call_on(model, batch[0])
    scores = given if isinstance(given, Tensor) else given.logits
    return functional.cross_entropy(scores[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())


def _distilled(reference: nn.Module) -> Loss:
    loss = distillation(reference)
    return lambda model, batch: loss(model, batch[0])


def _classifier(opened: TextModel, data: Path, test: Path | None, reading: Reading) -> Parts:
    given, tokens = labelled_for(opened, data, reading.field), reading.length(opened.model)
    first, second, third = _cut(list(zip(given.texts, given.labels, strict=True)), reported=test is not None)
    tested = third if test is None else list(zip(*_pairs(labelled_for(opened, test, reading.field)), strict=True))
    _enough(data, first, second)
    chosen, reported, tokenizer = _sentences(second[:VALIDATED]), _sentences(tested[:TESTED]), opened.tokenizer
    texts = [text for text, _ in first[: reading.calibrated]]
    rows = _to_train_on(first, second)

    def trained() -> list[tuple[dict[str, Tensor], Tensor | None]]:
        parts = [rows[start : start + _BATCH] for start in range(0, len(rows), _BATCH)]
        return [
            (opened.batches([t for t, _ in part], size=_BATCH)[0], torch.tensor([label for _, label in part]))
            for part in parts
        ]

    facts = _facts(data, test, texts, chosen.texts, reported.texts)
    return (
        opened.batches(texts, tokens=tokens),
        lambda model: evaluate(model, chosen, tokenizer=tokenizer),
        (lambda model: evaluate(model, reported, tokenizer=tokenizer)) if len(reported) else None,
        "accuracy on labelled texts",
        facts,
        _labelled_examples(opened, reported),
        (trained, _class_loss, f"cross-entropy of the labels of {len(rows):,} texts"),
        opened.batches(chosen.texts[:_HELD_TEXTS], tokens=tokens),
    )


def _labelled_examples(opened: TextModel, data: Sentences) -> Examples:
    names = getattr(getattr(opened.model, "config", None), "id2label", None) or {}

    def named(label: int) -> str:
        return str(names.get(label, label))

    def answers(model: nn.Module, places: Sequence[int]) -> list[str]:
        with evaluating(model):
            batches = opened.batches([data.texts[place] for place in places], size=_BATCH)
            scores = [read_output(call_on(model, batch), batch)[1] for batch in batches]
        return [named(int(label)) for part in scores for label in part.argmax(-1)]

    return Examples(data.texts, answers, [named(label) for label in data.labels])


def _language(opened: TextModel, data: Path, test: Path | None, reading: Reading) -> Parts:
    tokens, end = reading.length(opened.model), end_of_text(opened.tokenizer)
    documents = _documents(opened, data, reading)
    ids = _stream(documents, end)
    context = min(context_of(opened.model), 512)
    if len(ids) < 8 * context:
        raise DataError(
            f"{data}: {len(ids):,} tokens; accepted are {8 * context:,} and more: calibration, choice, test"
        )
    if len(ids) // 4 < tokens:
        raise DataError(f"{data}: {len(ids):,} tokens, a quarter of which calibrates: no window of {tokens:,}")
    calibrating, windows = 0, 0
    for calibrating in range(min(reading.calibrated * tokens, len(ids) // 4), len(ids) // 4 + 1, tokens):
        cut = cut_windows(_beginning(documents, end, calibrating), tokens, end, most=reading.calibrated)
        windows = len(cut)
        if windows == reading.calibrated:
            break
    together = max(_ROWS_OF_BATCH * _WINDOW // tokens, 1)  # scores of large vocabularies take the memory
    rows = window_batches(cut, tokens, opened.argument, together)
    most, reports = (_SHORT, _SHORT) if reading.short else (_VALIDATION, _TEST)
    guard, last_guard = (_SHORT_GUARD, _GUARD) if reading.short else (_GUARD, None)
    choosing = min(most, (len(ids) - calibrating) // (1 if test else 2))
    chosen = ids[calibrating : calibrating + choosing]
    reported = (ids[calibrating + choosing :] if test is None else _stream(_documents(opened, test, reading), end))[
        :reports
    ]
    source = f"tokens of {data.name}, from its beginning, in {windows:,} windows of {tokens:,}"
    facts = (
        DataFacts("calibration", source, windows * tokens, _digest([token for row in cut for token in row])),
        DataFacts("validation", f"the next tokens of {data.name}", len(chosen), _digest(chosen)),
        DataFacts("test", f"tokens of {(test or data).name}", len(reported), _digest(reported)),
    )
    return (
        rows,
        lambda model: evaluate(model, chosen, context=context, guard_calls=guard),
        lambda model: evaluate(model, reported, context=context, guard_calls=last_guard),
        f"perplexity, windows of {context} tokens, each token predicted once",
        facts,
        None,  # its values are of tokens
        (
            lambda: [(row, None) for row in rows],
            _token_loss,
            "cross-entropy of the next token of the text that calibrates",
        ),
        window_batches(
            cut_windows([chosen], tokens, end, most=max(_HELD_TOKENS // tokens, 1)), tokens, opened.argument, together
        ),
    )


def _documents(opened: TextModel, path: Path, reading: Reading) -> list[list[int]]:
    """Return the ids of the texts of a file for a language model: of a plain text one."""
    if is_json_lines(path) or reading.field is not None:
        texts = read_texts(path, field=reading.field, tokenizer=opened.tokenizer)
    else:
        texts = [read_text_file(path)]
    return [text_ids(opened.tokenizer, text) for text in texts]


def _stream(documents: Sequence[Sequence[int]], end: Sequence[int]) -> list[int]:
    """Return the ids of texts, one after the other, with ``end`` between them."""
    return [token for place, ids in enumerate(documents) for token in (*(end if place else ()), *ids)]


def _beginning(documents: Sequence[Sequence[int]], end: Sequence[int], count: int) -> list[Sequence[int]]:
    """Return the texts that the first ``count`` ids of their stream hold; the last may be cut."""
    parts: list[Sequence[int]] = []
    for ids in documents:
        if count <= 0:
            break
        parts.append(ids[:count])
        count -= len(ids) + len(end)
    return parts


def _agreement(opened: TextModel, data: Path | None, test: Path | None, reading: Reading) -> Parts:
    if data is None:
        # Four sentences a subject: two calibrate, one chooses, one is reported.
        texts = [list(SENTENCES[0::4] + SENTENCES[1::4]), list(SENTENCES[2::4]), list(SENTENCES[3::4])]
    else:
        texts = [
            [text for text, _ in part]
            for part in _cut([(text, 0) for text in _read(opened, data, reading)], reported=test is not None)
        ]
    if test is not None:
        texts[2] = _read(opened, test, reading)
    first, second, third = texts[0][: reading.calibrated], texts[1][:VALIDATED], texts[2][:TESTED]
    _enough(data, first, second)
    size = 8 if opened.task != "language" else 4
    tokens = reading.length(opened.model, _WINDOW if opened.task != "language" else _SENTENCES)
    batches = [opened.batches(part, size=size, tokens=tokens) if part else [] for part in (first, second, third)]
    facts = _facts(data, test, first, second, third)

    reference = opened.model

    def agrees(part: list[dict[str, Tensor]]) -> Quality:
        return lambda model: agreement(model, reference, Batches(part))

    more = _to_train_on(texts[0], texts[1])

    def pairs() -> list[tuple[dict[str, Tensor], Tensor | None]]:
        return [(batch, None) for batch in opened.batches(more, size=size, tokens=tokens)]

    trained = pairs, _distilled(opened.model), f"divergence from the original model on {len(more):,} texts"
    tested = agrees(batches[2]) if third else None
    examples = Examples(third) if opened.task != "language" else None  # whose values are of tokens
    return batches[0], agrees(batches[1]), tested, AGREEMENT, facts, examples, trained, None


def _read(opened: TextModel, path: Path, reading: Reading) -> list[str]:
    return read_texts(path, field=reading.field, tokenizer=opened.tokenizer)


def _cut(rows: Sequence[tuple[str, int]], *, reported: bool) -> list[list[tuple[str, int]]]:
    """Return texts to calibrate on, to choose by and to report, sorted by their SHA-256, which alone decides.

    ``reported``: test texts are elsewhere, and those of the third part choose, too.
    """
    parts: list[list[tuple[str, int]]] = [[], [], []]
    for key, row in sorted((sha256(row[0].encode()).hexdigest(), row) for row in rows):
        place = int(key[:8], 16) % 4
        parts[min(place, 1 if reported else 2)].append(row)
    return parts


def _to_train_on(first: list[_Row], second: list[_Row]) -> list[_Row]:
    """Return what a short training reads: texts that calibrate, and those beyond the ones that choose."""
    chosen = set(second[:VALIDATED])
    return [*first, *(row for row in second[VALIDATED:] if row not in chosen)][:TRAINED]


def _pairs(data: Sentences) -> tuple[tuple[str, ...], tuple[int, ...]]:
    return data.texts, data.labels


def _sentences(rows: Sequence[tuple[str, int]]) -> Sentences:
    return Sentences(tuple(text for text, _ in rows), tuple(label for _, label in rows))


def _enough(data: Path | None, first: Sequence[object], second: Sequence[object]) -> None:
    if not first or not second:
        raise DataError(f"{data}: too few texts to calibrate on and to choose by; accepted are some dozens and more")


def _facts(
    data: Path | None, test: Path | None, first: Sequence[str], second: Sequence[str], third: Sequence[str]
) -> tuple[DataFacts, ...]:
    source = "built-in sentences" if data is None else f"texts of {data.name}"
    facts = (
        DataFacts("calibration", source, len(first), digest_of(first)),
        DataFacts("validation", f"other {source}", len(second), digest_of(second)),
    )
    told = f"texts of {test.name}" if test else f"other {source}"
    return (*facts, DataFacts("test", told, len(third), digest_of(third))) if third else facts


def _digest(ids: Sequence[int]) -> str:
    return digest_of([" ".join(map(str, ids))])
