"""Tokenizers that the package ``tokenizers`` runs: SentencePiece's, Unigram, WordPiece, other rules of cutting texts.

Byte-level BPE needs no other package: :class:`octavo.data.BytePairTokenizer`. :func:`load_tokenizer` chooses.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.data._arguments import check_text
from octavo.data.byte_pairs import BytePairTokenizer, Special, special_code
from octavo.errors import DataError
from octavo.storage.reading import VOCABULARY_BYTES, read_bytes

_FILE = "tokenizer.json"
_REPLACED = "�"
_MOST_MESSAGE = 200  # characters of another package's error
_MOST_BEHIND = 16  # ids that may wait for the rest of a character, which has 4 bytes


class TextTokenizer(Protocol):
    """What a language model needs of a tokenizer."""

    @property
    def size(self) -> int:
        """Number of ids: one more than the largest."""

    @property
    def special(self) -> dict[str, int]:
        """Special tokens and their ids."""

    @property
    def around(self) -> tuple[list[int], list[int]]:
        """Ids that the file puts before and behind those of a text."""

    def id(self, token: str) -> int | None:
        """Return the id of a token."""

    def encode(self, text: str, *, special: Special = "refuse") -> NDArray[Any]:
        """Translate a text to ids."""

    def decode(self, ids: object) -> str:
        """Translate ids to a text."""

    def decode_stream(self, ids: Iterable[int], *, after: Sequence[int] = (), replace: bool = False) -> Iterator[str]:
        """Translate ids one by one."""


@contextmanager
def _typed(label: str, problem: str) -> Iterator[None]:
    """Raise DataError for what the package raises: bare Exceptions, and panics, which are no Exceptions."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        text = " ".join(str(error).split())
        text = text if len(text) <= _MOST_MESSAGE else f"{text[:_MOST_MESSAGE]}..."
        raise DataError(f"{label}: {problem}: {text}; write it anew with save_pretrained") from None


class ForeignTokenizer:
    """A tokenizer that the package ``tokenizers`` runs. Threads may share it.

    Made by :meth:`load`. Ids and texts are those of transformers.

    Args:
        content: the bytes of a ``tokenizer.json``.
        label: file that they are from, for errors.

    Raises:
        DataError: without the package, and for a file that it refuses.
    """

    def __init__(self, content: bytes, label: str) -> None:
        """Read a tokenizer; use :meth:`load`."""
        self._content, self._label = content, label
        self._plain = self._read()
        self._added = {number: token for number, token in self._plain.get_added_tokens_decoder().items()}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ForeignTokenizer:
        """Read a ``tokenizer.json``.

        Args:
            path: the file.

        Returns:
            The tokenizer.

        Raises:
            DataError: without the package ``tokenizers``, and for a file that it refuses.
            OSError: as the system gives it.
        """
        return cls(read_bytes(path, VOCABULARY_BYTES, error=DataError), os.fspath(path))

    def _read(self) -> Any:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise DataError(
                f"{self._label}: no byte-level BPE as the core runs it, and the package tokenizers, which runs others, "
                "is missing; pip install tokenizers"
            ) from None
        with _typed(self._label, "no tokenizer"):
            tokenizer = Tokenizer.from_buffer(self._content)
            tokenizer.no_padding()
            tokenizer.no_truncation()
        return tokenizer

    @cached_property
    def _splitting(self) -> Any:
        """The same one, to which special tokens are texts; a switch on one that threads share would reach all."""
        tokenizer = self._read()
        tokenizer.encode_special_tokens = True
        return tokenizer

    @cached_property
    def size(self) -> int:
        """Number of ids: one more than the largest."""
        return max(self._plain.get_vocab().values(), default=-1) + 1

    @cached_property
    def special(self) -> dict[str, int]:
        """Special tokens and their ids."""
        return {token.content: number for number, token in self._added.items() if token.special}

    @cached_property
    def around(self) -> tuple[list[int], list[int]]:
        """Ids that the file puts before and behind those of a text."""
        tokenizer = self._plain
        with _typed(self._label, "it reads no text"):
            ids, inside = (tokenizer.encode("a", add_special_tokens=added).ids for added in (True, False))
        for begin in range(len(ids) - len(inside) + 1):
            if ids[begin : begin + len(inside)] == inside:
                return ids[:begin], ids[begin + len(inside) :]
        return [], []

    def id(self, token: str) -> int | None:
        """Return the id of a token, special ones too.

        Args:
            token: its text.

        Returns:
            The id, or None.
        """
        return self._plain.token_to_id(token)

    def encode(self, text: str, *, special: Special = "refuse") -> NDArray[np.uint32]:
        """Translate a text to ids, without those that the file puts around one.

        Args:
            text: a string.
            special: reading of special tokens in it: ``allow`` gives their ids, ``refuse``, or ``split`` takes them as
                any other text.

        Returns:
            Ids, ``[N]`` uint32.

        Raises:
            DataError: for a refused special token, half of a surrogate pair, and a text that the package refuses.
            DTypeError: for another kind of object.
        """
        special_code(special)
        check_text("text", text)
        tokenizer = self._splitting if special == "split" else self._plain
        with _typed(self._label, "it does not read this text"):
            ids = tokenizer.encode(text, add_special_tokens=False).ids
        if special == "refuse":
            # A token for unknown characters is special, too, and comes from texts that do not name it.
            numbers = set(ids)
            for content, number in self.special.items():
                if number in numbers and content in text:
                    raise DataError(
                        f"the text has the special token {content!r}; special='allow' gives its id, special='split' "
                        "takes it as text"
                    )
        return np.array(ids, np.uint32)

    def decode(self, ids: object) -> str:
        """Translate ids to a text.

        Args:
            ids: ``[N]``.

        Returns:
            The text, special tokens included. An id that has no token is left out.

        Raises:
            DataError: for ids that the package refuses.
        """
        tokenizer, numbers = self._plain, [int(number) for number in np.asarray(ids).ravel()]
        with _typed(self._label, "it does not write these ids"):
            return str(tokenizer.decode(numbers, skip_special_tokens=False))

    def decode_stream(self, ids: Iterable[int], *, after: Sequence[int] = (), replace: bool = False) -> Iterator[str]:
        """Translate ids one by one, as a model gives them. Bytes that are no UTF-8 become U+FFFD.

        Args:
            ids: whole numbers.
            after: ids before them, whose text is not given: the first token after others may begin with a space.
            replace: give U+FFFD for a number that is no id.

        Returns:
            An iterator over texts of whole characters.

        Raises:
            DataError: for a number that is no id, without ``replace``.
        """
        # What is shown is the text of a window of ids without that of its first ids, which were shown already: what a
        # token is depends on its neighbours, as a space before the first one and the bytes of one character do.
        window = list(after)[-_MOST_BEHIND:]
        first, shown = len(window), self.decode(window)
        for number in ids:
            known = self._plain.id_to_token(number) is not None
            if not known and not replace:
                raise DataError(f"id {number}; accepted are ids of tokens below {self.size}")
            window += [number] if known else []
            text = self.decode(window)
            if known and len(window) - first < _MOST_BEHIND and (text == shown or text.endswith(_REPLACED)):
                continue
            if piece := text[len(shown) :] + ("" if known else _REPLACED):
                yield piece
            window = [] if text.endswith(_REPLACED) else window[first:]
            first, shown = len(window), self.decode(window)
        if rest := self.decode(window)[len(shown) :]:
            yield rest

    def __repr__(self) -> str:
        """Size and file."""
        return f"<ForeignTokenizer: {self.size} ids, {self._label}>"


def load_tokenizer(folder: Path) -> TextTokenizer | None:
    """Return the tokenizer of a model folder; None where it has no file of one that is read.

    Raises DataError for a file that neither the core nor the package ``tokenizers`` reads, OSErrors.
    """
    file = folder / _FILE
    if file.exists():
        try:
            return BytePairTokenizer.load(file)
        except DataError:
            return ForeignTokenizer.load(file)
    merges, vocabulary = folder / "merges.txt", folder / "vocab.json"
    if merges.exists() and vocabulary.exists():
        return BytePairTokenizer.from_merges(merges, vocabulary)
    return None
