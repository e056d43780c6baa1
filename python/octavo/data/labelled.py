"""Labelled texts, and their three parts: to train on, to choose by, to report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from octavo.data._arguments import check_text, listed, whole
from octavo.errors import DataError


@dataclass(frozen=True)
class Sentences:
    """Texts and, for each of them, a label.

    Args:
        texts: the texts.
        labels: as many whole numbers, from 0.

    Raises:
        DataError: for half of a surrogate pair in a text and for another number of labels.
        DTypeError: for anything else than texts and whole numbers.
    """

    texts: tuple[str, ...]
    labels: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check texts and labels."""
        for name in ("texts", "labels"):
            object.__setattr__(self, name, tuple(listed(name, getattr(self, name), f"a list of {name}")))
        if len(self.texts) != len(self.labels):
            raise DataError(f"{len(self.texts)} texts and {len(self.labels)} labels; accepted is a label for each text")
        for number, label in enumerate(self.labels, 1):
            whole(f"label {number} of labels", label)
        for number, text in enumerate(self.texts, 1):
            check_text(f"text {number}", text)

    def __len__(self) -> int:
        """Sentences."""
        return len(self.texts)

    def pick(self, rows: Sequence[int]) -> Sentences:
        """Return some of the sentences, in the given order.

        Args:
            rows: their numbers, from 0.

        Returns:
            The sentences.
        """
        places = [whole("a row of rows", row) for row in listed("rows", rows, "a list of rows")]
        if places and max(places) >= len(self):
            raise DataError(f"row {max(places)} of rows; accepted are rows below {len(self)}")
        return Sentences(tuple(self.texts[row] for row in places), tuple(self.labels[row] for row in places))

    def digest(self) -> str:
        """Return a digest of all texts and labels.

        Returns:
            SHA-256, in hexadecimal.
        """
        lines = "\n".join(f"{label}\t{text}" for label, text in zip(self.labels, self.texts, strict=True))
        return sha256(lines.encode()).hexdigest()


@dataclass(frozen=True)
class Split:
    """Sentences to train on, to choose by, and to report; ``held_out``: the last were cut from training, too.

    ``names``: of the classes, in the order of their labels; empty where labels are numbers alone.
    """

    train: Sentences
    validation: Sentences
    test: Sentences
    held_out: bool = False
    names: tuple[str, ...] = ()

    def fewer(self, texts: int) -> Split:
        """Return the split with the first ``texts`` training texts alone, or all if there are no more."""
        return replace(self, train=self.train.pick(range(min(texts, len(self.train)))))

    def digest(self) -> str:
        """Return a SHA-256 of the three parts."""
        return sha256("".join(part.digest() for part in (self.train, self.validation, self.test)).encode()).hexdigest()
