"""Subjects by name: models that are loaded, or trained first where that takes minutes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn

from octavo.compress import readers
from octavo.data.labelled import Split
from octavo.errors import DataError, SettingError
from octavo.lab.classifiers import kinds
from octavo.lab.classifiers.corpora import open_corpus
from octavo.lab.classifiers.pretrained import named_classes, pretrained
from octavo.lab.classifiers.text_classifier import INFO, TextClassifier, check_length
from octavo.lab.classifiers.training_run import (
    HYPERPARAMETERS,
    MODEL,
    Hyperparameters,
    held_out_of,
    train_classifier,
)
from octavo.lab.polynomials.data import signs
from octavo.lab.polynomials.shipped import NAME as POLYNOMIALS
from octavo.lab.studies.subject import ClassifierSubject, PolynomialSubject, Subject
from octavo.model_folder.hf_loading import load_config
from octavo.train import seed_all

TRAINING = "training"  # the folder, inside that of the study, in which a model is trained
_LINES = 40_000  # training lines of the task that needs no download
_JUDGED, _USUALLY_JUDGED = {kinds.TINY: 512}, 256
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
    test: Path | None = None,
    length: int | None = None,
    held_out: int | None = None,
    device: torch.device = _CPU,
    quick: bool = False,
    progress: bool = True,
    tell: Tell = lambda text: None,
) -> Subject:
    """Return the model called ``tiny``, ``minilm`` or ``polynomials``, or that of a folder, with its texts.

    ``data``: a folder of a ``corpus`` (None: sst2), or a file of labelled texts, with a file ``test`` or without one;
    None: the tiny model tells signs of linear terms, a task that is generated. ``held_out``: training texts that are
    tested on in place of the corpus's own, ``length``: tokens of a text that are read; None: as the model was trained.
    ``trained``: the folder of an ``octavo lab train classifier`` run; without it the model is trained in ``folder``,
    but for a folder of transformers whose head has as many classes as the texts: it is studied as it is. ``device``:
    where it is trained and measured. ``quick``: fewer texts, and so a worse model.

    Raises SettingError for what does not go together, DataError for a model trained on other data or at another length,
    InterruptedRun where a signal ended the training.
    """
    kinds.check_model(name, (POLYNOMIALS,), trained=trained is not None)
    if name == POLYNOMIALS:
        if any(option is not None for option in (data, trained, corpus, test, length, held_out)):
            raise SettingError(
                "the model 'polynomials' comes with its weights and lines; leave out --data and --trained, and what "
                "is said of texts"
            )
        return PolynomialSubject(lines=200 if quick else 2000, judged=128 if quick else 512, device=device)
    _check(name, data, corpus, length)
    run = trained or folder / TRAINING
    is_trained = (run / MODEL / INFO).exists()
    if trained is not None and not is_trained:
        raise DataError(f"{trained}: no trained classifier here; octavo lab train classifier --model {name} makes one")
    if is_trained and held_out is None and test is None and data is not None:
        held_out = held_out_of(run)
    kind, label = kinds.kind_of(name), _label(name)
    split = open_split(data, corpus, held_out, test=test, classes=_classes(name), quick=quick)
    judged = 128 if quick else _JUDGED.get(kind, _USUALLY_JUDGED)
    hyperparameters = HYPERPARAMETERS[kind]
    if not is_trained and kind == kinds.TRANSFORMERS and (ready := _ready(Path(name), split, length)) is not None:
        tell(f"the classifier in {name} is studied as it is; octavo lab train classifier fine-tunes it")
        _tell_of_others(ready, tell)
        steps = _steps(hyperparameters, split)
        return ClassifierSubject(label, ready, split, hyperparameters, steps=steps, judged=judged, device=device)
    if not is_trained:
        tell(f"training the model '{name}' first, in {run}; it is done once")
        train_classifier(name, split, run, length=length, changes={"device": device.type}, progress=progress)
    made, info = kinds.load(run / MODEL)
    if made.kind != kind:
        raise DataError(f"{run}: holds a model '{made.kind}'; give --model {made.kind}")
    if length not in (None, made.length):
        raise DataError(f"{run}: the model reads {made.length} tokens; give --length {made.length}, or another --out")
    if info.get("data") != split.digest():
        raise DataError(
            f"{run}: trained on other texts than these; give the same --data, --corpus and --held-out, or another --out"
        )
    _tell_of_others(made, tell)
    return ClassifierSubject(label, made, split, hyperparameters, steps=info["steps"], judged=judged, device=device)


def open_base(
    name: str,
    folder: Path,
    *,
    data: Path | None = None,
    trained: Path | None = None,
    corpus: str | None = None,
    test: Path | None = None,
    length: int | None = None,
    held_out: int | None = None,
    device: torch.device = _CPU,
    quick: bool = False,
    progress: bool = True,
    tell: Tell = lambda text: None,
) -> ClassifierSubject:
    """Return a model that knows another task than the texts it comes with, with a fresh head, to be fine-tuned.

    ``tiny`` knows the signs of linear terms, as :func:`open_subject` trains it or ``trained`` holds it, and is to learn
    those of constants; ``minilm``, or the model of a folder, is as it was pretrained, and learns the texts of ``data``.
    Arguments and errors as for :func:`open_subject`; SettingError for what no base is made of.
    """
    kinds.check_model(name)
    if name == kinds.TINY:
        if any(option is not None for option in (data, corpus, test, held_out)):
            raise SettingError(
                "the model 'tiny' goes on from one generated task to another; --data is for --model minilm or a folder"
            )
        first = open_subject(
            name, folder, trained=trained, length=length, device=device, quick=quick, progress=progress, tell=tell
        )
        assert isinstance(first, ClassifierSubject)  # it is what the name says
        made, sizes = first.classifier(), (_LINES // 10, 400, 800) if quick else (_LINES // 2, 2000, 4000)
        split = signs.load(sizes[0], validation=sizes[1], test=sizes[2], term="constant")
    else:
        if trained is not None:
            raise SettingError(f"fine-tuning begins at the pretrained model '{name}'; leave out --trained")
        _check(name, data, corpus, length)
        split = open_split(data, corpus, held_out, test=test, classes=_classes(name), quick=quick)
        seed_all(0)
        made = kinds.build(name, split, length)
    fresh_head(made.model.get_submodule(made.head))
    kind = kinds.kind_of(name)
    judged, hyperparameters = 128 if quick else _JUDGED.get(kind, _USUALLY_JUDGED), HYPERPARAMETERS[kind]
    steps = _steps(hyperparameters, split)
    return ClassifierSubject(_label(name), made, split, hyperparameters, steps=steps, judged=judged, device=device)


def fresh_head(head: nn.Module, *, seed: int = 0) -> None:
    """Give a linear head fresh weights, the same ones for a ``seed``, and no bias."""
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        head.weight.normal_(std=_SPREAD, generator=torch.Generator().manual_seed(seed))
        if head.bias is not None:
            head.bias.zero_()


def _ready(folder: Path, split: Split, length: int | None) -> TextClassifier | None:
    """Return the classifier of a folder whose head has as many classes as the texts; None where it has no such head."""
    if load_config(folder)[0].num_labels != max(split.train.labels) + 1:
        return None
    made, fresh = pretrained(kinds.TRANSFORMERS, folder, length)
    return None if fresh else made


def _tell_of_others(made: TextClassifier, tell: Tell) -> None:
    """Say of a model whose matrices are mostly in other layers than Linear ones that studies leave those alone."""
    linear, others = 0, Counter[str]()
    for layer in made.model.modules():
        weight = getattr(layer, "weight", None)
        if isinstance(layer, nn.Linear):
            linear += layer.weight.numel()
        elif isinstance(weight, torch.Tensor) and weight.ndim == 2 and not isinstance(layer, nn.Embedding):
            others[type(layer).__name__] += weight.numel()
    whole = linear + others.total()
    if linear < whole / 2:
        tell(
            f"studies quantize and prune Linear layers, which hold {linear / whole:.0%} of the matrices of this "
            f"{type(made.model).__name__}; {', '.join(sorted(others))} stay float"
        )


def _steps(hyperparameters: Hyperparameters, split: Split) -> int:
    """Return the updates of a training that was, or would be, the model's."""
    return max(1, round(hyperparameters.epochs * (len(split.train) // hyperparameters.batch_size)))


def _label(name: str) -> str:
    """Return what a model is called: its name, or that of its folder."""
    return name if name in (*kinds.KINDS, kinds.TRANSFORMERS) else Path(name).resolve().name


def _classes(name: str) -> dict[str, int] | None:
    """Return the named classes of a folder's model."""
    return None if name in (*kinds.KINDS, kinds.TRANSFORMERS) else named_classes(Path(name))


def _check(name: str, data: Path | None, corpus: str | None, length: int | None) -> None:
    """Refuse what no corpus, or no classifier, goes with."""
    files = readers.corpus(corpus or readers.SST2).files
    if length is not None:
        check_length(length)
    if data is None and name != kinds.TINY:
        raise SettingError(
            f"the model '{name}' reads sentences: give --data FOLDER with {files['train']} and {files['test']}, or "
            "--data FILE of labelled texts"
        )


def open_split(
    data: Path | None,
    corpus: str | None,
    held_out: int | None,
    *,
    test: Path | None = None,
    classes: Mapping[str, int] | None = None,
    quick: bool,
) -> Split:
    """Return the texts of a corpus or file ``data``, or those of the task that is generated.

    ``test``, ``classes``: as for :func:`octavo.lab.classifiers.corpora.open_corpus`. Raises SettingError for a corpus
    without a folder, and as that function.
    """
    if data is None and any(option is not None for option in (corpus, held_out, test)):
        raise SettingError("--corpus, --test and --held-out are of texts in files: give --data FOLDER")
    if data is not None:
        return open_corpus(data, corpus=corpus, test=test, held_out=held_out, classes=classes)
    return signs.load(_LINES // 5, validation=400, test=800) if quick else signs.load(_LINES)
