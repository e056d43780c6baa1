"""Right and wrong answers, counted: the one place where an answer is judged. Needs no torch."""

from __future__ import annotations

from collections import Counter

from octavo.errors import DataError
from octavo.lab.polynomials.data import KINDS, kind

#: The kind of left sides that the law of :mod:`octavo.lab.polynomials.data` does not have.
OTHER = "other"


class Tally:
    """Counts answers by the kind of their left sides. An answer is right to the last character, or wrong."""

    def __init__(self) -> None:
        """Begin at 0."""
        self._lines: Counter[str] = Counter()
        self._exact: Counter[str] = Counter()

    def add(self, left: str, right: str, given: str | None) -> bool:
        """Count an answer, None for none, and return whether it is right."""
        try:
            name = kind(left)
        except DataError:
            name = OTHER
        self._lines[name] += 1
        self._exact[name] += given == right
        return given == right

    @property
    def lines(self) -> int:
        """Lines so far."""
        return self._lines.total()

    @property
    def exact(self) -> int:
        """Right answers so far."""
        return self._exact.total()

    @property
    def by_kind(self) -> dict[str, tuple[int, int]]:
        """(right answers, lines) of each kind of line that occurred."""
        return {name: (self._exact[name], self._lines[name]) for name in sorted((*KINDS, OTHER)) if self._lines[name]}
