"""Byte pair tokens: byte-level BPE, the tokenizer of GPT-2, Llama 3, SmolLM and Qwen. The work is done in Rust."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from octavo import _core
from octavo.data._arguments import Paths, address, array_of, check_text, dtype_of, flag, listed
from octavo.data.learn_byte_pairs import Tell, learn, learn_from_files
from octavo.errors import DataError, DTypeError, ShapeError
from octavo.storage import files
from octavo.storage.arguments import check, checks_arguments
from octavo.storage.reading import VOCABULARY_BYTES, read_bytes, shown

Text: TypeAlias = str | bytes | bytearray | memoryview
Special: TypeAlias = Literal["allow", "refuse", "split"]
_DTYPES: Final = (np.uint16, np.uint32, np.int64)
_ERRORS: Final = ("replace", "ignore", "strict", "backslashreplace", "surrogateescape")
_SPECIAL: Final = {"allow": 0, "refuse": 1, "split": 2}
_REPLACED: Final = "�"
_Path: TypeAlias = str | os.PathLike[str]


class BytePairTokenizer:
    """A vocabulary of byte pairs, and the rules by which a text becomes ids. Immutable; threads may share it.

    Made by :meth:`load` (``tokenizer.json``), :meth:`from_merges` (``vocab.bpe`` and ``encoder.json``) or
    :meth:`from_tiktoken`. Ids are those of the packages ``tiktoken`` and ``tokenizers``. Texts are strings or any
    bytes, and ``decode_bytes(encode(text))`` gives every byte back (but where the file asks for the normal form C, as
    those of Qwen do).

    Special tokens such as ``<|endoftext|>`` in a text are refused, unless a call says what they are:
    ``special="allow"`` gives their ids, ``special="split"`` takes them as any other text.
    """

    def __init__(self, core: _core._BytePairs) -> None:
        """Wrap a vocabulary of the core; use the class methods."""
        if not isinstance(core, _core._BytePairs):
            raise DTypeError(
                f"core is a {type(core).__name__}; make a tokenizer by load, from_merges, from_tiktoken or train"
            )
        self._core = core

    @classmethod
    @checks_arguments
    def load(cls, path: _Path) -> BytePairTokenizer:
        """Read a ``tokenizer.json``, a file of the package ``tokenizers``.

        Args:
            path: the file, or a model folder with it.

        Returns:
            The tokenizer.

        Raises:
            DataError: names the field, for another model than byte-level BPE and for rules that are not known here,
                since ids would be wrong.
            OSError: as the system gives it.
        """
        if os.path.isdir(path):
            path = os.path.join(path, "tokenizer.json")
        return cls._read(_core._BytePairs.from_json, path)

    @classmethod
    @checks_arguments
    def from_merges(cls, merges: _Path, vocabulary: _Path, *, pattern: str = "gpt2") -> BytePairTokenizer:
        """Read ``vocab.bpe`` (or ``merges.txt``) and ``encoder.json`` (or ``vocab.json``), the files of GPT-2.

        Args:
            merges: file of the merges.
            vocabulary: file of the tokens; those that no merge makes are special ones.
            pattern: how texts are cut: ``gpt2``, ``smollm``, ``cl100k``, ``llama3`` or ``qwen2``.

        Returns:
            The tokenizer.

        Raises:
            DataError: for other content and an unknown pattern.
            OSError: as the system gives it.
        """
        return cls._read(lambda first, second: _core._BytePairs.from_merges(first, second, pattern), merges, vocabulary)

    @classmethod
    @checks_arguments
    def from_tiktoken(
        cls, path: _Path, *, pattern: str = "gpt2", special: Mapping[str, int] | None = None
    ) -> BytePairTokenizer:
        """Read a ``.tiktoken`` file: a line with a token in base64 and its rank, which is its id.

        Args:
            path: the file.
            pattern: as in :meth:`from_merges`.
            special: special tokens and their ids, which the file does not hold; default: ``<|endoftext|>`` with the
                next id under the pattern ``gpt2``, else none.

        Returns:
            The tokenizer.

        Raises:
            DataError: for other content and an unknown pattern.
            OSError: as the system gives it.
        """
        if special is None and pattern == "gpt2":
            plain = cls.from_tiktoken(path, pattern=pattern, special={})
            special = {} if plain.id("<|endoftext|>") is not None else {"<|endoftext|>": plain.size}
        tokens = list((special or {}).items())
        for content, number in tokens:
            check_text("special token", content)
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 2**32:
                raise DataError(f"special token {content!r}: id {number!r}; accepted are 0 to 2**32 - 1")
        return cls._read(lambda content: _core._BytePairs.from_ranks(content, pattern, tokens), path)

    @classmethod
    def train(
        cls,
        texts: Text | Iterable[Text],
        size: int,
        *,
        pattern: str = "gpt2",
        special: str | Sequence[str] = ("<|endoftext|>",),
        least: int = 2,
        tell: Tell | None = None,
    ) -> BytePairTokenizer:
        """Learn a vocabulary from texts; counted in parallel, the same on any machine.

        Source: Sennrich et al. 2016; on bytes: Radford et al. 2019.

        Args:
            texts: documents; one text is one document.
            size: number of ids.
            pattern: as in :meth:`from_merges`.
            special: special tokens, one or several; they get the last ids, and are no part of the texts where they
                occur.
            least: times that a pair has to occur to become a token; where too few do, the vocabulary stays smaller.
            tell: called with the progress.

        Returns:
            The tokenizer.

        Raises:
            DataError: for a size or text that does not fit.
            DTypeError: for another kind of object.

        Example:
            >>> tokenizer = octavo.data.BytePairTokenizer.train(["low lower lowest slow slower"] * 2, 262)
            >>> [tokenizer.token(number).decode() for number in tokenizer.encode("slower")]
            ['s', 'lowe', 'r']
        """
        if isinstance(texts, str | bytes | bytearray | memoryview):
            texts = [texts]
        if not isinstance(texts, Iterable):
            raise DTypeError(f"texts is a {type(texts).__name__}; accepted is a text or an iterable of texts")
        check(special, str | Sequence[str], "special")
        check(tell, Tell | None, "tell")
        contents = (_bytes(f"text {number}", text) for number, text in enumerate(iter(texts)))
        tokens = [special] if isinstance(special, str) else special
        return cls(learn(contents, size, pattern=pattern, special=tokens, least=least, tell=tell))

    @classmethod
    @checks_arguments
    def train_files(
        cls,
        paths: Paths,
        size: int,
        *,
        pattern: str = "gpt2",
        special: str | Sequence[str] = ("<|endoftext|>",),
        least: int = 2,
        journal: _Path | None = None,
        tell: Tell | None = None,
    ) -> BytePairTokenizer:
        """Learn a vocabulary from the documents of files, as :meth:`train`.

        Args:
            paths: files of text with ``<|endoftext|>`` between documents, files ``*.jsonl`` with a ``text`` a line,
                plain or ``.xz`` or ``.gz``, or folders of them.
            size: as for :meth:`train`.
            pattern: as for :meth:`train`.
            special: as for :meth:`train`.
            least: as for :meth:`train`.
            journal: a file for the counts; after a kill the same call goes on with it, and it is removed at the end.
            tell: called with the progress.

        Returns:
            The tokenizer.

        Raises:
            DataError: as :meth:`train`.
            OSError: as the system gives it.
        """
        tokens = [special] if isinstance(special, str) else special
        return cls(
            learn_from_files(paths, size, pattern=pattern, special=tokens, least=least, journal=journal, tell=tell)
        )

    @classmethod
    def _read(cls, make: Callable[..., _core._BytePairs], *paths: _Path) -> BytePairTokenizer:
        contents = [read_bytes(path, VOCABULARY_BYTES, error=DataError) for path in paths]
        try:
            return cls(make(*contents))
        except DataError as error:
            names = " and ".join(os.fspath(path) for path in paths)
            raise DataError(f"{names}: {error}") from None

    @checks_arguments
    def save(self, path: _Path) -> None:
        """Write a ``tokenizer.json``, which appears whole or not at all, for :meth:`load` and for ``tokenizers``.

        Args:
            path: file to write; a folder gets the file under that name.

        Raises:
            OSError: as the system gives it.
        """
        if os.path.isdir(path):
            path = os.path.join(path, "tokenizer.json")
        files.write(path, self.to_json())

    def to_json(self) -> str:
        """Return the text of the ``tokenizer.json`` that :meth:`save` writes.

        Returns:
            JSON.
        """
        return self._core.to_json()

    @property
    def size(self) -> int:
        """Number of ids: one more than the largest."""
        return self._core.size

    @property
    def pattern(self) -> str:
        """Name of the rules by which texts are cut into pieces."""
        return self._core.pattern

    @property
    def special(self) -> dict[str, int]:
        """Special tokens and their ids."""
        return {content: number for content, number, is_special in self._core.added if is_special}

    @property
    def around(self) -> tuple[list[int], list[int]]:
        """Ids that the file puts before and behind those of a text, where it is asked for them."""
        return self._core.around

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest dtype of ids: uint16 for up to 65,536 of them, else uint32."""
        return np.dtype(np.uint16 if self.size <= 1 << 16 else np.uint32)

    def token(self, number: int) -> bytes:
        """Return the bytes of an id.

        Args:
            number: the id.

        Returns:
            The bytes.

        Raises:
            DataError: for a number that is no id.
        """
        check(number, int, "number")
        token = self._core.token(number) if 0 <= number < 2**32 else None
        if token is None:
            raise DataError(f"id {number}; accepted are ids of tokens below {self.size}")
        return token

    def id(self, token: Text) -> int | None:
        """Return the id of a token, special ones too.

        Args:
            token: a text or bytes.

        Returns:
            The id, or None.
        """
        return self._core.id(_bytes("token", token))

    def encode(
        self, text: Text, *, special: Special = "refuse", around: bool = False, dtype: DTypeLike | None = None
    ) -> NDArray[Any]:
        """Translate a text to ids, in parallel where it is long.

        Args:
            text: a string, or bytes.
            special: reading of special tokens in it: ``allow`` gives their ids, ``refuse``, or ``split`` takes them as
                any other text.
            around: add the tokens that the tokenizer puts around a text, such as ``<|begin_of_text|>``.
            dtype: uint16, uint32 or int64; default: :attr:`dtype`.

        Returns:
            Ids, ``[N]``.

        Raises:
            DataError: for a refused special token and for half of a surrogate pair.
            DTypeError: for another kind of object.

        Example:
            >>> tokenizer = octavo.TextGenerator.load("gpt-small").tokenizer
            >>> tokenizer.encode("abc").tolist(), tokenizer.encode("c<|endoftext|>", special="allow").tolist()
            ([64, 65, 66], [66, 256])
        """
        return self.encode_batch([text], special=special, around=around, dtype=dtype)[0]

    def encode_batch(
        self,
        texts: Iterable[Text],
        *,
        special: Special = "refuse",
        around: bool = False,
        dtype: DTypeLike | None = None,
    ) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Translate texts to ids, in parallel.

        Args:
            texts: strings, or bytes.
            special: as for :meth:`encode`.
            around: as for :meth:`encode`.
            dtype: as for :meth:`encode`.

        Returns:
            The ids of all texts, one text behind the other, ``[N]``, and where each begins, ``[texts + 1]`` int64;
            those of text ``i`` are ``ids[offsets[i]:offsets[i + 1]]``.

        Raises:
            DataError: as :meth:`encode`.
            DTypeError: as :meth:`encode`.
        """
        kind = self.dtype if dtype is None else dtype_of("ids", dtype, _DTYPES)
        if isinstance(texts, str | bytes | bytearray | memoryview):
            raise DTypeError("texts is one text; pass a list of texts, or call encode")
        several = listed("texts", texts, "a list of texts")
        contents = [_bytes(f"text {number}", text) for number, text in enumerate(several)]
        encoded = self._core.encode(contents, special_code(special), flag("around", around))
        ids = np.empty(len(encoded), np.uint32 if kind == np.int64 else kind)
        encoded.put((address(ids), ids.size), ids.itemsize)
        return ids.astype(kind, copy=False), np.array(encoded.offsets, np.int64)

    def count(self, text: Text, *, special: Special = "split") -> int:
        """Return the number of ids of a text.

        Args:
            text: a string, or bytes.
            special: as for :meth:`encode`.

        Returns:
            The number.

        Raises:
            DataError: as :meth:`encode`.
        """
        return len(self._core.encode([_bytes("text", text)], special_code(special), False))

    def decode_bytes(self, ids: object) -> bytes:
        """Translate ids to bytes.

        Args:
            ids: ``[N]``; uint16, uint32 and int64 cost no copy.

        Returns:
            The bytes of all tokens.

        Raises:
            DataError: for a number that is no id, with its column (from 1).
            ShapeError: for another number of dimensions.
            DTypeError: for anything else than whole numbers.
        """
        array = np.ascontiguousarray(_ids(ids))
        return self._core.decode((address(array), array.size), array.itemsize)

    def decode(self, ids: object, *, errors: str = "replace") -> str:
        """Translate ids to a text.

        Args:
            ids: ``[N]``.
            errors: as in ``bytes.decode``, where the bytes are no UTF-8.

        Returns:
            The text.

        Raises:
            DataError: as :meth:`decode_bytes`.
            ShapeError: as :meth:`decode_bytes`.
            DTypeError: as :meth:`decode_bytes`.
            UnicodeDecodeError: under ``errors="strict"``.
        """
        if not isinstance(errors, str) or errors not in _ERRORS:
            raise DataError(f"errors is {shown(errors)}; accepted are {', '.join(_ERRORS)}")
        return self.decode_bytes(ids).decode("utf-8", errors)

    def decode_batch(self, ids: object, offsets: object, *, errors: str = "replace") -> list[str]:
        """Translate the ids of :meth:`encode_batch` back to texts.

        Args:
            ids: ``[N]``.
            offsets: where each text begins, and the number of all ids at last.
            errors: as for :meth:`decode`.

        Returns:
            The texts.

        Raises:
            ShapeError: for offsets that fall or are not from 0 to the number of ids.
            DataError: as :meth:`decode_bytes`.
            DTypeError: as :meth:`decode_bytes`.
        """
        rows, places = _ids(ids), array_of("offsets", offsets)
        if places.ndim != 1 or not places.size or places.dtype.kind not in "iu":
            raise ShapeError(
                f"offsets of shape {places.shape} and dtype {places.dtype}; accepted are whole numbers, [N]"
            )
        begins = [int(place) for place in places]
        if begins[0] != 0 or begins[-1] != rows.size or begins != sorted(begins):
            raise ShapeError(
                f"offsets fall, or are not from 0 to {rows.size}, the number of ids; pass those of encode_batch"
            )
        return [self.decode(rows[begin:end], errors=errors) for begin, end in pairwise(begins)]

    def stream(self, *, special: Special = "refuse", dtype: DTypeLike | None = None) -> BytePairStream:
        """Begin a text that comes in pieces; see :class:`BytePairStream`.

        Args:
            special: as for :meth:`encode`.
            dtype: as for :meth:`encode`.

        Returns:
            The stream.
        """
        return BytePairStream(self, special, dtype)

    def decode_stream(self, ids: Iterable[int], *, after: Sequence[int] = (), replace: bool = False) -> Iterator[str]:
        """Translate ids one by one, as a model gives them. Bytes that are no UTF-8 become U+FFFD.

        Args:
            ids: whole numbers.
            after: ids before them. Byte pairs have the same bytes behind any others; tokens of other tokenizers do not.
            replace: give U+FFFD for a number that is no id.

        Returns:
            An iterator over texts of whole characters.

        Raises:
            DataError: for a number that is no id, without ``replace``.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        if not isinstance(ids, Iterable):
            raise DTypeError(f"ids is a {type(ids).__name__}; accepted is an iterable of ids")
        check(after, Sequence, "after")
        for number in iter(ids):
            token = self._core.token(number) if replace else self.decode_bytes([number])
            text = decoder.decode(b"", final=True) + _REPLACED if token is None else decoder.decode(token)
            if text:
                yield text
        if text := decoder.decode(b"", final=True):
            yield text

    def __eq__(self, other: object) -> bool:
        """Tokenizers whose files are equal are equal."""
        if not isinstance(other, BytePairTokenizer):
            return NotImplemented
        return self._core is other._core or self._core.to_json() == other._core.to_json()

    def __hash__(self) -> int:
        """Hash of the size and the pattern."""
        return hash((self.size, self.pattern))

    def __repr__(self) -> str:
        """Size and pattern."""
        return f"<BytePairTokenizer: {self.size} ids, pattern {self.pattern}>"

    def __reduce__(self) -> tuple[Any, tuple[bytes]]:
        """Pickle the text of the file."""
        return _from_json, (self._core.to_json().encode(),)


class BytePairStream:
    """The ids of a text that comes in pieces: those of the pieces together are those of the text.

    Ids come as soon as nothing behind them can change them, which is at the latest at the next white space.

    Args:
        tokenizer: the tokenizer.
        special: as for :meth:`BytePairTokenizer.encode`.
        dtype: as for :meth:`BytePairTokenizer.encode`.
    """

    def __init__(self, tokenizer: BytePairTokenizer, special: Special, dtype: DTypeLike | None) -> None:
        """Begin; use :meth:`BytePairTokenizer.stream`."""
        check(tokenizer, BytePairTokenizer, "tokenizer")
        special_code(special)
        if dtype is not None:
            dtype_of("ids", dtype, _DTYPES)
        self._tokenizer, self._special, self._dtype = tokenizer, special, dtype
        self._kept = b""

    def feed(self, piece: Text) -> NDArray[Any]:
        """Add a piece. A refused text is dropped, and the next piece begins another one.

        Args:
            piece: a text; one of bytes may end inside a character.

        Returns:
            The ids that are certain now, ``[N]``.

        Raises:
            DataError: as :meth:`BytePairTokenizer.encode`.
            DTypeError: as :meth:`BytePairTokenizer.encode`.
        """
        text, self._kept = self._kept + _bytes("piece", piece), b""
        end = self._tokenizer._core.settled(text, special_code(self._special))
        ids = self._encode(text[:end])
        self._kept = text[end:]
        return ids

    def finish(self) -> NDArray[Any]:
        """End the text. The next piece begins another one.

        Returns:
            The rest of its ids, ``[N]``.

        Raises:
            DataError: as :meth:`BytePairTokenizer.encode`.
        """
        text, self._kept = self._kept, b""
        return self._encode(text)

    def _encode(self, text: bytes) -> NDArray[Any]:
        return self._tokenizer.encode(text, special=self._special, dtype=self._dtype)


def _from_json(text: bytes) -> BytePairTokenizer:
    return BytePairTokenizer(_core._BytePairs.from_json(text))


def _ids(ids: object) -> NDArray[Any]:
    """Return ids [N] as uint16, uint32 or int64. Raises ShapeError, DTypeError."""
    array = array_of("ids", ids)
    if array.ndim != 1:
        raise ShapeError(f"ids of shape {array.shape}; accepted is one row of ids, [N]")
    if array.dtype in _DTYPES:
        return array
    if array.size and (array.dtype.kind not in "iu" or array.dtype == np.uint64):
        raise DTypeError(f"ids of dtype {array.dtype}; accepted are integers of up to 64 bits with a sign")
    return array.astype(np.int64)


def special_code(special: str) -> int:
    """Return the number of a reading of special tokens in the core. Raises DataError for others."""
    if not isinstance(special, str) or special not in _SPECIAL:
        raise DataError(f"special {shown(special)}; accepted are 'allow', 'refuse' and 'split'")
    return _SPECIAL[special]


def _bytes(name: str, text: Text) -> bytes:
    if isinstance(text, bytes):
        return text
    if isinstance(text, bytearray | memoryview):
        return bytes(text)
    check_text(name, text)
    return text.encode()
