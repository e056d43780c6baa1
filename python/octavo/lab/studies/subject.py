"""The subject of a study: a trained model, its calibration, validation and test texts, and how to train it further.

A subject never hands out the model itself: every point works on a copy, and none can touch another's. Copies and
batches are on the subject's device.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from octavo.data.batches import map_leaves
from octavo.data.labelled import Split
from octavo.lab.classifiers.text_classifier import TextClassifier
from octavo.lab.classifiers.texts import ClassifierTask, scores
from octavo.lab.classifiers.training_run import Hyperparameters
from octavo.lab.polynomials.accuracy import EncodedLines, exact_match
from octavo.lab.polynomials.data import splits
from octavo.lab.polynomials.line_task import PolynomialTask
from octavo.lab.polynomials.shipped import load_shipped
from octavo.lab.polynomials.train_configs import SPLIT_SEED, TEST, VALIDATION
from octavo.search.fingerprints import identity_of

# Where in the stream of polynomial lines calibration begins: past all that training can read.
_CALIBRATION_START = 1 << 62
_CPU = torch.device("cpu")


class Subject(Protocol):
    """A trained model and its texts.

    ``identity``: plain values that decide every number; ``metric``: what is reported; ``steps``, ``batch_size``,
    ``learning_rate`` and ``precision``: of the training that the model comes from, which training through a format
    takes a share of. ``device``: where copies of the model, and batches, are.
    """

    name: str
    metric: str
    identity: dict[str, Any]
    steps: int
    batch_size: int
    learning_rate: float
    precision: str
    device: torch.device
    held_out: bool  # test texts were cut from training
    blueprint: dict[str, Any]  # plain values from which another process makes the model without its weights

    @property
    def texts(self) -> int | None:
        """Training texts; None: they have no end."""
        ...

    def model(self) -> nn.Module:
        """Return a copy of the float32 model, in eval mode."""
        ...

    def calibration(self, samples: int, seed: int) -> list[Any]:
        """Return batches of ``samples`` training texts, drawn by ``seed``."""
        ...

    def right(self, model: nn.Module, part: str) -> Tensor:
        """Return for each text of ``validation`` or ``test`` whether the model is right, ``[N]`` bool."""
        ...

    def distance(self, model: nn.Module) -> float:
        """Return how far the model is from the float32 one on validation texts: mean relative entropy, in nats."""
        ...

    def inputs(self, count: int, size: int) -> list[Any]:
        """Return the first ``count`` test texts as batches of ``size``."""
        ...

    def task(self, seed: int) -> Any:
        """Return what the model trains on, as :mod:`octavo.train` sees it, in an order that ``seed`` decides."""
        ...


class ClassifierSubject:
    """A text classifier; see :class:`Subject`. ``head``: the path of the Linear layer that gives the scores."""

    metric = "accuracy"

    def __init__(
        self,
        name: str,
        made: TextClassifier,
        split: Split,
        hyperparameters: Hyperparameters,
        *,
        steps: int,
        judged: int = 512,
        device: torch.device = _CPU,
    ) -> None:
        """Take a classifier that was trained in ``steps``; ``judged``: validation texts that choices look at."""
        self.name, self.steps, self.head = name, steps, made.head
        self.batch_size, self.precision = hyperparameters.batch_size, hyperparameters.precision
        self.learning_rate = hyperparameters.learning_rate
        self._made, self._model, self._train = made, made.model.eval(), made.texts(split.train)
        self._parts = {"validation": made.texts(split.validation), "test": made.texts(split.test)}
        self._judged = self._parts["validation"].sample(judged, seed=0)
        self.blueprint = made.blueprint()
        self.identity = {"model": name, "length": made.length, "data": split.digest(), "judged": judged}
        self.identity |= identity_of(weights=self._model, ids=[self._train, self._parts]).digests | elsewhere(device)
        self.device, self._model = device, self._model.to(device)
        self._before = functional.log_softmax(scores(self._model, self._judged), -1)
        self.held_out, self.texts = split.held_out, len(split.train)

    def model(self) -> nn.Module:
        """Return a copy of the float32 model."""
        return deepcopy(self._model)

    def classifier(self) -> TextClassifier:
        """Return a copy of the model, with what turns texts into its ids."""
        return replace(self._made, model=self.model())

    def calibration(self, samples: int, seed: int) -> list[Any]:
        """Return batches of inputs, by keyword, drawn from training."""
        return placed(self._train.sample(samples, seed).batches(32), self.device)

    def labelled(self, samples: int, seed: int) -> list[Any]:
        """Return the batches of :meth:`calibration` with their ``labels``."""
        return placed(self._train.sample(samples, seed).labelled(32), self.device)

    def right(self, model: nn.Module, part: str) -> Tensor:
        """Return whether the highest score is that of the label."""
        texts = self._parts[part]
        return scores(model, texts).argmax(-1) == texts.labels

    def distance(self, model: nn.Module) -> float:
        """Return the mean relative entropy of the predicted classes."""
        after = functional.log_softmax(scores(model, self._judged), -1)
        return functional.kl_div(after, self._before, reduction="batchmean", log_target=True).item()

    def inputs(self, count: int, size: int) -> list[Any]:
        """Return test texts, those of like length together."""
        texts = self._parts["test"]
        return placed(texts.pick(range(min(count, len(texts)))).batches(size), self.device)

    def task(self, seed: int) -> ClassifierTask:
        """Return the training texts, with the first 256 validation texts to watch."""
        watched = self._parts["validation"].pick(range(min(256, len(self._parts["validation"]))))
        return ClassifierTask(self._train, watched, self.batch_size, seed=seed)


class PolynomialSubject:
    """The shipped model that expands polynomials, by exact match; see :class:`Subject`."""

    name, metric = "polynomials", "exact match"
    steps, batch_size, learning_rate, precision = 31_000, 64, 4e-4, "fp32"
    held_out, texts = False, None

    def __init__(self, *, lines: int = 2000, judged: int = 512, device: torch.device = _CPU) -> None:
        """Load the model; ``lines``: test lines, of which there are 20,000; ``judged``: as for a classifier."""
        model, self._tokenizer = load_shipped()
        self._model: nn.Module = model
        self._data = splits(SPLIT_SEED, VALIDATION, TEST)
        self._parts = {
            "validation": EncodedLines.of(self._data.validation[:lines], self._tokenizer),
            "test": EncodedLines.of(self._data.test[:lines], self._tokenizer),
        }
        self._judged = EncodedLines.of(self._data.validation[:judged], self._tokenizer)
        self.blueprint = {"kind": self.name, "config": model.config.as_dict()}
        self.identity = {"model": self.name, "lines": lines, "judged": judged} | elsewhere(device)
        self.device = torch.device("cpu")
        called = deepcopy(model)
        self._before = self._log_probabilities(called)  # makes tables, which belong to the identity
        self.identity |= identity_of(weights=called, ids=[self._parts, self._judged]).digests
        if device.type != "cpu":
            self.device, self._model = device, model.to(device)
            self._before = self._log_probabilities(self._model)

    def model(self) -> nn.Module:
        """Return a copy of the float32 model."""
        return deepcopy(self._model)

    def calibration(self, samples: int, seed: int) -> list[Any]:
        """Return (source, target) batches of training lines."""
        start = _CALIBRATION_START + seed * samples
        source, target = self._data.train.batch(start, samples, self._tokenizer)
        pairs = list(zip(torch.from_numpy(source).split(64), torch.from_numpy(target).split(64), strict=True))
        return placed(pairs, self.device)

    def right(self, model: nn.Module, part: str) -> Tensor:
        """Return whether greedy generation gives the line to the last character."""
        return exact_match(model.eval(), self._parts[part])

    def distance(self, model: nn.Module) -> float:
        """Return the mean relative entropy of the next token, given the right ones before it."""
        real = self._judged.target != 0
        after = self._log_probabilities(model)
        return functional.kl_div(after[real], self._before[real], reduction="batchmean", log_target=True).item()

    def inputs(self, count: int, size: int) -> list[Any]:
        """Return (source, target) test lines."""
        lines = self._parts["test"]
        pairs = list(zip(lines.source[:count].split(size), lines.target[:count].split(size), strict=True))
        return placed(pairs, self.device)

    def task(self, seed: int) -> PolynomialTask:
        """Return the training stream from a place that ``seed`` decides."""
        return PolynomialTask(self._data, self.batch_size, seed=1 + seed, limit=256)

    def _log_probabilities(self, model: nn.Module) -> Tensor:
        model.eval()
        with torch.inference_mode():
            lines = placed([(self._judged.source, self._judged.target)], self.device)[0]
            return functional.log_softmax(model(*lines).float(), -1).cpu()


def placed(batches: list[Any], device: torch.device) -> list[Any]:
    """Return batches with their tensors on a device."""
    return [map_leaves(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, batch) for batch in batches]


def elsewhere(device: torch.device) -> dict[str, str]:
    """Return what a device adds to the settings of a point: its kind, and nothing of a CPU.

    Sums run in another order on a GPU, so that points of the two are different ones.
    """
    return {} if device.type == "cpu" else {"device": device.type}


def digest(model: nn.Module) -> str:
    """Return a SHA-256 of everything that decides what a model computes."""
    return identity_of(weights=model).digests["weights"]
