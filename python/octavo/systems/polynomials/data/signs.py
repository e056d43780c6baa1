"""A text classification that needs no download: which sign the linear term of a product of two factors has."""

from __future__ import annotations

import re

from octavo.systems.polynomials.data.splits import splits
from octavo.systems.sentences.sentiment import Sentences, Split

LABELS = ("negative", "none", "positive")
# A letter or function that is not squared, with the sign of its term in front.
_LINEAR = re.compile(r"([+-]?)(?:\d+\*)?(?:(?:sin|cos|tan)\([a-z]\)|[a-z])(?!\*\*|[a-z()])")


def sign(right: str) -> int:
    """Return 0, 1 or 2 for a right side whose linear term is negative, absent or positive."""
    found = _LINEAR.search(right)
    return 1 if found is None else (0 if found[1] == "-" else 2)


def load(train: int, *, validation: int = 2000, test: int = 4000, seed: int = 0) -> Split:
    """Return left sides such as ``(7-3*z)*(2*z+5)`` with the sign of the linear term of their expansion.

    ``train`` lines may repeat, as they do in the law of the lines; none of them is a validation or test line.
    Deterministic in all arguments. Raises DataError for sizes outside the limits of :func:`splits`.
    """
    data = splits(seed, validation, test)
    return Split(*(_sentences(lines) for lines in (data.train.lines(0, train), data.validation, data.test)))


def _sentences(lines: list[str]) -> Sentences:
    lefts, rights = zip(*(line.split("=") for line in lines), strict=True)
    return Sentences(tuple(lefts), tuple(map(sign, rights)))
