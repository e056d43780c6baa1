"""Word tokens: texts that are already cut into words by spaces, one id a word."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from typing import Final

from octavo.data._arguments import check_text
from octavo.errors import DataError
from octavo.storage import files
from octavo.storage.reading import VOCABULARY_BYTES, member, read_json, shown

TYPE, VERSION = "word", 1  # in files


class WordTokenizer:
    """A vocabulary of words: id 0 pads, id 1 is any unknown word, the words follow in the given order.

    Raises DataError for a word that is empty, holds white space or occurs twice.
    """

    pad: Final = 0
    unknown: Final = 1

    def __init__(self, words: Iterable[str]) -> None:
        """Make the vocabulary of ``words``."""
        self.words = tuple(words)
        for word in self.words:
            if not isinstance(word, str) or word.split() != [word]:
                raise DataError(f"the word {word!r}; accepted are texts of one character and more, without white space")
            check_text(f"the word {word!r}", word)
        self._ids = {word: position + 2 for position, word in enumerate(self.words)}
        if len(self._ids) != len(self.words):
            repeated = Counter(self.words).most_common(1)[0][0]
            raise DataError(f"the word {repeated!r} occurs twice in the vocabulary")

    @classmethod
    def of(cls, texts: Iterable[str], *, least: int = 2) -> WordTokenizer:
        """Make the vocabulary of the words that occur ``least`` times and more, the most frequent first."""
        counts = Counter(word for text in texts for word in text.lower().split())
        frequent = [(word, count) for word, count in counts.items() if count >= least]
        return cls(word for word, _ in sorted(frequent, key=lambda item: (-item[1], item[0])))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> WordTokenizer:
        """Read a file that :meth:`save` wrote. Raises DataError for any other content, OSErrors."""
        content = read_json(path, VOCABULARY_BYTES, error=DataError)
        if content.get("type") != TYPE or content.get("version") != VERSION:
            header = f"type {shown(content.get('type'))}, version {shown(content.get('version'))}"
            raise DataError(f"{os.fspath(path)}: {header}; accepted are {TYPE!r} and {VERSION}")
        words = member(content, "words", list, os.fspath(path), error=DataError)
        try:
            return cls(words)
        except DataError as error:
            raise DataError(f"{os.fspath(path)}: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write ``tokenizer.json``, a line of JSON, which appears complete or not at all. Raises OSErrors."""
        content = {"type": TYPE, "version": VERSION, "words": self.words}
        files.write(path, json.dumps(content, ensure_ascii=False) + "\n")

    def __len__(self) -> int:
        """Ids, the two special ones included."""
        return len(self.words) + 2

    def encode(self, text: str) -> list[int]:
        """Return the ids of the words of a text, in lower case; at least one, so that no text is empty."""
        return [self._ids.get(word, self.unknown) for word in text.lower().split()] or [self.unknown]
