"""Batches of tokens from shards, with exact accounts of what was read: the reference order, or whole documents
shuffled.

*reference*: shards in order, consecutive windows of ``batch * context`` tokens (and one more for the shifted target),
no shuffling, borders of documents ignored; where fewer are left in a shard the tail is dropped and the next begins,
after the last the first. *documents*: in every epoch all documents in a new order, one behind the other, cut into the
same windows. *easy_first*: the same in one order, from the document whose tokens are the most frequent ones to that
whose are the rarest: by the mean of ``-log p`` of a document's tokens, p their shares of all tokens.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from octavo.data._arguments import Paths, whole
from octavo.data.shards import check_ids, document_starts, find_shards, read_shard
from octavo.errors import DataError, DTypeError
from octavo.storage.arguments import checks_arguments
from octavo.storage.reading import shown

Order: TypeAlias = Literal["reference", "documents", "easy_first"]
ORDERS: Final = ("reference", "documents", "easy_first")


class TokenBatch(NamedTuple):
    """A batch of windows, one behind the other."""

    inputs: NDArray[np.int64]
    """Ids, ``[batch, context]``."""
    targets: NDArray[np.int64]
    """The next token of each, ``[batch, context]``."""
    documents: NDArray[np.int32]
    """Number of each token's document in its row, from 0, ``[batch, context]``; attention stays inside a document."""


@dataclass(frozen=True)
class TokenAccount:
    """What a loader has read, over all ranks."""

    tokens: int
    """Targets given."""
    dropped: int
    """Tokens in tails that were passed over."""
    epoch: int
    """Times that all shards were read before."""


class TokenLoader:
    """Batches of windows without an end; ``next(loader)``, or a loop.

    Args:
        paths: shards, or folders of them.
        batch: rows of a batch.
        context: tokens of a row.
        vocabulary: ids from this number on are refused when their shard is opened.
        end: the token that every document begins with, an id below ``vocabulary``.
        order: ``reference``, ``documents`` or ``easy_first``.
        split: ``train`` or ``val``, as for :func:`find_shards`.
        seed: of the order of documents.
        rank: number of this process.
        ranks: number of processes; each takes its part of each ``ranks * batch`` rows.
        tokens: the first of all shards, which alone are read; default: all of them. An order by difficulty takes those
            that a run will train on.

    Raises:
        DataError: at once, for broken shards and for shards without one batch.
    """

    @checks_arguments
    def __init__(
        self,
        paths: Paths,
        *,
        batch: int,
        context: int,
        vocabulary: int = 50257,
        end: int = 50256,
        order: Order | str = "reference",
        split: str | None = None,
        seed: int = 0,
        rank: int = 0,
        ranks: int = 1,
        tokens: int | None = None,
    ) -> None:
        """Check every header."""
        if order not in ORDERS:
            raise DataError(f"order {order!r}; accepted are {', '.join(map(repr, ORDERS))}")
        for name, value in (("batch", batch), ("context", context), ("ranks", ranks), ("vocabulary", vocabulary)):
            if whole(name, value) < 1:
                raise DataError(f"{name} {value}; accepted are 1 and more")
        if whole("end", end) >= vocabulary:
            raise DataError(f"end {end}; accepted are ids below the vocabulary, {vocabulary}")
        if not 0 <= whole("rank", rank) < ranks:
            raise DataError(f"rank {rank} of {ranks}; accepted are 0 to {ranks - 1}")
        self.files = find_shards(paths, split)
        self.batch, self.context, self.vocabulary, self.end = batch, context, vocabulary, end
        self.order, self.seed, self.rank, self.ranks = order, whole("seed", seed), rank, ranks
        self.tokens = tokens
        self._shards = _first([read_shard(path) for path in self.files], tokens)
        self._checked = [False] * len(self.files)
        self._lengths = [len(shard) for shard in self._shards]
        most = max(self._runs)
        if most < self.window + 1:
            raise DataError(
                f"{self.files[0]} and {len(self.files) - 1} more: {most} tokens in a row; a batch of "
                f"{ranks} x {batch} x {context} and the last target take {self.window + 1}"
            )
        self._tokens = self._dropped = self._epoch = self._shard = self._at = 0
        self._documents: _OrderedDocuments | None = None

    @property
    def window(self) -> int:
        """Tokens by which each batch moves on, over all ranks."""
        return self.batch * self.context * self.ranks

    @property
    def account(self) -> TokenAccount:
        """What was read so far."""
        return TokenAccount(self._tokens, self._dropped, self._epoch)

    @property
    def total(self) -> int:
        """Tokens of all shards."""
        return sum(self._lengths)

    def __iter__(self) -> Iterator[TokenBatch]:
        """Return itself."""
        return self

    def __next__(self) -> TokenBatch:
        """Return the next batch of this rank."""
        tokens = self._reference() if self.order == "reference" else self._shuffled()
        self._tokens += self.window
        inputs, targets = (part.reshape(self.batch, self.context) for part in (tokens[:-1], tokens[1:]))
        # A row that begins inside a document counts from there on.
        documents = np.cumsum(inputs == self.end, axis=1, dtype=np.int32)
        documents -= inputs[:, :1] == self.end
        return TokenBatch(inputs, targets, documents)

    def state(self) -> dict[str, Any]:
        """Return where the loader stands, for a checkpoint.

        Returns:
            Plain values.
        """
        return {
            "order": self.order,
            "seed": self.seed,
            "window": self.window,
            "lengths": list(self._lengths),
            "shard": self._shard,
            "at": self._at,
            "epoch": self._epoch,
            "tokens": self._tokens,
            "dropped": self._dropped,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go to where another loader of the same shards stood.

        Args:
            state: of :meth:`state`.

        Raises:
            DataError: for other shards, orders or windows.
        """
        mine = self.state()
        if not isinstance(state, dict):
            raise DTypeError(f"state is a {type(state).__name__}; accepted is what state() of a loader returned")
        for name in ("order", "seed", "window", "lengths"):
            if name not in state or state[name] != mine[name]:
                raise DataError(f"state: {name} is {shown(state.get(name))}; this loader has {shown(mine[name])}")
        values = {
            name: whole(f"state: {name}", state.get(name, -1)) for name in ("shard", "at", "epoch", "tokens", "dropped")
        }
        lengths = self._runs
        if values["shard"] >= len(lengths) or values["at"] > lengths[values["shard"]]:
            raise DataError(f"state: shard {values['shard']}, token {values['at']}: outside of these shards")
        self._shard, self._at, self._epoch = values["shard"], values["at"], values["epoch"]
        self._tokens, self._dropped, self._documents = values["tokens"], values["dropped"], None

    def continued(self, *, batch: int, context: int) -> TokenLoader:
        """Return a loader of other windows that goes on where this one stands.

        Args:
            batch: rows of a batch.
            context: tokens of a row.

        Returns:
            The loader.

        Raises:
            DataError: as the class.
        """
        other = TokenLoader(
            self.files, batch=batch, context=context, vocabulary=self.vocabulary, end=self.end, order=self.order,
            seed=self.seed, rank=self.rank, ranks=self.ranks, tokens=self.tokens,
        )  # fmt: skip
        other._shard, other._at, other._epoch = self._shard, self._at, self._epoch
        other._tokens, other._dropped = self._tokens, self._dropped
        return other

    def skip(self, batches: int) -> None:
        """Pass over batches as if they had been read, in a time that does not grow with their number.

        Args:
            batches: number of batches.
        """
        lengths = self._runs
        self._tokens += whole("batches", batches) * self.window
        inside = [max(0, length - 1) // self.window for length in lengths]
        while batches:
            here = max(0, lengths[self._shard] - self._at - 1) // self.window
            if batches <= here:
                self._at += batches * self.window
                return
            batches -= here
            self._dropped += lengths[self._shard] - self._at - here * self.window
            self._shard, self._at, self._documents = (self._shard + 1) % len(lengths), 0, None
            if self._shard:
                continue
            epochs = (batches - 1) // sum(inside)
            self._epoch += 1 + epochs
            self._dropped += epochs * (sum(lengths) - sum(inside) * self.window)
            batches -= epochs * sum(inside)

    @property
    def _runs(self) -> list[int]:
        """Tokens in a row: of each shard in the reference order, else of all documents one behind the other."""
        return self._lengths if self.order == "reference" else [self.total]

    def _open(self, shard: int) -> NDArray[np.uint16]:
        ids = self._shards[shard]
        if not self._checked[shard]:
            if len(ids):
                check_ids(os.fspath(self.files[shard]), ids, self.vocabulary)
            self._checked[shard] = True
        return ids

    def _reference(self) -> NDArray[np.int64]:
        while self._lengths[self._shard] - self._at < self.window + 1:
            self._dropped += self._lengths[self._shard] - self._at
            self._shard, self._at = (self._shard + 1) % len(self.files), 0
            self._epoch += self._shard == 0
        begin = self._at + self.rank * self.batch * self.context
        self._at += self.window
        return self._open(self._shard)[begin : begin + self.batch * self.context + 1].astype(np.int64)

    def _shuffled(self) -> NDArray[np.int64]:
        total = sum(self._lengths)
        if total - self._at < self.window + 1:
            self._dropped += total - self._at
            self._at, self._documents = 0, None
            self._epoch += 1
        if self._documents is None:
            shards = [self._open(shard) for shard in range(len(self.files))]
            seed = None if self.order == "easy_first" else self.seed
            self._documents = _OrderedDocuments(shards, self.end, seed, self._epoch)
        begin = self._at + self.rank * self.batch * self.context
        self._at += self.window
        return self._documents.read(begin, self.batch * self.context + 1)


def _first(shards: list[NDArray[np.uint16]], tokens: int | None) -> list[NDArray[np.uint16]]:
    """Return the first tokens of shards, those behind them empty."""
    if tokens is None:
        return shards
    left = whole("tokens", tokens)
    pieces = []
    for shard in shards:
        pieces.append(shard[:left])
        left -= len(pieces[-1])
    return pieces


class _OrderedDocuments:
    """The documents of an epoch, one behind the other: as seed and epoch decide, or without a seed the easy ones first.

    A document is easy whose tokens have a low mean surprise under the frequencies of all.
    """

    def __init__(self, shards: Sequence[NDArray[np.uint16]], end: int, seed: int | None, epoch: int) -> None:
        documents = [(number, document_starts(ids, end), len(ids)) for number, ids in enumerate(shards) if len(ids)]
        self._shards = shards
        self._shard = np.concatenate([np.full(len(starts), number) for number, starts, _ in documents])
        self._begin = np.concatenate([starts for _, starts, _ in documents])
        lengths = np.concatenate([np.diff(starts, append=size) for _, starts, size in documents])
        if seed is None:
            surprises = _surprises(shards)
            means = [np.add.reduceat(surprises[shards[number]], starts) for number, starts, _ in documents]
            order = np.argsort(np.concatenate(means) / lengths, kind="stable")
        else:
            order = np.random.Generator(np.random.PCG64([seed, epoch])).permutation(len(lengths))
        self._shard, self._begin = self._shard[order], self._begin[order]
        self._ends = np.cumsum(lengths[order])

    def read(self, begin: int, count: int) -> NDArray[np.int64]:
        """Return ``count`` tokens from ``begin`` on."""
        out = np.empty(count, np.int64)
        at, document = 0, int(np.searchsorted(self._ends, begin, side="right"))
        while at < count:
            end = int(self._ends[document])
            length = min(end - begin, count - at)
            before = int(self._ends[document - 1]) if document else 0
            first = int(self._begin[document]) + begin - before
            out[at : at + length] = self._shards[self._shard[document]][first : first + length]
            at, begin, document = at + length, begin + length, document + 1
        return out


def _surprises(shards: Sequence[NDArray[np.uint16]]) -> NDArray[np.float64]:
    """Return ``-log p`` of every id, p its share of all tokens; 0 for those that are none of them."""
    counts = sum(np.bincount(ids, minlength=1 << 16) for ids in shards)
    assert isinstance(counts, np.ndarray)  # there is a shard
    return np.where(counts > 0, np.log(counts.sum()) - np.log(np.maximum(counts, 1)), 0.0)
