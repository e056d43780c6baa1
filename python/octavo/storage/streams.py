"""Reads and writes bytes on any stream: pipes, sockets, raw files, non-blocking descriptors, file-like objects.

``read`` and ``write`` of a raw stream may do less than asked, or nothing where the descriptor is non-blocking.
"""

from __future__ import annotations

import errno
import io
import os
import select
import time
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from octavo.errors import DTypeError

# Seconds between two tries on a stream that would block and has no descriptor to wait for.
_PAUSE = 0.01
_STANDARD = {0: "standard input", 1: "standard output", 2: "standard error"}


def read_some(reader: IO[bytes], size: int) -> bytes:
    """Return up to ``size`` bytes, as soon as there are some; ``b""`` is the end, never a pause.

    Raises OSErrors with the name of the stream, DTypeError for a stream of text and for what is no stream.
    """
    if not hasattr(reader, "read"):
        raise DTypeError(f"{name_of(reader)} has no read; a socket gives a stream with makefile('rb')")
    with naming(reader):
        while (data := _read(reader, size)) is None:
            _wait(reader, "POLLIN")
    if not isinstance(data, bytes | bytearray | memoryview):
        raise DTypeError(f"{name_of(reader)}: read gives a {type(data).__name__}; open it in binary mode")
    return bytes(data)


def read_first(reader: IO[bytes], size: int) -> bytes:
    """Return what :func:`read_some` does at the beginning of a text, without the mark that some editors put there."""
    data = read_some(reader, size)
    while data and len(data) < len(BOM_UTF8) and BOM_UTF8.startswith(data) and (more := read_some(reader, size)):
        data += more
    return data.removeprefix(BOM_UTF8) if data != BOM_UTF8 else read_some(reader, size)


def write_all(writer: IO[bytes], data: bytes) -> None:
    """Write all of ``data`` and flush it, however little the stream takes at once, waiting where it would block.

    A None from ``write`` means that nothing was taken where the stream is raw, and all of it elsewhere.
    Raises OSErrors with the name of the stream; what was taken before stays written. DTypeError for a stream of text
    and for what is no stream.
    """
    if not hasattr(writer, "write"):
        raise DTypeError(f"{name_of(writer)} has no write; a socket gives a stream with makefile('wb')")
    if isinstance(writer, io.TextIOBase):
        raise DTypeError(f"{name_of(writer)}: a stream of text; open it in binary mode, or pass its .buffer")
    with naming(writer):
        while data:
            taken = _write(writer, data)
            data = data[taken:]
            if not taken:
                _wait(writer, "POLLOUT")
        while not _flush(writer):
            _wait(writer, "POLLOUT")


def name_of(stream: Any) -> str:
    """Return what to call a stream in a message: its path, ``standard output``, or its class."""
    name = getattr(stream, "name", None)
    if isinstance(name, int):
        return _STANDARD.get(name, f"descriptor {name}")
    if isinstance(name, str | bytes | os.PathLike) and os.fspath(name):
        name = os.fsdecode(name)
        return {"<stdin>": _STANDARD[0], "<stdout>": _STANDARD[1]}.get(name, name)
    return f"a {type(stream).__name__}"


@contextmanager
def naming(stream: Any) -> Iterator[None]:
    """Give OSErrors that name no file the name of the stream."""
    try:
        yield
    except OSError as error:
        number = errno.ETIMEDOUT if isinstance(error, TimeoutError) else error.errno
        if error.filename is not None or number is None:
            raise
        name = name_of(stream)
        closed = number == errno.EBADF and name in _STANDARD.values()
        raise OSError(number, "it is closed" if closed else error.strerror or str(error), name) from error
    except ValueError as error:
        if not getattr(stream, "closed", False):
            raise
        raise OSError(errno.EBADF, "it is closed", name_of(stream)) from error


def _read(reader: IO[bytes], size: int) -> Any:
    """Return what there is, ``b""`` at the end, None if a read would block."""
    try:
        if not hasattr(reader, "read1"):  # a raw stream, whose read does not wait for a full chunk either
            return reader.read(size)
        data = reader.read1(size)
        # b"" from read1 is the end, or a read that would block; read tells them apart. A descriptor that blocks is at
        # its end, and another read of a terminal would ask for a second Ctrl-D.
        return reader.read(1) if data == b"" and _is_non_blocking(reader) else data
    except BlockingIOError:
        return None


def _write(writer: IO[bytes], data: bytes) -> int:
    """Return how many bytes a write took; 0 if it would block."""
    try:
        taken = writer.write(data)
    except BlockingIOError as error:
        return getattr(error, "characters_written", 0)
    if taken is None:
        return 0 if isinstance(writer, io.RawIOBase) else len(data)
    if not 0 < taken <= len(data):
        raise OSError(errno.EIO, f"write took {taken} of {len(data)} bytes")
    return taken


def _flush(writer: IO[bytes]) -> bool:
    """Flush a stream; False if that would block."""
    try:
        writer.flush()
    except BlockingIOError:
        return False
    return True


def _wait(stream: Any, event: str) -> None:
    """Wait until a stream may be read or written. Signals are heard meanwhile."""
    number = _descriptor(stream)
    if number is None or not hasattr(select, "poll"):  # Windows
        time.sleep(_PAUSE)
        return
    poll = select.poll()  # noqa: TID251
    poll.register(number, getattr(select, event))
    poll.poll()


def _is_non_blocking(stream: Any) -> bool:
    number = _descriptor(stream)
    return number is not None and hasattr(os, "get_blocking") and not os.get_blocking(number)  # noqa: TID251


def _descriptor(stream: Any) -> int | None:
    try:
        number = stream.fileno()
    except (AttributeError, OSError, ValueError):  # not a method of it, or none behind it, or closed
        return None
    return number if type(number) is int and number >= 0 else None
