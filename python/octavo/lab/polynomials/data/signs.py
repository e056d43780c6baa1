"""Text classifications that need no download: which sign a term of a product of two factors has."""

from __future__ import annotations

import re

from octavo.data.labelled import Sentences, Split
from octavo.lab.polynomials.data.splits import splits

LABELS = ("negative", "none", "positive")
# A letter or function that is not squared, with the sign of its term in front.
_LINEAR = re.compile(r"([+-]?)(?:\d+\*)?(?:(?:sin|cos|tan)\([a-z]\)|[a-z])(?!\*\*|[a-z()])")
# A number that is no factor and no exponent.
_CONSTANT = re.compile(r"([+-]?)(?<![\d*])\d+(?![\d*])")
TERMS = {"linear": _LINEAR, "constant": _CONSTANT}


def sign(right: str, term: str = "linear") -> int:
    """Return 0, 1 or 2 for a right side whose ``linear`` or ``constant`` term is negative, absent or positive."""
    found = TERMS[term].search(right)
    return 1 if found is None else (0 if found[1] == "-" else 2)


def load(train: int, *, validation: int = 2000, test: int = 4000, seed: int = 0, term: str = "linear") -> Split:
    """Return left sides such as ``(7-3*z)*(2*z+5)`` with the sign of the linear or constant ``term`` when expanded.

    ``train`` lines may repeat, as they do in the law of the lines; none of them is a validation or test line.
    Deterministic in all arguments. Raises DataError for sizes outside the limits of :func:`splits`.
    """
    data = splits(seed, validation, test)
    parts = (data.train.lines(0, train), data.validation, data.test)
    found = [_sentences(lines, term) for lines in parts]
    return Split(found[0], found[1], found[2])


def _sentences(lines: list[str], term: str) -> Sentences:
    lefts, rights = zip(*(line.split("=") for line in lines), strict=True)
    return Sentences(tuple(lefts), tuple(sign(right, term) for right in rights))
