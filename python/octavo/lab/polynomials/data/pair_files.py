"""Reading ``left=right`` files without losing a line unnoticed."""

from __future__ import annotations

import os
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from typing import NamedTuple

from octavo.data._files import DAMAGED, Source
from octavo.errors import DataError, DTypeError
from octavo.lab.polynomials.data.lines import CHARACTERS, LONGEST

# Lines between two calls of ``progress``.
_TOLD = 4096


class Line(NamedTuple):
    """One line of a file: its number, counted from 1, and its two sides."""

    number: int
    left: str
    right: str


class BadLine(NamedTuple):
    """One line that is refused: the file, the number of the line, counted from 1, and the reason."""

    path: str
    number: int
    reason: str


def read(
    path: str | os.PathLike[str],
    *,
    on_error: str | Callable[[BadLine], object] = "raise",
    max_length: int = max(LONGEST),
    progress: Callable[[int], object] | None = None,
) -> Iterator[Line]:
    """Read the lines of a file one after the other; each is either yielded or reported.

    ``path``: plain text, or its .xz or .gz form, which the first bytes tell apart, not the name; a file, or a pipe such
    as ``/dev/stdin``. Lines end with LF or CRLF; the last line may be blank, the first may begin with a mark of UTF-8
    (BOM). ``on_error``: a function that is called with each bad line, after which reading goes on; ``"raise"`` raises
    DataError instead. ``max_length``: characters that a side may have. ``progress``: called now and then with the bytes
    of the file that were read.

    A line is bad if it has no ``=`` or several, an empty side, a side that is too long, a character that no line has
    (:data:`CHARACTERS`), or broken UTF-8, or if it is blank and not the last. Whether the right side is the expansion
    of the left is not looked at; compare with :func:`expand`.

    Raises DataError for compressed data that is damaged, cut off or followed by other bytes, OSErrors for a file that
    cannot be read.
    """
    if on_error != "raise" and not callable(on_error):
        raise DTypeError(f"on_error {on_error!r}; accepted are 'raise' and a function")
    if max_length < 1:
        raise DataError(f"max_length {max_length}; accepted are 1 and more")
    name = os.fsdecode(path)

    def report(number: int, reason: str) -> None:
        if not callable(on_error):
            raise DataError(f"{name}: line {number}: {reason}")
        on_error(BadLine(name, number, reason))

    source = Source(name)  # here, not with the first line, so that a missing file is missed at once
    return _lines(name, source, report, max_length, progress or (lambda nbytes: None))


def _lines(
    name: str,
    source: Source,
    report: Callable[[int, str], None],
    max_length: int,
    progress: Callable[[int], object],
) -> Iterator[Line]:
    side = b"([%b]{1,%d})" % (re.escape(CHARACTERS).encode(), max_length)
    good = re.compile(side + b"=" + side + b"\r?\n?")
    most = 8 * max_length + 64  # bytes kept of one line: enough to say what is wrong with it
    number, blank = 0, False
    with source, source.content() as file:
        try:
            while raw := file.readline(most):
                if number == 0:
                    raw = raw.removeprefix(BOM_UTF8)
                if number % _TOLD == 0:
                    progress(source.position)
                if blank:
                    report(number, "blank")
                rest, cut = raw, False
                while rest and not rest.endswith(b"\n"):
                    rest = file.readline(most)
                    cut |= bool(rest)
                number += 1
                blank = not raw.rstrip(b"\r\n")
                if not cut and (match := good.fullmatch(raw)):
                    yield Line(number, match[1].decode(), match[2].decode())
                elif not blank:
                    report(number, f"more than {most} bytes" if cut else _reason(raw, max_length))
        except DAMAGED as error:
            raise DataError(f"{name}: after line {number}: compressed data is damaged or cut off: {error}") from error


def _reason(raw: bytes, max_length: int) -> str:
    """The fault of a line that is not blank."""
    raw = raw.removesuffix(b"\n").removesuffix(b"\r")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        column = len(raw[: error.start].decode()) + 1
        return f"column {column}: broken UTF-8 at byte 0x{raw[error.start]:02x}"
    for column, character in enumerate(text, 1):
        if character not in CHARACTERS and character != "=":
            fault = "unknown" if character.isascii() else "non-ASCII"
            return f"column {column}: {fault} character {character!r}; allowed are {CHARACTERS!r} and '='"
    sides = text.split("=")
    if len(sides) != 2:
        return f"{len(sides) - 1} '='; a line has one"
    for name, side in zip(("left", "right"), sides, strict=True):
        if not 1 <= len(side) <= max_length:
            return f"the {name} side has {len(side)} characters; accepted are 1 to {max_length}"
    raise AssertionError(f"a good line: {raw!r}")
