"""Texts on standard input, a line each."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from octavo.errors import DataError
from octavo.storage.streams import read_first, read_some

_READ = 1 << 16


def standard_lines() -> list[str]:
    """Return the lines of standard input, whatever it is. Raises DataError for other bytes than UTF-8, OSErrors."""
    data = bytearray(read_first(sys.stdin.buffer, _READ))
    while more := read_some(sys.stdin.buffer, _READ) if data else b"":
        data += more
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"standard input: byte {error.start} is no UTF-8; accepted is text in UTF-8") from None
    # Not splitlines: form feeds and the like end no line, and one text would become two.
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def coming_lines() -> Iterator[str]:
    """Yield the lines of standard input as they come: who writes them may wait for an answer to each.

    Raises DataError for other bytes than UTF-8, OSErrors.
    """
    for number, line in enumerate(_lines(), 1):
        try:
            yield line.decode().removesuffix("\r")
        except UnicodeDecodeError:
            raise DataError(f"standard input: line {number} is no UTF-8; accepted is text in UTF-8") from None


def _lines() -> Iterator[bytes]:
    data = read_first(sys.stdin.buffer, _READ)
    rest: list[bytes] = []
    while data:
        *lines, last = data.split(b"\n")
        for line in lines:
            yield b"".join([*rest, line])
            rest = []
        rest.append(last)
        data = read_some(sys.stdin.buffer, _READ)
    if any(rest):
        yield b"".join(rest)
