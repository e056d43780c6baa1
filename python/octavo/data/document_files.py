"""Files of documents: text with ``<|endoftext|>`` between documents, or JSON lines; plain, .gz or .xz."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from octavo.data._arguments import Paths, paths_of
from octavo.data._files import DAMAGED, Source, check_text_file
from octavo.errors import DataError, OctavoError
from octavo.storage.reading import check_regular, member, parse_json

SEPARATOR = b"<|endoftext|>"
_BLOCK = 1 << 22
_LONGEST_LINE = 1 << 28


class Piece(NamedTuple):
    """A part of a document."""

    text: bytes
    is_last: bool
    """Whether the document ends with it."""
    end: int
    """Bytes of the uncompressed file up to its end, the separator included."""
    is_verbatim: bool
    """Whether its bytes are those of the file: false for JSON."""


def pieces(path: str | os.PathLike[str], start: int = 0) -> Iterator[Piece]:
    """Yield the documents of a file in pieces of up to 4 MiB; an empty document is none.

    A file ``*.jsonl`` (``.jsonl.xz``, ``.jsonl.gz``) has an object a line, whose ``text`` is a document; every other
    file is text, with ``<|endoftext|>`` between documents. ``start``: bytes of the uncompressed file to pass over, the
    ``end`` of a piece. Raises DataError for damaged files and lines of other content, with their number; OSErrors.
    """
    check_regular(path, DataError)
    source = Source(path)
    try:
        with source, source.text() as content:
            at = 0
            while at < start:
                passed = len(content.read(min(_BLOCK, start - at)))
                if not passed:
                    raise DataError(f"{os.fspath(path)}: ends at byte {at}; it had {start} when the work began")
                at += passed
            yield from _lines(path, content, start) if _is_json(path) else _texts(content, start)
    except DAMAGED as error:
        raise DataError(f"{os.fspath(path)}: damaged or cut off: {error}") from error


def files_below(paths: Paths) -> list[Path]:
    """Return the files of a path or several in order: a folder stands for its ``*.txt*`` and ``*.jsonl*``, sorted.

    Raises DataError for a folder without any, for no paths, and for a file that is no text, with what it is; OSErrors.
    """
    files = []
    for path in paths_of(paths):
        if not path.is_dir():
            os.stat(path)
            files.append(path)
            continue
        inside = sorted(file for file in path.iterdir() if {".txt", ".jsonl", ".text"} & set(file.suffixes))
        if not inside:
            raise DataError(f"{path}: no files *.txt or *.jsonl (or .xz, .gz of them); name the files")
        files += inside
    if not files:
        raise DataError("no files of text; give one or more")
    for path in files:
        check_text_file(path)
    return files


def identity(paths: Sequence[Path]) -> list[list[str | int]]:
    """Return what says whether files are those that a run began with: names, sizes, times of change."""
    states = [(path, os.stat(path)) for path in paths]
    return [[os.path.abspath(path), stat.st_size, stat.st_mtime_ns] for path, stat in states]


def _is_json(path: str | os.PathLike[str]) -> bool:
    name = os.fspath(path).removesuffix(".xz").removesuffix(".gz")
    return name.endswith(".jsonl")


def _texts(content: IO[bytes], at: int) -> Iterator[Piece]:
    tail, is_open = b"", False
    while block := content.read(_BLOCK):
        *whole, rest = (tail + block).split(SEPARATOR)
        for text in whole:
            at += len(text) + len(SEPARATOR)
            if text or is_open:
                yield Piece(text, True, at, True)
            is_open = False
        # Half of a separator may stand at the end.
        tail = rest[max(0, len(rest) - len(SEPARATOR) + 1) :]
        if text := rest[: len(rest) - len(tail)]:
            at += len(text)
            is_open = True
            yield Piece(text, False, at, True)
    if tail or is_open:
        yield Piece(tail, True, at + len(tail), True)


def _lines(path: str | os.PathLike[str], content: IO[bytes], at: int) -> Iterator[Piece]:
    path_text = os.fspath(path)
    while line := content.readline(_LONGEST_LINE):
        at += len(line)
        if not line.strip():
            continue
        try:
            text = member(parse_json(line.decode(), path_text), "text", str, path_text, error=DataError).encode()
        except (OctavoError, UnicodeError) as error:
            raise DataError(
                f"{path_text}: the line before byte {at}: {line[:60]!r}; accepted is an object with a text 'text'"
            ) from error
        if text:
            yield Piece(text, True, at, False)
