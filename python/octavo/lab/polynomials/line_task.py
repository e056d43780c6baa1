"""The training task of the polynomial models, for :mod:`octavo.train`."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from octavo.data import CharTokenizer
from octavo.lab.polynomials.accuracy import EncodedLines, exact_match
from octavo.lab.polynomials.data import Passes, Splits, Stream
from octavo.lab.polynomials.seq2seq import PAD

# Lengths are padded to multiples of this: few different shapes, each of which a backend prepares once.
MULTIPLE = 4
# Lines between the places where two seeds begin: more than any run reads.
RUN = 1 << 40

Batch = tuple[Tensor, Tensor]


class PolynomialTask:
    """Lines of a training stream, or passes over one's own lines; exact match on validation lines.

    Update ``s`` takes lines ``s * batch_size`` and following, sorted by length, so that micro-batches hold lines of
    about one length and little padding. Only inside an update: if whole updates differed in length, training would need
    four times as many (measured).
    """

    metric, goal = "exact", "max"

    def __init__(
        self,
        data: Splits[Stream] | Splits[list[str]],
        batch_size: int,
        *,
        seed: int = 0,
        limit: int | None = None,
    ) -> None:
        """Take the training lines and the first ``limit`` validation lines.

        ``data``: of a stream, which is read from a place that ``seed`` chooses, or of lists, whose lines are trained on
        in passes, each in an order that ``seed`` and its number choose. Raises DataError for a bad line in a list.
        """
        self.tokenizer = CharTokenizer.polynomials()
        self.stream, self.data_digest, self._first = _stream(data, seed, self.tokenizer)
        self._batch_size = batch_size
        self._validation = EncodedLines.of(data.validation[:limit], self.tokenizer)
        self._lines = lru_cache(maxsize=2)(self._make_lines)

    def batch(self, step: int, micro: int, start: int, size: int) -> Batch:
        """Return sources [size, S] and targets [size, T], uint8, padded with 0."""
        source, target = self._lines(step)
        rows = slice(start, start + size)
        return _trim(source[rows]), _trim(target[rows])

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Return the summed cross-entropy of the target tokens, their number, and how many source tokens there were."""
        source_BS, target_BT = batch
        logits_BTV = model(source_BS, target_BT)
        targets = target_BT.long()
        loss = functional.cross_entropy(
            logits_BTV.float().flatten(0, 1), targets.flatten(), ignore_index=PAD, reduction="sum"
        )
        return loss, (targets != PAD).sum(), {"source_tokens": (source_BS != PAD).sum()}

    def evaluate(self, model: nn.Module, *, rank: int = 0, world: int = 1) -> dict[str, tuple[float, float]]:
        """Return the share of validation lines that greedy generation gets right to the last character."""
        part = self._validation.part(rank, world)
        return {"exact": (float(exact_match(model, part).sum()), float(len(part)))}

    def _make_lines(self, step: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return the sources and targets of an update, sorted by length."""
        count = self._batch_size
        source, target = self.stream.batch(self._first + step * count, count, self.tokenizer)
        lengths, target_lengths = (source != PAD).sum(1), (target != PAD).sum(1)
        order = np.lexsort((target_lengths, -(-lengths // MULTIPLE)))
        return source[order], target[order]


def _stream(
    data: Splits[Stream] | Splits[list[str]], seed: int, tokenizer: CharTokenizer
) -> tuple[Stream | Passes, str | None, int]:
    """Return what is trained on, a digest of all lines if they are a user's own, and the number of the first line."""
    if isinstance(data.train, Stream):
        return data.train, None, seed * RUN
    passes = Passes(data.train, seed, tokenizer=tokenizer)
    held = "\n".join([*data.validation, "", *data.test])
    return passes, sha256(f"{passes.digest}\n{held}".encode()).hexdigest(), 0


def _trim(ids: NDArray[np.uint8]) -> Tensor:
    """Return rows without the columns in which all are padded, but for those up to a multiple of ``MULTIPLE``."""
    longest = int((ids != PAD).sum(1).max(initial=1))
    width = -(-longest // MULTIPLE) * MULTIPLE
    if width <= ids.shape[1]:
        return torch.from_numpy(np.ascontiguousarray(ids[:, :width]))
    return functional.pad(torch.from_numpy(ids), (0, width - ids.shape[1]), value=PAD)
