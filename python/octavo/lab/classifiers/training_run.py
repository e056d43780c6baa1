"""The job of ``octavo lab train classifier``: train and test a classifier, write its folder."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from octavo.data.labelled import Split
from octavo.errors import DataError
from octavo.lab.classifiers.kinds import TINY, TRANSFORMERS, build, kind_of
from octavo.lab.classifiers.text_classifier import INFO, LONGEST, TextClassifier
from octavo.lab.classifiers.texts import ClassifierTask, scores
from octavo.storage import files, locks
from octavo.storage.reading import read_json
from octavo.tensors import container
from octavo.train import TrainConfig, TrainResult, seed_all, train

MODEL, REPORT = "model", "report.json"
SAVED = ("data", "seed", "steps", "held_out", "validation", "test")  # beside the kind, in the model folder


@dataclass(frozen=True)
class Hyperparameters:
    """What trains a kind of model: passes over the data, texts in an update, the largest learning rate."""

    epochs: float
    batch_size: int
    learning_rate: float
    precision: str


# MiniLM and folders: the usual fine-tuning of an encoder. Tiny: from fresh weights, hence the larger rate.
HYPERPARAMETERS = {
    TINY: Hyperparameters(epochs=3, batch_size=64, learning_rate=1e-3, precision="fp32"),
    "minilm": Hyperparameters(epochs=1, batch_size=32, learning_rate=5e-5, precision="bf16"),
    TRANSFORMERS: Hyperparameters(epochs=1, batch_size=32, learning_rate=5e-5, precision="fp32"),
}


@dataclass(frozen=True)
class ClassifierReport:
    """A finished run: how it ended, and the accuracy of the last weights on validation and test texts."""

    result: TrainResult
    parameters: int
    validation: tuple[int, int]
    test: tuple[int, int]
    folder: Path
    length: int = LONGEST
    held_out: bool = False
    device: str = "cpu"
    kind: str = TINY

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "reason": self.result.reason,
            "steps": self.result.step,
            "parameters": self.parameters,
            "seconds": self.result.seconds,
            "length": self.length,
            "held_out": self.held_out,
            "device": self.device,
            **{name: _accuracy(getattr(self, name)) for name in ("validation", "test")},
            "model": str(self.folder / MODEL),
        }

    def results(self) -> list[tuple[str, str]]:
        """Return labels and texts for the terminal."""
        (chosen, of_chosen), (right, of_right) = self.validation, self.test
        source = " held out of training" if self.held_out else ""
        model = "" if self.kind == TINY else f" --model {self.kind} with the same --data"
        return [
            ("trained", f"{self.parameters:,} parameters, {self.result.step:,} steps, on {self.device}"),
            ("validation", f"{chosen / of_chosen:.2%} of {of_chosen:,} texts cut from training"),
            ("test", f"{right / of_right:.2%} of {of_right:,} texts{source}"),
            ("written", f"{self.folder / MODEL}: try octavo lab study ptq-qat{model} --trained {self.folder}"),
        ]


def train_config(kind: str, texts: int, *, epochs: float | None = None, **changes: Any) -> TrainConfig:
    """Return the training of a kind of model, or of one in a folder, on ``texts`` training texts.

    ``changes``: fields of :class:`TrainConfig` that differ. The rate grows over 6 % of the steps, then falls to 0.
    """
    usual = HYPERPARAMETERS[kind_of(kind)]
    batch_size = changes.get("batch_size", usual.batch_size)
    steps = changes.pop("steps", None) or max(1, round((epochs or usual.epochs) * (texts // batch_size)))
    config = TrainConfig(
        steps=steps,
        batch_size=batch_size,
        learning_rate=usual.learning_rate,
        schedule="linear",
        warmup=math.ceil(0.06 * steps),
        betas=(0.9, 0.98),
        precision=usual.precision,
        evaluate_every=max(1, steps // 4),
        checkpoint_every=200,
        log_every=50,
    )
    return replace(config, **changes)


def train_classifier(
    kind: str,
    split: Split,
    folder: Path,
    *,
    epochs: float | None = None,
    length: int | None = None,
    changes: dict[str, Any] | None = None,
    progress: bool = True,
) -> ClassifierReport:
    """Train a classifier in ``folder``, going on with the run that is there, and measure its last weights.

    ``kind``: ``tiny``, ``minilm``, or the folder of a model of transformers.
    ``epochs`` and ``changes`` (fields of :class:`TrainConfig`) differ from the kind's hyperparameters. ``length``:
    tokens of a text that are read; None: 64, or as many as a folder's model has positions for. The model folder
    ``folder/model`` is what :func:`octavo.lab.classifiers.kinds.load` reads.

    Raises InterruptedRun if a signal ended the training, LockedError if another process trains in ``folder``.
    """
    config = train_config(kind, len(split.train), epochs=epochs, **(changes or {}))
    seed_all(config.seed)
    made = build(kind, split, length)
    validation = made.texts(split.validation)
    # Runs of 0.1 are bound to no texts, and go on.
    bound = f"{split.digest()} {made.length}" if split.held_out or made.length != LONGEST else None
    task = ClassifierTask(made.texts(split.train), validation, config.batch_size, seed=config.seed, digest=bound)
    with locks.hold(folder):
        result = train(made.model, task, config, folder, progress=progress)
        if result.reason == "interrupted":
            raise result.interruption(told=progress)
        return _finish(made, split, result, folder, config.seed)


def held_out_of(run: Path) -> int | None:
    """Return how many training texts a finished run held out to be tested on; None if it tested on others."""
    info = read_json(run / MODEL / INFO, error=DataError)
    tested = info.get("test")
    return tested.get("texts") if info.get("held_out") is True and isinstance(tested, dict) else None


def _finish(made: TextClassifier, split: Split, result: TrainResult, folder: Path, seed: int) -> ClassifierReport:
    """Measure the last weights, and write the model folder and the report."""
    made.model.load_state_dict(container.load(folder / "last.safetensors"))
    parts = {name: _right(made, getattr(split, name)) for name in ("validation", "test")}
    count = sum(parameter.numel() for parameter in made.model.parameters())
    device = str(next(made.model.parameters()).device)
    tested = (parts["validation"], parts["test"])
    report = ClassifierReport(result, count, *tested, folder, made.length, split.held_out, device, made.kind)
    info = {"data": split.digest(), "seed": seed, "steps": result.step, **report.as_dict()}
    made.save(folder / MODEL, {name: info[name] for name in SAVED})
    files.write(folder / REPORT, json.dumps(report.as_dict(), indent=2) + "\n")
    return report


def _right(made: TextClassifier, sentences: Any) -> tuple[int, int]:
    texts = made.texts(sentences)
    return int((scores(made.model, texts).argmax(-1) == texts.labels).sum()), len(texts)


def _accuracy(right_of: tuple[int, int]) -> dict[str, float | int]:
    return {"right": right_of[0], "texts": right_of[1], "accuracy": right_of[0] / right_of[1]}
