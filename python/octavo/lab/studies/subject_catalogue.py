"""Subjects by name: models that are loaded, or trained first where that takes minutes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from octavo.compress import readers, sentiment
from octavo.compress.sentence_encoder import MINILM
from octavo.data.labelled import Split
from octavo.errors import DataError, SettingError
from octavo.lab.classifiers import kinds
from octavo.lab.classifiers.training_run import HYPERPARAMETERS, MODEL, held_out_of, train_classifier
from octavo.lab.polynomials.data import signs
from octavo.lab.polynomials.shipped import NAME as POLYNOMIALS
from octavo.lab.studies.subject import ClassifierSubject, PolynomialSubject, Subject
from octavo.train import seed_all

NAMES = (*kinds.KINDS, POLYNOMIALS)
TRAINING = "training"  # the folder, inside that of the study, in which a model is trained
_LINES = 40_000  # training lines of the task that needs no download
_JUDGED = {kinds.TINY: 512, MINILM: 256}
_SPREAD = 0.02  # of the weights of a fresh head: BERT's

_CPU = torch.device("cpu")

Tell = Callable[[str], None]


def open_subject(
    name: str,
    folder: Path,
    *,
    data: Path | None = None,
    trained: Path | None = None,
    corpus: str | None = None,
    length: int | None = None,
    held_out: int | None = None,
    device: torch.device = _CPU,
    quick: bool = False,
    progress: bool = True,
    tell: Tell = lambda text: None,
) -> Subject:
    """Return the model called ``tiny``, ``minilm`` or ``polynomials`` with its texts.

    ``data``: a folder of a ``corpus`` (None: sst2); without it the tiny model tells signs of linear terms, a task that
    is generated. ``held_out``: training texts that are tested on in place of the corpus's own, ``length``: tokens of a
    text that are read; None: as the model was trained. ``trained``: the folder of an ``octavo lab train classifier``
    run; without it the model is trained in ``folder``. ``device``: where it is trained and measured.
    ``quick``: fewer texts, and so a worse model.

    Raises SettingError for what does not go together, DataError for a model trained on other data or at another length,
    InterruptedRun where a signal ended the training.
    """
    if name not in NAMES:
        raise SettingError(f"unknown model {name!r}; accepted are {', '.join(NAMES)}")
    if name == POLYNOMIALS:
        if any(given is not None for given in (data, trained, corpus, length, held_out)):
            raise SettingError(
                "the model 'polynomials' comes with its weights and lines; leave out --data and --trained, and what "
                "is said of texts"
            )
        return PolynomialSubject(lines=200 if quick else 2000, judged=128 if quick else 512, device=device)
    _check(name, data, corpus, length, held_out)
    run = trained or folder / TRAINING
    is_trained = (run / MODEL / kinds.INFO).exists()
    if trained is not None and not is_trained:
        raise DataError(f"{trained}: no trained classifier here; octavo lab train classifier --model {name} makes one")
    if is_trained and held_out is None and data is not None:
        held_out = held_out_of(run)
    split = open_split(data, corpus, held_out, quick=quick)
    if not is_trained:
        tell(f"training the model '{name}' first, in {run}; it is done once")
        changes = {"device": device.type}
        train_classifier(name, split, run, length=length or kinds.LONGEST, changes=changes, progress=progress)
    made, info = kinds.load(run / MODEL)
    if made.kind != name:
        raise DataError(f"{run}: holds a model '{made.kind}'; give --model {made.kind}")
    if length not in (None, made.length):
        raise DataError(f"{run}: the model reads {made.length} tokens; give --length {made.length}, or another --out")
    if info.get("data") != split.digest():
        raise DataError(
            f"{run}: trained on other texts than these; give the same --data, --corpus and --held-out, or another --out"
        )
    judged = 128 if quick else _JUDGED[name]
    return ClassifierSubject(
        name, made, split, HYPERPARAMETERS[name], steps=info["steps"], judged=judged, device=device
    )


def open_base(
    name: str,
    folder: Path,
    *,
    data: Path | None = None,
    trained: Path | None = None,
    corpus: str | None = None,
    length: int | None = None,
    held_out: int | None = None,
    device: torch.device = _CPU,
    quick: bool = False,
    progress: bool = True,
    tell: Tell = lambda text: None,
) -> ClassifierSubject:
    """Return a model that knows another task than the texts it comes with, with a fresh head, to be fine-tuned.

    ``tiny`` knows the signs of linear terms, as :func:`open_subject` trains it or ``trained`` holds it, and is to learn
    those of constants; ``minilm`` is as it was pretrained, and learns the corpus in ``data``. Arguments and errors as
    for :func:`open_subject`; SettingError for what no base is made of.
    """
    if name == kinds.TINY:
        if any(given is not None for given in (data, corpus, held_out)):
            raise SettingError(
                "the model 'tiny' goes on from one generated task to another; --data is for --model minilm"
            )
        first = open_subject(
            name, folder, trained=trained, length=length, device=device, quick=quick, progress=progress, tell=tell
        )
        assert isinstance(first, ClassifierSubject)  # it is what the name says
        made, sizes = first.classifier(), (_LINES // 10, 400, 800) if quick else (_LINES // 2, 2000, 4000)
        split = signs.load(sizes[0], validation=sizes[1], test=sizes[2], term="constant")
    elif name == MINILM:
        if trained is not None:
            raise SettingError("fine-tuning begins at the pretrained model 'minilm'; leave out --trained")
        _check(name, data, corpus, length, held_out)
        split = open_split(data, corpus, held_out, quick=quick)
        seed_all(0)
        made = kinds.build(name, split, length or kinds.LONGEST)
    else:
        raise SettingError(f"no fine-tuning of {name!r}; accepted are {', '.join(kinds.KINDS)}")
    fresh_head(made.model.get_submodule(ClassifierSubject.head))
    hyperparameters = HYPERPARAMETERS[name]
    steps = round(hyperparameters.epochs * (len(split.train) // hyperparameters.batch_size))
    judged = 128 if quick else _JUDGED[name]
    return ClassifierSubject(name, made, split, hyperparameters, steps=steps, judged=judged, device=device)


def fresh_head(head: nn.Module, *, seed: int = 0) -> None:
    """Give a linear head fresh weights, the same ones for a ``seed``, and no bias."""
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        head.weight.normal_(std=_SPREAD, generator=torch.Generator().manual_seed(seed))
        head.bias.zero_()


def _check(name: str, data: Path | None, corpus: str | None, length: int | None, held_out: int | None) -> None:
    """Refuse what no corpus, or no classifier, goes with."""
    files = readers.corpus(corpus or readers.SST2).files
    if length is not None:
        kinds.check_length(length)
    if data is None and name == MINILM:
        raise SettingError(
            f"the model 'minilm' reads sentences: give --data FOLDER with {files['train']} and {files['test']}"
        )


def open_split(data: Path | None, corpus: str | None, held_out: int | None, *, quick: bool) -> Split:
    """Return the texts of a corpus in the folder ``data``, or those of the task that is generated.

    Raises SettingError for a corpus without a folder.
    """
    if data is None and (corpus is not None or held_out is not None):
        raise SettingError("--corpus and --held-out are of texts in files: give --data FOLDER")
    if data is not None:
        return sentiment.load(data, corpus or readers.SST2, held_out=held_out)
    return signs.load(_LINES // 5, validation=400, test=800) if quick else signs.load(_LINES)
