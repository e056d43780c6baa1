"""Texts as ids, for training, calibrating and measuring a classifier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from octavo.errors import DataError

PAD = 0
# Lengths are padded to multiples of this: few different shapes, each of which a backend prepares once.
MULTIPLE = 8
# Updates whose texts are sorted by length together, then shared out: batches of about one length, yet in random order.
WINDOW = 50
_EVALUATED = 64  # texts in a batch of an evaluation

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Texts:
    """Ids of each text, without padding, and labels ``[N]`` int64."""

    ids: tuple[tuple[int, ...], ...]
    labels: Tensor

    def __post_init__(self) -> None:
        """Check that there is a label for each text."""
        if len(self.ids) != len(self.labels) or not self.ids:
            raise DataError(
                f"{len(self.ids)} texts and {len(self.labels)} labels; accepted are as many, and one at least"
            )

    def __len__(self) -> int:
        """Texts."""
        return len(self.ids)

    def pick(self, rows: Sequence[int]) -> Texts:
        """Return some of the texts, in the given order."""
        return Texts(tuple(self.ids[row] for row in rows), self.labels[list(rows)])

    def sample(self, count: int, seed: int) -> Texts:
        """Return ``count`` different texts, or all if there are no more, drawn by ``seed``."""
        rows = np.random.default_rng(seed).permutation(len(self))[:count]
        return self.pick(rows.tolist())

    def inputs(self, rows: Sequence[int]) -> Batch:
        """Return ``input_ids`` and ``attention_mask``, [rows, T] int64, padded to the longest of them."""
        chosen = [self.ids[row] for row in rows]
        width = -(-max(map(len, chosen)) // MULTIPLE) * MULTIPLE
        ids = torch.full((len(chosen), width), PAD)
        for position, text in enumerate(chosen):
            ids[position, : len(text)] = torch.tensor(text)
        lengths = torch.tensor([len(text) for text in chosen])
        return {"input_ids": ids, "attention_mask": (torch.arange(width) < lengths[:, None]).long()}

    def batches(self, size: int = _EVALUATED) -> list[Batch]:
        """Return all texts as batches of inputs, those of like length together."""
        return [self.inputs(rows) for rows in self._by_length(size)]

    def labelled(self, size: int = _EVALUATED) -> list[Batch]:
        """Return all texts as :meth:`batches`, each with its ``labels``."""
        return [{**self.inputs(rows), "labels": self.labels[rows]} for rows in self._by_length(size)]

    def _by_length(self, size: int) -> Iterator[list[int]]:
        order = sorted(range(len(self)), key=lambda row: len(self.ids[row]))
        for start in range(0, len(order), size):
            yield order[start : start + size]


def scores(model: nn.Module, texts: Texts) -> Tensor:
    """Return the scores [N, C] float32 of all texts, on the CPU; the model is in eval mode meanwhile."""
    device, training = next(model.parameters()).device, model.training
    found: dict[int, Tensor] = {}
    model.eval()
    with torch.inference_mode():
        for rows in texts._by_length(_EVALUATED):
            inputs = {name: item.to(device) for name, item in texts.inputs(rows).items()}
            found.update(zip(rows, logits_of(model(**inputs)).float().cpu(), strict=True))
    model.train(training)
    return torch.stack([found[row] for row in range(len(texts))])


def logits_of(output: Any) -> Tensor:
    """Return the scores in what a model returned: itself, or its ``logits`` (transformers)."""
    return output if isinstance(output, Tensor) else output.logits


class ClassifierTask:
    """Training texts in random order, an epoch at a time; accuracy on validation texts. See :mod:`octavo.train`.

    Text number i of the endless stream is a function of ``seed`` and i: every epoch has its own permutation, sorted by
    length inside windows of 50 updates.
    """

    metric, goal = "accuracy", "max"

    def __init__(
        self, train: Texts, validation: Texts, batch_size: int, *, seed: int = 0, digest: str | None = None
    ) -> None:
        """Take the texts; ``batch_size`` is that of the run, ``digest`` what the run is bound to."""
        if batch_size > len(train):
            raise DataError(f"batch_size is {batch_size}; accepted are 1 to {len(train)}, the training texts")
        self._train, self._validation, self._batch_size, self._seed = train, validation, batch_size, seed
        self.updates_per_epoch, self.data_digest = len(train) // batch_size, digest
        self._order = lru_cache(maxsize=1)(self._make_order)

    def batch(self, step: int, micro: int, start: int, size: int) -> Batch:
        """Return inputs and labels of a part of an update."""
        epoch, update = divmod(step, self.updates_per_epoch)
        first = update * self._batch_size + start
        rows = self._order(epoch)[first : first + size]
        return {**self._train.inputs(rows), "labels": self._train.labels[rows]}

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int | Tensor, dict[str, int | Tensor]]:
        """Return the summed cross-entropy, the texts, and how many were right."""
        inputs, labels = {name: item for name, item in batch.items() if name != "labels"}, batch["labels"]
        logits_BC = logits_of(model(**inputs)).float()
        right = (logits_BC.argmax(-1) == labels).sum()
        return functional.cross_entropy(logits_BC, labels, reduction="sum"), len(labels), {"right": right}

    def evaluate(self, model: nn.Module, *, rank: int = 0, world: int = 1) -> dict[str, tuple[float, float]]:
        """Return the share of validation texts whose highest score is that of their label."""
        part = self._validation.pick(range(rank, len(self._validation), world))
        return {"accuracy": (float((scores(model, part).argmax(-1) == part.labels).sum()), float(len(part)))}

    def _make_order(self, epoch: int) -> list[int]:
        random = np.random.default_rng((self._seed, epoch))
        used = self.updates_per_epoch * self._batch_size
        order = random.permutation(len(self._train))[:used].tolist()
        made: list[int] = []
        for start in range(0, used, WINDOW * self._batch_size):
            window = sorted(order[start : start + WINDOW * self._batch_size], key=lambda row: len(self._train.ids[row]))
            batches = [window[i : i + self._batch_size] for i in range(0, len(window), self._batch_size)]
            for position in random.permutation(len(batches)).tolist():
                made += batches[position]
        return made
