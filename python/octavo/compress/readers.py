"""Readers of labelled texts by the name of their corpus: SST-2, IMDb and Emotion, from files as people have them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from octavo.data.labelled import Sentences
from octavo.data.labelled_files import is_json_lines, read_labelled, text_lines
from octavo.errors import DataError, SettingError
from octavo.storage.reading import CONFIG_BYTES, member, parse_json, read_bytes, shown

LABELS = ("negative", "positive")
#: The folders of a part of IMDb as it is distributed, by label: a file a review.
TREES = ("neg", "pos")
#: The classes of Emotion, in the order of its labels.
EMOTIONS = ("sadness", "joy", "love", "anger", "fear", "surprise")
_MOST_LABELS = 10
# What IMDb's reviews keep of their pages, and the signs that BERT's tokenizers cut off words.
_BREAK, _SIGN = re.compile(r"<br\s*/?>"), re.compile(r"([^\w\s]|_)")


@dataclass(frozen=True)
class Corpus:
    """A corpus on disk: the files of its parts, plain or with ``.xz`` behind the name, and ``read``, which reads one.

    ``holds``: what a file has, for people. ``trees``: its parts may also be folders ``PART/neg`` and ``PART/pos``.
    ``others``: other names of its files. ``names``: of its classes, where models are to carry them.
    """

    title: str
    files: dict[str, str]
    holds: str
    read: Callable[[Path], Sentences]
    trees: bool = False
    others: tuple[dict[str, str], ...] = ()
    names: tuple[str, ...] = ()

    def part(self, folder: Path | str, part: str) -> Sentences:
        """Return the texts of ``train`` or ``test``. Raises DataError with what was looked for, OSErrors."""
        folder, name = Path(folder), self.files[part]
        for naming in (self.files, *self.others):
            for path in (folder / naming[part], folder / f"{naming[part]}.xz"):
                if path.is_file():
                    return self.read(path)
        if self.trees and all((folder / part / tree).is_dir() for tree in TREES):
            return _read_trees(folder / part)
        absent = f", nor the folders {part}/{TREES[0]} and {part}/{TREES[1]}" if self.trees else ""
        absent += "".join(f", nor {naming[part]}" for naming in self.others)
        other = next((key for key, known in CORPORA.items() if known is not self and known.is_in(folder)), None)
        advice = f"; the corpus '{other}' is there: give --corpus {other}" if other else f"; they hold {self.holds}"
        raise DataError(f"{folder}: neither {name} nor {name}.xz is there{absent}{advice}")

    def is_in(self, folder: Path) -> bool:
        """Tell whether the training part is in a folder."""
        name = self.files["train"]
        return (folder / name).is_file() or (folder / f"{name}.xz").is_file()


def corpus(name: str) -> Corpus:
    """Return a corpus by its name. Raises SettingError for another."""
    if name not in CORPORA:
        raise SettingError(f"unknown corpus {name!r}; accepted are {', '.join(CORPORA)}")
    return CORPORA[name]


def read_tsv(path: Path | str) -> Sentences:
    """Read a file of ``label<TAB>sentence`` lines in UTF-8, compressed or plain, with a header line.

    Labels are whole numbers from 0 to 9; empty lines are skipped. Raises DataError with the file, the number of the
    line and what is accepted there; OSError where the file cannot be read.
    """
    texts, labels = [], []
    for number, line in text_lines(Path(path), "'label<TAB>sentence' lines"):
        if number == 1:
            if not line.startswith("label\t"):
                raise DataError(
                    f"{path}: line 1 is the header 'label<TAB>sentence', got {repr(line[:40]) if line else 'nothing'}"
                )
            continue
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


def read_jsonl(path: Path | str) -> Sentences:
    """Read a file of JSON objects with ``text`` and ``label`` (0 to 9), one a line, compressed or plain.

    Texts become words and signs with spaces between them (:func:`words_and_signs`); other members and empty lines are
    skipped. Raises DataError with the file and the number of the line, OSError where the file cannot be read.
    """
    texts, labels = [], []
    for number, line in text_lines(Path(path), "JSON objects, one a line"):
        if not line.strip():
            continue
        where = f"{path}: line {number}"
        found = parse_json(line, where, error=DataError)
        label, text = (
            member(found, "label", int, where, error=DataError),
            member(found, "text", str, where, error=DataError),
        )
        if not 0 <= label < _MOST_LABELS:
            raise DataError(f"{where} has the label {shown(label)}; accepted are 0 to {_MOST_LABELS - 1}")
        texts.append(_words(text, where))
        labels.append(label)
    if not texts:
        raise DataError(f"{path}: no text; accepted are JSON objects with 'text' and 'label', one a line")
    return Sentences(tuple(texts), tuple(labels))


def read_emotions(path: Path | str) -> Sentences:
    """Read a part of Emotion: lines ``text;emotion``, as distributed, or JSON objects with ``text`` and ``label``.

    Labels of objects are the names of :data:`EMOTIONS` or their numbers. Empty lines are skipped. Raises DataError with
    the file and the number of the line, OSError where the file cannot be read.
    """
    path = Path(path)
    if is_json_lines(path):
        return read_labelled(path, {name: number for number, name in enumerate(EMOTIONS)})
    texts, labels = [], []
    for number, line in text_lines(path, "lines 'text;emotion'"):
        if not line.strip():
            continue
        text, sign, name = line.rpartition(";")
        if not sign or not text.strip() or name.strip() not in EMOTIONS:
            raise DataError(
                f"{path}: line {number} is {line[:40]!r}; accepted is 'text;emotion', one of {', '.join(EMOTIONS)}"
            )
        texts.append(text.strip())
        labels.append(EMOTIONS.index(name.strip()))
    if not texts:
        raise DataError(f"{path}: no text; accepted are lines 'text;emotion'")
    return Sentences(tuple(texts), tuple(labels))


def words_and_signs(text: str) -> str:
    """Return a text with spaces around its signs, and without line breaks of web pages.

    So a vocabulary of words sees ``film`` in ``film.``; BERT's tokenizers cut signs off themselves and see no
    difference.
    """
    return " ".join(_SIGN.sub(r" \1 ", _BREAK.sub(" ", text)).split())


def _read_trees(folder: Path) -> Sentences:
    """Read IMDb as it is distributed: a folder a label, a text file a review."""
    texts, labels = [], []
    for label, tree in enumerate(TREES):
        for path in sorted((folder / tree).glob("*.txt")):
            try:
                content = read_bytes(path, CONFIG_BYTES, error=DataError).decode("utf-8")
            except UnicodeDecodeError:
                raise DataError(f"{path}: not UTF-8; accepted are text files, one a review") from None
            texts.append(_words(content, str(path)))
            labels.append(label)
    if not texts:
        raise DataError(f"{folder}: no review; accepted are {TREES[0]}/*.txt and {TREES[1]}/*.txt")
    return Sentences(tuple(texts), tuple(labels))


def _words(text: str, where: str) -> str:
    found = words_and_signs(text)
    if not found:
        raise DataError(f"{where} has an empty text; accepted are texts of a word at least")
    return found


SST2, IMDB, EMOTION = "sst2", "imdb", "emotion"
CORPORA = {
    SST2: Corpus("SST-2", {"train": "sst2_train.tsv", "test": "sst2_dev.tsv"}, "'label<TAB>sentence' lines", read_tsv),
    IMDB: Corpus(
        "IMDb", {"train": "imdb_train.jsonl", "test": "imdb_test.jsonl"}, "objects with 'text' and 'label'", read_jsonl,
        trees=True,
    ),
    EMOTION: Corpus(
        "Emotion", {"train": "emotion_train.jsonl", "test": "emotion_test.jsonl"}, "objects with 'text' and 'label'",
        read_emotions, others=({"train": "train.txt", "test": "test.txt"},), names=EMOTIONS,
    ),
}  # fmt: skip
