"""Lines by number: :class:`Stream`, and what a left side says about itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo import _core
from octavo.data._arguments import address, check_text, whole
from octavo.data.tokenizer import CharTokenizer
from octavo.errors import DTypeError

#: The 28 characters of both sides, in ascending order; the ``=`` between them is of neither.
CHARACTERS = CharTokenizer.polynomials().characters
#: Characters of the longest left side and of the longest right side. Of the latter one in three million has 29.
LONGEST = (29, 29)

_FORMS = ("monomial", "monomial times sum", "square", "product")
#: Lines of one call into Rust, about half a second.
_MOST = 1 << 20
#: The kinds of left sides, of which each line has one: ``c*X**2``, ``c*X*(aX+b)``, ``(aX+b)**2``, ``(aX+b)*(cX+d)``;
#: and the same where X is a function.
KINDS = (*_FORMS, *(f"{form} with function" for form in _FORMS))


def generate(count: int, *, seed: int = 0, start: int = 0) -> list[str]:
    """Return the lines ``start`` to ``start + count`` of stream ``seed``, as ``left=right``.

    Line i is a function of (seed, i) alone. Raises DataError for numbers outside 0..2**64 - 1.
    """
    return Stream(seed).lines(start, count)


def expand(left: str) -> str:
    """Return the right side of a left side: its expansion as SymPy prints it.

    Raises DataError with column and reason for a text that is no left side of the law, or not as SymPy prints it.
    """
    return _core._polynomial_expand(_string(left))


def kind(left: str) -> str:
    """Return which of :data:`KINDS` a left side is. Raises DataError as :func:`expand`."""
    form, function = _core._polynomial_kind(_string(left))
    return KINDS[form + len(_FORMS) * function]


class Stream:
    """An endless sequence of lines in which line number i is a function of the seed, the exclusions and i alone.

    It has no state: any part can be read at any time, in any order, in any process, and a training run resumes from the
    number of its next line. Results do not depend on the number of threads.

    ``seed``: 0..2**64 - 1. ``exclude``: lines, or left sides, that never occur; line i is the first of a sequence of
    draws, itself a function of (seed, i), that is not excluded. Raises DataError for an excluded text that is no line
    of the law.
    """

    def __init__(self, seed: int, exclude: Iterable[str] | None = None) -> None:
        """Make the stream of a seed."""
        self._seed = whole("seed", seed)
        if isinstance(exclude, str):
            raise DTypeError("exclude is a string; accepted are strings, one for each line")
        held_out = (_string(line, f"exclude, line {number}") for number, line in enumerate(exclude or (), 1))
        self._exclude = tuple(dict.fromkeys(line.partition("=")[0] for line in held_out))
        self._core = _core._PolynomialStream(self._seed, self._exclude)

    @property
    def seed(self) -> int:
        """The seed it was made with."""
        return self._seed

    @property
    def excluded(self) -> int:
        """Number of distinct lines that are excluded."""
        return self._core.excluded

    def lines(self, start: int, count: int) -> list[str]:
        """Return the lines ``start`` to ``start + count``, as ``left=right``.

        Raises DataError for numbers outside 0..2**64 - 1, or if so much is excluded that no line is found.
        """
        start, count = whole("start", start), whole("count", count)
        lines: list[str] = []
        for begin in range(start, start + count, _MOST):  # in pieces, between which Ctrl-C is heard
            text = self._core.text(begin, min(_MOST, start + count - begin))
            lines += text.decode("ascii").split("\n")[:-1]
        return lines

    def batch(
        self, start: int, count: int, tokenizer: CharTokenizer, *, pad_to: tuple[int, int] | None = None
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return the lines ``start`` to ``start + count`` as ids of ``tokenizer``.

        Returns the left sides [count, S] and the right sides with the end token behind them [count, T], uint8, filled
        with the pad token. S and T are what the longest line of the batch needs, or ``pad_to``; (29, 30) fits all.

        Raises DataError for a tokenizer without one of the 28 characters, a line longer than ``pad_to``, and as
        :meth:`lines`.
        """
        start, count = whole("start", start), whole("count", count)
        if not isinstance(tokenizer, CharTokenizer):
            raise DTypeError(f"tokenizer is a {type(tokenizer).__name__}; accepted is a CharTokenizer")
        if pad_to is None:
            width, target_width = LONGEST[0], LONGEST[1] + 1
        else:
            width, target_width = (whole("pad_to", length) for length in pad_to)
            pad_to = (width, target_width)
        source, target = np.empty(count * width, np.uint8), np.empty(count * target_width, np.uint8)
        spans = (address(source), source.size), (address(target), target.size)
        width, target_width = self._core.batch(start, count, tokenizer._core, *spans, pad_to)
        return (
            source[: count * width].reshape(count, width),
            target[: count * target_width].reshape(count, target_width),
        )

    def __repr__(self) -> str:
        """The seed and the number of exclusions."""
        return f"Stream(seed={self.seed}, excluded={self.excluded})"

    def __reduce__(self) -> tuple[type[Stream], tuple[int, tuple[str, ...]]]:
        """Pickle the seed and the exclusions."""
        return Stream, (self._seed, self._exclude)


def _string(left: Any, name: str = "left side") -> str:
    check_text(name, left)
    return left
