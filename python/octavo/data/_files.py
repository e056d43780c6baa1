"""Bytes of data files, plain or compressed, of regular files and of pipes. What is damaged or cut off raises."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import zlib
from contextlib import suppress
from typing import Any

from octavo.errors import DataError
from octavo.storage import file_kinds
from octavo.storage.reading import check_regular
from octavo.storage.streams import naming

XZ, GZIP = b"\xfd7zXZ\0", b"\x1f\x8b"
#: What reading compressed data raises where it is damaged, cut off, or followed by something else.
DAMAGED = (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error)

# What to do with a file that is no text, by octavo.storage.file_kinds.
_WAYS_OUT = {
    file_kinds.SHARD: ", which octavo.data.read_shard reads and octavo lab train gpt, by its folder",
    file_kinds.LFS_POINTER: " (git lfs pull downloads it)",
}
_CHUNK = 1 << 17
# Bytes that a decoder may take; `xz -9` needs 65 MiB.
_MEMORY = 512 << 20


class Source(io.RawIOBase):
    """A file whose ``first`` bytes were looked at, which a pipe gives only once; ``position``: bytes read so far."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a file. Raises OSErrors."""
        self._name = os.fspath(path)
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by close
        self.first = self._ahead = b""
        self.position = 0
        self._look(len(XZ))

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read as :class:`io.RawIOBase` does. Raises OSErrors that name the file."""
        if self._ahead:
            size = min(len(buffer), len(self._ahead))
            buffer[:size], self._ahead = self._ahead[:size], self._ahead[size:]
        else:
            with naming(self._file):
                size = self._file.readinto(buffer)
        self.position += size
        return size

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()

    def content(self) -> io.BufferedReader[Any]:
        """Return the content, decompressed if the first bytes say so; reading raises DAMAGED where it is not whole."""
        if self.first[: len(XZ)] == XZ:
            return io.BufferedReader(_Xz(self), _CHUNK)
        plain = io.BufferedReader(self, _CHUNK)
        if self.first[: len(GZIP)] == GZIP:
            return io.BufferedReader(gzip.GzipFile(fileobj=plain), _CHUNK)
        return plain

    def text(self) -> io.BufferedReader:
        """Return the content where it may be a text. Raises DataError that says what it is otherwise, and DAMAGED."""
        self._look(file_kinds.HEAD)
        content = self.content()
        kind = file_kinds.kind_of_binary(content.peek(file_kinds.HEAD)[: file_kinds.HEAD])
        if kind is not None:
            raise DataError(f"{self._name}: {kind}{_WAYS_OUT.get(kind, '')}; accepted are texts, plain, .gz or .xz")
        return content

    def _look(self, size: int) -> None:
        """Let ``first`` be the first ``size`` bytes, or all of a shorter file; before anything is read."""
        with naming(self._file):
            while len(self.first) < size and (piece := self._file.read(size - len(self.first))):
                self.first += piece
        self._ahead = self.first


def check_text_file(path: str | os.PathLike[str]) -> None:
    """Refuse what is no file of text by a DataError that says what it is. Raises OSErrors.

    Compressed data that is damaged is left to who reads on.
    """
    check_regular(path, DataError)
    with Source(path) as source, suppress(*DAMAGED):
        source.text()


class _Xz(io.RawIOBase):
    """The content of .xz streams, one behind the other. ``lzma`` itself drops what follows the last one in silence."""

    def __init__(self, source: io.RawIOBase) -> None:
        self._source = source
        self._decoder: lzma.LZMADecompressor | None = _decoder()
        self._rest, self._is_first = b"", True

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._decode(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _decode(self, size: int) -> bytes:
        while True:
            if self._decoder is None and not self._begin_another():
                return b""
            assert self._decoder is not None
            data = b""
            if self._decoder.needs_input:
                data, self._rest = self._rest or self._source.read(_CHUNK) or b"", b""
                if not data:
                    raise EOFError(self._reason("the file ends inside it"))
            try:
                out = self._decoder.decompress(data, size)
            except lzma.LZMAError as error:
                raise lzma.LZMAError(self._reason(str(error))) from error
            if self._decoder.eof:
                self._rest, self._decoder, self._is_first = self._decoder.unused_data, None, False
            if out:
                return out

    def _begin_another(self) -> bool:
        """Begin the next stream behind zeros, four by four, that may lie between two; False at the end of the file."""
        zeros = 0
        while True:
            data = self._rest or self._source.read(_CHUNK) or b""
            self._rest = data.lstrip(b"\0")
            zeros += len(data) - len(self._rest)
            if not data or self._rest:
                break
        if zeros % 4:
            raise lzma.LZMAError(self._reason(f"{zeros} bytes of 0"))
        if not data:
            return False
        self._decoder = _decoder()
        return True

    def _reason(self, text: str) -> str:
        return text if self._is_first else f"what follows the last stream is no whole stream: {text}"


def _decoder() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY)
