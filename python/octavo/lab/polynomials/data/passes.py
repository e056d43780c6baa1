"""A user's own lines, trained on in passes: :class:`Passes` reads like a :class:`Stream` and never ends."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from octavo.data._arguments import whole
from octavo.data.tokenizer import CharTokenizer
from octavo.errors import DataError, DTypeError

#: Characters of the longest left side and of the longest right side that the models of this package take: 32 tokens, of
#: which the last of the right side is its end.
FITS = (32, 31)


class Passes:
    """An endless sequence of a user's lines: pass after pass over all of them, each in an order of its own.

    Line number i is a function of the lines, the seed and i alone, so that any part can be read at any time and a
    training run resumes from the number of its next line. All lines are checked and translated at once.

    ``lines``: strings ``left=right``. ``seed``: of the orders, 0..2**64 - 1. ``longest``: characters that the sides may
    have. Raises DataError with the number of the line, counted from 1, and the reason for a line without ``=`` or with
    several, an empty or too long side, a character that is not in ``tokenizer``, by default that of
    :meth:`CharTokenizer.polynomials`; and for no lines at all.
    """

    def __init__(
        self,
        lines: Iterable[str],
        seed: int = 0,
        *,
        tokenizer: CharTokenizer | None = None,
        longest: tuple[int, int] = FITS,
    ) -> None:
        """Check and translate the lines."""
        if isinstance(lines, str):
            raise DTypeError("lines is a string; accepted are strings, one for each line")
        self._lines, self._seed = list(lines), whole("seed", seed)
        self._tokenizer = CharTokenizer.polynomials() if tokenizer is None else tokenizer
        if not self._lines:
            raise DataError("there are no lines to train on; accepted is one and more")
        sides = [_sides(number, line, longest) for number, line in enumerate(self._lines, 1)]
        self._source, self._lengths = self._encode([left for left, _ in sides], "left", end=False)
        self._target, self._target_lengths = self._encode([right for _, right in sides], "right", end=True)
        self._orders: dict[int, NDArray[np.int64]] = {}

    @property
    def seed(self) -> int:
        """The seed it was made with."""
        return self._seed

    @property
    def digest(self) -> str:
        """SHA-256 of the lines in their order, in hexadecimal."""
        return sha256("\n".join(self._lines).encode()).hexdigest()

    def lines(self, start: int, count: int) -> list[str]:
        """Return the lines ``start`` to ``start + count`` of the sequence. Raises DataError for numbers below 0."""
        return [self._lines[row] for row in self._rows(start, count).tolist()]

    def batch(
        self, start: int, count: int, tokenizer: CharTokenizer, *, pad_to: tuple[int, int] | None = None
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return the lines ``start`` to ``start + count`` as ids, as :meth:`Stream.batch` does.

        Raises DataError for a tokenizer that is not the one it was made with, and a line longer than ``pad_to``.
        """
        if tokenizer != self._tokenizer:
            raise DataError(f"these lines are translated by {self._tokenizer!r}; got {tokenizer!r}")
        rows = self._rows(start, count)
        widths = (int(lengths[rows].max(initial=0)) for lengths in (self._lengths, self._target_lengths))
        source, target = (
            _fit(ids[rows, :width], width if pad_to is None else wanted)
            for ids, width, wanted in zip((self._source, self._target), widths, pad_to or (0, 0), strict=True)
        )
        return source, target

    def __len__(self) -> int:
        """Lines of one pass."""
        return len(self._lines)

    def __repr__(self) -> str:
        """The number of lines and the seed."""
        return f"Passes({len(self):,} lines, seed={self.seed})"

    def _encode(self, texts: list[str], side: str, *, end: bool) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        try:
            return self._tokenizer.encode(texts, end=end)
        except DataError as error:
            raise DataError(f"{side} side of {error}") from error

    def _rows(self, start: int, count: int) -> NDArray[np.int64]:
        """Return which of the lines those of the sequence are."""
        start, stop, size = whole("start", start), whole("start", start) + whole("count", count), len(self)
        parts = [np.empty(0, np.int64)]
        while start < stop:
            number, place = divmod(start, size)
            part = self._order(number)[place : place + stop - start]
            parts.append(part)
            start += len(part)
        return np.concatenate(parts)

    def _order(self, number: int) -> NDArray[np.int64]:
        """Return the order of a pass. Made from raw words, which numpy promises never to change."""
        order = self._orders.get(number)
        if order is None:
            words = np.random.PCG64(np.random.SeedSequence([self._seed, number])).random_raw(len(self))
            order = np.argsort(words, kind="stable")
            self._orders = {**dict(list(self._orders.items())[-1:]), number: order}
        return order


def _sides(number: int, line: str, longest: tuple[int, int]) -> tuple[str, str]:
    if not isinstance(line, str):
        raise DTypeError(f"line {number} is a {type(line).__name__}; accepted are strings")
    left, _, right = line.partition("=")
    if line.count("=") != 1:
        raise DataError(f"line {number}: {line.count('=')} '=' in {line[:80]!r}; a line has one")
    for name, side, most in zip(("left", "right"), (left, right), longest, strict=True):
        if not 1 <= len(side) <= most:
            raise DataError(f"line {number}: the {name} side has {len(side)} characters; accepted are 1 to {most}")
    return left, right


def _fit(ids: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    if ids.shape[1] > width:
        raise DataError(f"a line has {ids.shape[1]} tokens; pad_to is {width}")
    return np.pad(ids, ((0, 0), (0, width - ids.shape[1])))
