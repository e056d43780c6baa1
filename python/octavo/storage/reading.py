"""Reads small untrusted files: regular files only, of bounded size, and JSON of a known shape.

Everything in the package that reads configurations, indices, descriptions and other small text goes through here, so
that a named pipe, a device, a file of gigabytes, or JSON that is deep, long or twice the same key is refused by name
before it costs anything. :mod:`octavo.tensors.container` reads the large files, whose rules live in Rust.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from typing import IO, Any

from octavo.errors import ContainerError, OctavoError
from octavo.storage import system

#: Bytes of a configuration, of an index of shards, of a vocabulary, and of records that grow with a run.
CONFIG_BYTES, INDEX_BYTES, VOCABULARY_BYTES, RECORD_BYTES = 1 << 24, 1 << 25, 1 << 26, 1 << 28
#: Nesting of a JSON text, and values in it: a value takes about 100 bytes once it is read, whatever its text takes.
DEPTH, VALUES = 64, 1_000_000

_BLANK = b" \t\r\n\0"
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)  # also where it does not end: no character is looked at twice
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_KINDS = {dict: "an object", list: "a list", str: "a text", int: "a whole number", float: "a number", bool: "a boolean"}
_ODD = {
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

Named = str | os.PathLike[str]


def check_regular(path: Named, error: type[OctavoError] = ContainerError) -> os.stat_result:
    """Refuse what is no regular file before it is opened: opening a named pipe waits for ever. Links are followed.

    Raises ``error``, and OSErrors for a file that is missing or a folder.
    """
    status = os.stat(path)
    _refuse_odd(path, status, error)
    return status


def check_own(path: Named, error: type[OctavoError] = ContainerError) -> None:
    """Refuse a name that is taken by what is no regular file, before it is written to: a link leads elsewhere.

    Raises ``error``, and OSErrors for a folder.
    """
    if os.path.lexists(path):
        _refuse_odd(path, os.lstat(path), error)


def _refuse_odd(path: Named, status: os.stat_result, error: type[OctavoError]) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(21, "Is a directory", os.fspath(path))
    if not stat.S_ISREG(status.st_mode):
        raise error(f"{os.fspath(path)}: {_ODD.get(kind, 'no file')}; accepted are regular files, replace it by one")


def read_bytes(path: Named, most: int = CONFIG_BYTES, *, error: type[OctavoError] = ContainerError) -> bytes:
    """Return the bytes of a regular file of up to ``most`` bytes. Raises ``error`` for another, OSErrors."""
    check_regular(path, error)
    with open(os.open(path, system.READ), "rb") as opened:
        status = os.fstat(opened.fileno())  # it may be another file by now
        _refuse_odd(path, status, error)
        data = opened.read(most + 1) if status.st_size <= most else b""
    if status.st_size > most or len(data) > most:
        nbytes = max(status.st_size, len(data))
        raise error(f"{os.fspath(path)}: {nbytes} bytes; accepted are up to {most}, make the file smaller")
    return data


def read_head(path: Named, count: int) -> bytes:
    """Return the first ``count`` bytes of a regular file; none of anything else, or of what cannot be read."""
    try:
        check_regular(path)
        with open(os.open(path, system.READ), "rb") as opened:
            return opened.read(count)
    except (OSError, ContainerError):
        return b""


def read_text(path: Named, most: int = CONFIG_BYTES, *, error: type[OctavoError] = ContainerError) -> str:
    """Return the text of a regular file in UTF-8. Raises as :func:`read_bytes`, also for other bytes."""
    try:
        return read_bytes(path, most, error=error).decode("utf-8")
    except UnicodeDecodeError as wrong:
        raise error(f"{os.fspath(path)}: not UTF-8 at byte {wrong.start}; save it as UTF-8") from None


def read_json(
    path: Named,
    most: int = CONFIG_BYTES,
    *,
    kind: type = dict,
    finite: bool = True,
    error: type[OctavoError] = ContainerError,
) -> Any:
    """Return the JSON value of a file, which must be a ``kind``. Raises as :func:`read_text` and :func:`parse_json`."""
    return parse_json(read_text(path, most, error=error), os.fspath(path), kind=kind, finite=finite, error=error)


def parse_json(
    text: str,
    label: str,
    *,
    kind: type = dict,
    finite: bool = True,
    most: int = VALUES,
    error: type[OctavoError] = ContainerError,
) -> Any:
    """Return the JSON value of a text, which must be a ``kind``; ``label`` names the text in errors.

    ``most``: values in it. ``finite``: refuse NaN and infinities, which JSON has not and some writers use. Raises
    ``error`` with the place for text that is no JSON, keys that appear twice, halves of surrogate pairs, more than
    ``DEPTH`` levels or ``most`` values, and for a value of another kind.
    """
    _check_extent(text, label, most, error)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    raise error(f"{label}: the key {shown(key)} appears twice; keep one of them")
                seen.add(key)
        return table

    def constant(name: str) -> float:
        if finite:
            raise error(f"{label}: {name} is no number of JSON; write a finite one")
        return float(name)

    try:
        value = json.loads(text, object_pairs_hook=once, parse_constant=constant)
    except OctavoError:
        raise
    except (ValueError, RecursionError) as wrong:  # ValueError: also of numbers with thousands of digits
        raise error(f"{label}: not JSON: {wrong}; write it anew") from None
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise error(f"{label}: half of a surrogate pair, which is no character; write the character") from None
    if not isinstance(value, kind):
        raise error(f"{label}: a JSON {type(value).__name__}; accepted is {_KINDS[kind]}")
    return value


def _check_extent(text: str, label: str, most: int, error: type[OctavoError]) -> None:
    """Refuse deep or long JSON before it is parsed: 3 bytes of text, ``[],``, become 64 of memory."""
    opened = text.count("[") + text.count("{")
    if opened > DEPTH:
        depth = 0
        for mark in re.findall(r"[\[\]{}]", _STRING.sub("", text)):
            depth += 1 if mark in "[{" else -1
            if depth > DEPTH:
                raise error(f"{label}: not JSON of up to {DEPTH} levels; write it flatter")
    if opened + text.count(",") > most and len(re.findall(r"[\[{,]", _STRING.sub("", text))) > most:
        raise error(f"{label}: not JSON of up to {most} values; write it shorter")


def end_of_lines(file: IO[bytes]) -> int:
    """Return the bytes of a file of lines up to the end of its last whole line that is not blank.

    What follows is of a write that a kill, a full disk or a power failure cut off: a line without its end, or lines of
    blanks and zero bytes.
    """
    end = size = file.seek(0, os.SEEK_END)
    block, tail = 1 << 16, b""
    while end and not tail.rstrip(_BLANK).count(b"\n"):
        start = max(end - block, 0)
        file.seek(start)
        tail, end, block = file.read(end - start) + tail, start, 2 * block
    whole = tail[: tail.rfind(b"\n") + 1].rstrip(_BLANK)
    line_end = tail.find(b"\n", len(whole))
    return size - len(tail) + (line_end + 1 if whole else 0)


def member(
    table: Mapping[str, Any],
    key: str,
    kind: type | tuple[type, ...],
    label: str,
    *,
    error: type[OctavoError] = ContainerError,
) -> Any:
    """Return ``table[key]``, which must be a ``kind``; booleans are no numbers. Raises ``error`` naming the key."""
    if key not in table:
        raise error(f"{label}: {key} is missing")
    value = table[key]
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        accepted = " or ".join(_KINDS.get(one, "null") for one in kinds)
        raise error(f"{label}: {key} is {shown(value)}; accepted is {accepted}")
    return value


def shown(value: object) -> str:
    """Return a foreign value for a message: escaped, and cut at 80 characters."""
    try:
        text = ascii(value)
    except Exception:  # numbers of thousands of digits, nesting, an object whose text is an error
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
