"""Learning the merges of a byte pair vocabulary from texts: exact counts, the most frequent pair first.

Ties go to the pair of the smaller ids, as in the trainer of the package ``tokenizers``, so that both find the same
merges. Source: Sennrich, Haddow and Birch 2016, section 3.2.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from octavo import _core
from octavo.data._arguments import Paths, check_text, whole
from octavo.data.document_files import files_below, identity, pieces
from octavo.errors import DataError, OctavoError
from octavo.storage import files
from octavo.storage.reading import check_regular, parse_json

Tell = Callable[[str, int, int], None]
"""Called with the name of a stage, what is done of it, and its whole: bytes while counting, merges while learning."""

_MERGES_A_CALL: Final = 64
_SECONDS_BETWEEN: Final = 20.0
_VERSION: Final = 1


def learn(
    texts: Iterable[bytes], size: int, *, pattern: str, special: Sequence[str], least: int, tell: Tell | None = None
) -> _core._BytePairs:
    """Learn a vocabulary of ``size`` ids from texts, each a document."""
    counts = _counts(size, pattern, special)
    for text in texts:
        counts.add(text)
    return _merges(counts, size, special, least, tell)


def learn_from_files(
    paths: Paths,
    size: int,
    *,
    pattern: str,
    special: Sequence[str],
    least: int,
    journal: str | os.PathLike[str] | None = None,
    tell: Tell | None = None,
) -> _core._BytePairs:
    """Learn a vocabulary from the documents of files; with a ``journal`` a run that was killed goes on where it was."""
    sources = files_below(paths)
    counts = _counts(size, pattern, special)
    facts = {"version": _VERSION, "pattern": pattern, "special": list(special), "files": identity(sources)}
    number, start = _resume(counts, journal, facts)
    sizes = [os.stat(path).st_size for path in sources]
    saved = time.monotonic()
    for at in range(number, len(sources)):
        tail, start = b"", start if at == number else 0
        for piece in pieces(sources[at], start):
            text = tail + piece.text
            end = len(text) if piece.is_last else counts.settled(text)
            counts.add(text[:end])
            tail = text[end:]
            if tell is not None:
                tell("counting", counts.totals[0], max(sum(sizes), counts.totals[0]))
            is_due = time.monotonic() - saved > _SECONDS_BETWEEN
            if journal is not None and is_due and (not tail or piece.is_verbatim):
                _save(counts, journal, {**facts, "file": at, "start": piece.end - len(tail)})
                saved = time.monotonic()
        counts.add(tail)
    if journal is not None:
        _save(counts, journal, {**facts, "file": len(sources), "start": 0})
    core = _merges(counts, size, special, least, tell)
    if journal is not None:
        Path(journal).unlink(missing_ok=True)
    return core


def _counts(size: int, pattern: str, special: Sequence[str]) -> _core._PieceCounts:
    check_text("pattern", pattern)
    for token in special:
        check_text("special token", token)
        if not token:
            raise DataError("special token '': accepted are texts of one character or more")
    if len(set(special)) != len(special):
        raise DataError(f"special tokens {', '.join(map(repr, special))}: one is there twice")
    least = 256 + len(special)
    if whole("size", size) < least:
        raise DataError(f"size {size}; accepted are {least} (all bytes and {len(special)} special tokens) and more")
    return _core._PieceCounts(pattern, list(special))


def _merges(
    counts: _core._PieceCounts, size: int, special: Sequence[str], least: int, tell: Tell | None
) -> _core._BytePairs:
    learner = _core._MergeLearner(counts, size, list(special), whole("least", least))
    goes_on = True
    while goes_on:  # in steps, so that an interrupt is heard
        goes_on = learner.advance(_MERGES_A_CALL)
        if tell is not None:
            tell("merging", *learner.merges)
    return learner.finish()


# --- the journal of a run ---------------------------------------------------------------------------------------------


def _save(counts: _core._PieceCounts, journal: str | os.PathLike[str], facts: dict[str, Any]) -> None:
    with files.whole(journal) as file:
        file.write(json.dumps(facts).encode() + b"\n")
        file.write(counts.save())


def _resume(
    counts: _core._PieceCounts, journal: str | os.PathLike[str] | None, facts: dict[str, Any]
) -> tuple[int, int]:
    """Return the file and the byte to go on at, 0 and 0 without a journal. Raises DataError for that of another run."""
    if journal is None or not os.path.lexists(journal):
        return 0, 0
    check_regular(journal, DataError)
    head, _, saved = Path(journal).read_bytes().partition(b"\n")
    name = os.fspath(journal)
    try:
        record = parse_json(head.decode(), name)
        place = int(record["file"]), int(record["start"])
        is_same = {key: record[key] for key in facts} == facts
    except (OctavoError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{name}: no journal of learned counts; remove it or name another file") from error
    if not is_same:
        raise DataError(f"{name}: is of a run on other files or options; remove it to begin anew")
    try:
        counts.restore(saved)
    except DataError as error:
        raise DataError(f"{name}: {error}") from None
    return place
