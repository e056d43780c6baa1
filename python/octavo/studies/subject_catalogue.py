"""Subjects by name: models that are loaded, or trained first where that takes minutes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from octavo.errors import DataError, SettingError
from octavo.studies.subject import ClassifierSubject, PolynomialSubject, Subject
from octavo.systems.polynomials.data import signs
from octavo.systems.sentences import sentiment
from octavo.systems.sentences.classifier import kinds
from octavo.systems.sentences.classifier.training_run import HYPERPARAMETERS, MODEL, train_classifier
from octavo.systems.sentences.sentiment import Split
from octavo.systems.sentences.text_encoder import MINILM

POLYNOMIALS = "polynomials"
NAMES = (*kinds.KINDS, POLYNOMIALS)
TRAINING = "training"  # the folder, inside that of the study, in which a model is trained
_LINES = 40_000  # training lines of the task that needs no download
_JUDGED = {kinds.TINY: 512, MINILM: 256}

Tell = Callable[[str], None]


def open_subject(
    name: str,
    folder: Path,
    *,
    data: Path | None = None,
    trained: Path | None = None,
    quick: bool = False,
    progress: bool = True,
    tell: Tell = lambda text: None,
) -> Subject:
    """Return the model called ``tiny``, ``minilm`` or ``polynomials`` with its texts.

    ``data``: a folder of labelled sentences; without it the tiny model tells signs of linear terms, a task that is
    generated. ``trained``: the folder of an ``octavo train sst2`` run; without it the model is trained in ``folder``.
    ``quick``: fewer texts, and so a worse model. Raises SettingError for what does not go together, DataError for a
    model trained on other data, Interrupted where a signal ended the training.
    """
    if name not in NAMES:
        raise SettingError(f"unknown model {name!r}; accepted are {', '.join(NAMES)}")
    if name == POLYNOMIALS:
        if data is not None or trained is not None:
            raise SettingError(
                "the model 'polynomials' comes with its weights and lines; leave out --data and --trained"
            )
        return PolynomialSubject(lines=200 if quick else 2000, judged=128 if quick else 512)
    if name == MINILM and data is None:
        raise SettingError(
            f"the model 'minilm' reads sentences: give --data FOLDER with {sentiment.TRAIN} and {sentiment.TEST}"
        )
    split = _split(data, quick=quick)
    run = trained or folder / TRAINING
    if not (run / MODEL / kinds.INFO).exists():
        if trained is not None:
            raise DataError(f"{trained}: no trained classifier here; octavo train sst2 --model {name} makes one")
        tell(f"training the model '{name}' first, in {run}; it is done once")
        train_classifier(name, split, run, progress=progress)
    made, info = kinds.load(run / MODEL)
    if made.kind != name:
        raise DataError(f"{run}: holds a model '{made.kind}'; give --model {made.kind}")
    if info.get("data") != split.digest():
        raise DataError(f"{run}: trained on other texts than these; give the same --data, or another --out")
    judged = 128 if quick else _JUDGED[name]
    return ClassifierSubject(name, made, split, HYPERPARAMETERS[name], steps=info["steps"], judged=judged)


def _split(data: Path | None, *, quick: bool) -> Split:
    if data is not None:
        return sentiment.load(data)
    return signs.load(_LINES // 5, validation=400, test=800) if quick else signs.load(_LINES)
