"""Labelled sentences: files of ``label<TAB>sentence`` lines, such as SST-2, and an honest split of them.

The reported test sentences are a file of their own. Validation sentences, which choose, are cut from the training file,
and never trained on; calibration sentences are drawn from what is left.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from octavo.data._arguments import check_text
from octavo.data._files import DAMAGED, XZ, Source
from octavo.errors import DataError

#: Names of the training file and of the test file in a folder, each plain or with ``.xz`` behind it.
TRAIN, TEST = "sst2_train.tsv", "sst2_dev.tsv"
LABELS = ("negative", "positive")
_MOST_LABELS = 10


@dataclass(frozen=True)
class Sentences:
    """Texts and, for each of them, a label from 0 on. Raises DataError for half of a surrogate pair in a text."""

    texts: tuple[str, ...]
    labels: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check the texts."""
        for number, text in enumerate(self.texts, 1):
            check_text(f"text {number}", text)

    def __len__(self) -> int:
        """Sentences."""
        return len(self.texts)

    def pick(self, rows: Sequence[int]) -> Sentences:
        """Return some of the sentences, in the given order."""
        return Sentences(tuple(self.texts[row] for row in rows), tuple(self.labels[row] for row in rows))

    def digest(self) -> str:
        """Return a SHA-256 of all texts and labels, in hexadecimal."""
        lines = "\n".join(f"{label}\t{text}" for label, text in zip(self.labels, self.texts, strict=True))
        return sha256(lines.encode()).hexdigest()


@dataclass(frozen=True)
class Split:
    """Sentences to train on, to choose by, and to report."""

    train: Sentences
    validation: Sentences
    test: Sentences

    def digest(self) -> str:
        """Return a SHA-256 of the three parts."""
        return sha256("".join(part.digest() for part in (self.train, self.validation, self.test)).encode()).hexdigest()


def read(path: Path | str) -> Sentences:
    """Read a file of ``label<TAB>sentence`` lines in UTF-8, compressed or plain, with a header line.

    Labels are whole numbers from 0 to 9; empty lines are skipped. Raises DataError with the file, the number of the
    line and what is accepted there; OSError where the file cannot be read.
    """
    path = Path(path)
    with Source(path) as source:
        if path.suffix == ".xz" and source.first != XZ:
            raise DataError(f"{path}: not an xz file; name it without .xz if it is plain text")
        try:
            with source.content() as file:
                content = file.read().removeprefix(BOM_UTF8)
        except DAMAGED as error:
            raise DataError(f"{path}: compressed data is damaged or cut off: {error}") from None
    try:
        lines = [line.removesuffix("\r") for line in content.decode("utf-8").split("\n")]
    except UnicodeDecodeError as error:
        bad = content[: error.start].count(b"\n") + 1
        raise DataError(f"{path}: line {bad} is not UTF-8; accepted are 'label<TAB>sentence' lines") from None
    if not lines[0].startswith("label\t"):
        given = repr(lines[0][:40]) if content else "nothing"
        raise DataError(f"{path}: line 1 is the header 'label<TAB>sentence', got {given}")
    texts, labels = [], []
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        label, tab, text = line.partition("\t")
        if not tab or not text.strip():
            raise DataError(f"{path}: line {number} is {line[:40]!r}; accepted is 'label<TAB>sentence'")
        if not (label.isascii() and label.isdigit() and int(label) < _MOST_LABELS):
            raise DataError(f"{path}: line {number} has the label {label[:20]!r}; accepted are 0 to {_MOST_LABELS - 1}")
        texts.append(text.strip())
        labels.append(int(label))
    if not texts:
        raise DataError(f"{path}: no sentence behind the header")
    return Sentences(tuple(texts), tuple(labels))


def find(folder: Path | str, name: str) -> Path:
    """Return the file ``name`` of a folder, or ``name.xz``. Raises DataError with what was looked for."""
    folder = Path(folder)
    for path in (folder / name, folder / f"{name}.xz"):
        if path.is_file():
            return path
    raise DataError(f"{folder}: neither {name} nor {name}.xz is there; they hold 'label<TAB>sentence' lines")


def load(folder: Path | str, *, validation: int = 2000, seed: int = 0) -> Split:
    """Read the training and test files of a folder and cut ``validation`` sentences from training.

    Which ones is decided by ``seed`` alone. A training sentence that is a validation or a test sentence too, to the
    letter, is trained on no more. Raises DataError as :func:`read` and :func:`find`, and if too few are left.
    """
    train, test = read(find(folder, TRAIN)), read(find(folder, TEST))
    if not 1 <= validation < len(train):
        raise DataError(f"{validation} validation sentences; accepted are 1 to {len(train) - 1}, fewer than there are")
    order = np.random.default_rng(seed).permutation(len(train)).tolist()
    held = train.pick(sorted(order[:validation]))
    outside = set(held.texts) | set(test.texts)
    rest = [row for row in sorted(order[validation:]) if train.texts[row] not in outside]
    if not rest or max(test.labels) > max(train.labels):
        raise DataError(f"{folder}: {len(rest)} training sentences are left, and the test labels must occur among them")
    return Split(train.pick(rest), held, test)
