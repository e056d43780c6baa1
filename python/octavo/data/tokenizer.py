"""Character tokens: one character, one token, one byte.

Lines travel as one block of UTF-8 text, separated by line feeds; ids come back in numpy arrays.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from octavo import _core
from octavo.data._arguments import address, array_of, dtype_of, flag, whole
from octavo.errors import DataError, DTypeError, ShapeError
from octavo.storage.arguments import checks_arguments
from octavo.storage.reading import check_regular

# Bytes of ids that one call gives.
_MOST: Final = 1 << 46
Texts = Iterable[str] | bytes | bytearray | memoryview


class CharTokenizer:
    """A vocabulary of single characters with ids below 256.

    Ids 0, 1 and 2 are the special tokens ``pad``, ``start`` and ``end``; the characters follow in ascending order of
    their code points. Lines never hold a line feed, so it is in no vocabulary; every other character may be.

    Args:
        characters: the vocabulary, in any order.

    Raises:
        DataError: for none, for more than 253 distinct ones and for a line feed.
        DTypeError: for anything else than a string.

    Example:
        >>> ids, lengths = octavo.data.CharTokenizer("abc").encode(["cab", "b"])
        >>> ids.tolist(), lengths.tolist()  # end is 2, pad 0
        ([[5, 3, 4, 2], [4, 2, 0, 0]], [4, 2])
    """

    pad: Final = 0
    start: Final = 1
    end: Final = 2

    def __init__(self, characters: str) -> None:
        """Make the vocabulary of the characters of a string."""
        if not isinstance(characters, str):
            raise DTypeError(f"characters is a {type(characters).__name__}; accepted is a string")
        try:
            self._core = _core._CharTokenizer.from_characters(characters)
        except UnicodeEncodeError as error:
            raise DataError(f"position {error.start}: half of a surrogate pair, which is no character") from error

    @classmethod
    def _of(cls, core: _core._CharTokenizer) -> CharTokenizer:
        tokenizer = cls.__new__(cls)
        tokenizer._core = core
        return tokenizer

    @classmethod
    def from_lines(cls, lines: Texts) -> CharTokenizer:
        """Make the vocabulary of all characters of some lines.

        Args:
            lines: as for :meth:`encode`.

        Returns:
            The tokenizer.

        Raises:
            DataError: as the class itself, and as :meth:`encode` for broken text.
        """
        text = _text(lines)
        return cls._of(_core._CharTokenizer.from_lines(_span(text)))

    @classmethod
    def polynomials(cls) -> CharTokenizer:
        """Return the vocabulary of :mod:`octavo.lab.polynomials.data`: the 28 characters of both sides of a line.

        The ``=`` separates the sides and is in neither, so it is not in the vocabulary.

        Returns:
            The tokenizer.
        """
        return cls._of(_core._CharTokenizer.polynomials())

    @classmethod
    @checks_arguments
    def load(cls, path: str | os.PathLike[str]) -> CharTokenizer:
        """Read a file that :meth:`save` wrote.

        Args:
            path: file to read.

        Returns:
            The tokenizer.

        Raises:
            DataError: for any other content.
            OSError: as the system gives it.
        """
        check_regular(path, DataError)
        return cls._of(_core._CharTokenizer.load(path))

    @checks_arguments
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write ``tokenizer.json``, a line of JSON, which appears complete or not at all.

        Args:
            path: file to write.

        Raises:
            OSError: as the system gives it.
        """
        self._core.save(path)

    @property
    def characters(self) -> str:
        """The characters in the order of their ids: number i has the id i + 3."""
        return self._core.characters

    @property
    def size(self) -> int:
        """Number of ids, special ones included; every id is below it."""
        return len(self.characters) + 3

    def encode(
        self,
        lines: Texts,
        max_length: int | None = None,
        *,
        end: bool = True,
        start: bool = False,
        dtype: DTypeLike = np.uint8,
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Translate lines to ids.

        Args:
            lines: strings, or the bytes of a UTF-8 text, where every line feed ends a line and the last line may lack
                it.
            max_length: the length of every row, special tokens included; default: that of the longest line.
            end: put that token behind each line.
            start: put that token before each line.
            dtype: uint8 or int64.

        Returns:
            Ids ``[N, max_length]``, filled with ``pad``, and lengths ``[N]`` int64, special tokens included.

        Raises:
            DataError: for a character that is not in the vocabulary, a line that is too long, a line feed in a string
                and broken UTF-8; has the line and column (counted from 1).
            DTypeError: for other objects and dtypes.
        """
        kind = dtype_of("ids", dtype, (np.uint8, np.int64))
        around = (flag("start", start), flag("end", end))
        width = None if max_length is None else whole("max_length", max_length)
        text = _text(lines)
        span = _span(text)
        rows, longest = _core._CharTokenizer.measure(span)
        width = longest + sum(around) if width is None else width
        if rows * width * kind.itemsize > _MOST:
            raise DataError(f"max_length {width}; accepted for {rows} lines are up to {_MOST // rows // kind.itemsize}")
        ids, lengths = np.empty((rows, width), kind), np.empty(rows, np.int64)
        self._core.encode(span, rows, width, around, kind == np.int64, address(ids), address(lengths))
        return ids, lengths

    def decode(self, ids: object) -> list[str]:
        """Translate rows of ids back to lines. A row is read up to its first ``end``; ``pad`` and ``start`` are
        skipped.

        Args:
            ids: ``[N, L]``, anything that numpy makes an integer array of, CPU tensors included; uint8 and int64 cost
                no copy.

        Returns:
            The lines.

        Raises:
            DataError: for a number that is no id, with row and column (counted from 1).
            ShapeError: for another number of dimensions.
            DTypeError: for other dtypes.
        """
        array = array_of("ids", ids)
        if array.ndim != 2:
            raise ShapeError(f"ids of shape {array.shape}; accepted are rows of ids, [N, L]")
        if array.dtype not in (np.uint8, np.int64):
            if array.dtype.kind not in "iu" or array.dtype == np.uint64:
                raise DTypeError(f"ids of dtype {array.dtype}; accepted are integers of up to 64 bits with a sign")
            array = array.astype(np.int64)
        array = np.ascontiguousarray(array)
        rows, width = array.shape
        text = self._core.decode(address(array), rows, width, array.dtype == np.int64)
        return text.split("\n")[:-1]

    def __eq__(self, other: object) -> bool:
        """Equal vocabularies are equal tokenizers."""
        return self.characters == other.characters if isinstance(other, CharTokenizer) else NotImplemented

    def __hash__(self) -> int:
        """Hash of the vocabulary."""
        return hash(self.characters)

    def __repr__(self) -> str:
        """The call that makes it."""
        return f"CharTokenizer({self.characters!r})"

    def __reduce__(self) -> tuple[type[CharTokenizer], tuple[str]]:
        """Pickle the characters."""
        return CharTokenizer, (self.characters,)


def _text(lines: Texts) -> NDArray[np.uint8]:
    """The bytes of all lines, in UTF-8 unless the caller gave other bytes."""
    if isinstance(lines, bytes | bytearray | memoryview):
        view = memoryview(lines)
        if not view.contiguous or view.itemsize != 1:
            raise DTypeError("lines is a memoryview that is not of contiguous bytes; pass its tobytes()")
        return _bytes(view)
    if isinstance(lines, str):
        raise DTypeError("lines is a string; pass a list of strings, or the bytes of a text")
    try:
        rows = [*lines, ""]  # so that each line, the last one too, gets its line feed
    except TypeError as error:
        raise DTypeError(f"lines is a {type(lines).__name__}; accepted are strings and the bytes of a text") from error
    try:
        text = "\n".join(rows)
    except TypeError as error:
        at, wrong = next((at, row) for at, row in enumerate(rows, 1) if not isinstance(row, str))
        raise DTypeError(f"line {at} is a {type(wrong).__name__}; accepted are strings") from error
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        number, column = text.count("\n", 0, error.start) + 1, error.start - text.rfind("\n", 0, error.start)
        raise DataError(f"line {number}, column {column}: half of a surrogate pair, which is no character") from error
    if text.count("\n") != len(rows) - 1:
        at, column = next((at, row.index("\n") + 1) for at, row in enumerate(rows, 1) if "\n" in row)
        raise DataError(f"line {at}, column {column}: a line feed; lines are given one by one without it")
    return _bytes(encoded)


def _bytes(text: bytes | memoryview) -> NDArray[np.uint8]:
    # The array keeps the buffer alive and, of a bytearray, in its place.
    return np.frombuffer(text, np.uint8) if len(text) else np.empty(0, np.uint8)


def _span(text: NDArray[np.uint8]) -> tuple[int, int]:
    return address(text), text.size
