"""Files of documents to shards of tokens: every document begins with the end token, shards appear whole, runs go on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.data._arguments import Paths, whole
from octavo.data.byte_pairs import BytePairTokenizer
from octavo.data.document_files import SEPARATOR, files_below, identity, pieces
from octavo.data.shards import MOST_TOKENS, shard_tokens, write_shard
from octavo.errors import DataError
from octavo.storage import files
from octavo.storage.arguments import checks_arguments
from octavo.storage.reading import member, read_json

Tell = Callable[[str, int, int], None]
"""Called with the name of a stage, bytes read, and bytes of all files; compressed files have more than their size."""

INDEX: Final = "shards.json"
_JOURNAL: Final = ".tokenize.json"


@dataclass(frozen=True)
class TokenCount:
    """What some files hold."""

    tokens: int
    """Ids, an end token before each document included."""
    documents: int
    nbytes: int
    """Bytes of text."""


@dataclass(frozen=True)
class ShardIndex:
    """The shards of a folder, as ``shards.json`` holds them."""

    tokens: int
    documents: int
    nbytes: int
    vocabulary: int
    end: int
    tokenizer: str
    """SHA-256 of ``tokenizer.json``."""
    sources: list[list[Any]]
    """Paths, sizes, times of change."""
    shards: list[dict[str, Any]]
    """Name, ids and SHA-256 of each."""


@dataclass(frozen=True)
class _Place:
    """A place among the ids of a run: those before it are in shards."""

    file: int = 0
    start: int = 0
    """Bytes of the uncompressed file before the document."""
    passed: int = 0
    """Ids of the document before the place."""
    documents: int = 0
    nbytes: int = 0
    """Documents before this one, and their bytes of text."""


class _Part(NamedTuple):
    ids: NDArray[np.uint32]
    place: _Place
    """Where the first of ``ids`` stands."""
    is_last: bool
    """Whether the document ends with it."""
    nbytes: int


@checks_arguments
def write_shards(
    sources: Paths,
    folder: str | os.PathLike[str],
    tokenizer: BytePairTokenizer,
    *,
    end: str = SEPARATOR.decode(),
    shard: int = 100_000_000,
    validation: int = 0,
    name: str = "tokens",
    tell: Tell | None = None,
) -> ShardIndex:
    """Write the documents of files as shards of ids, in the order of the files.

    A run that was killed goes on behind its last whole shard. Special tokens inside of documents are text.

    Args:
        sources: files or folders, as for :meth:`BytePairTokenizer.train_files`.
        folder: gets ``NAME_train_000001.bin`` and so on, ``NAME_val_000000.bin`` with ``validation``,
            ``tokenizer.json`` and ``shards.json``.
        tokenizer: the tokenizer.
        end: the special token before every document.
        shard: ids of each shard but the last.
        validation: first ids, which are for validation: whole documents, of which the last may pass the number, and is
            cut at twice the number.
        name: of the files.
        tell: called with the progress.

    Returns:
        The contents of ``shards.json``.

    Raises:
        DataError: for a vocabulary of more than 65,536 ids, for one without ``end``, and for a folder of another run.
        OSError: as the system gives it.
    """
    paths = files_below(sources)
    number = tokenizer.special.get(end)
    if number is None:
        raise DataError(f"{end!r} is no special token of the tokenizer; its are {sorted(tokenizer.special)}")
    if tokenizer.size > 1 << 16:
        raise DataError(f"a vocabulary of {tokenizer.size} ids; shards hold ids below 65536")
    if not 0 < whole("shard", shard) <= MOST_TOKENS or whole("validation", validation) > MOST_TOKENS:
        raise DataError(f"shard {shard}, validation {validation}; accepted are up to {MOST_TOKENS} ids")
    if not name.replace("_", "a").replace("-", "a").isalnum():
        raise DataError(f"name {name!r}; accepted are letters, digits, - and _")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    text = tokenizer.to_json().encode()
    facts: dict[str, Any] = {
        "tokenizer": hashlib.sha256(text).hexdigest(),
        "sources": identity(paths),
        "end": number,
        "shard": shard,
        "validation": validation,
        "name": name,
    }
    done, place = _resume(target, facts)
    tokenizer.save(target / "tokenizer.json")
    _note(target, facts, done, place)  # a killed run leaves no shard without a journal
    writer = _Writer(target, facts, done, validation)
    last = place
    for part in _encoded(tokenizer, number, paths, place, tell):
        writer.add(part)
        last = part.place
        if part.is_last:
            last = replace(last, documents=last.documents + 1, nbytes=last.nbytes + part.nbytes)
    writer.flush(replace(last, file=len(paths), start=0, passed=0))
    if not sum(entry["tokens"] for entry in done):
        raise DataError(f"{', '.join(map(str, paths))}: no document in them")
    index = ShardIndex(
        tokens=sum(entry["tokens"] for entry in done),
        documents=last.documents,
        nbytes=last.nbytes,
        vocabulary=tokenizer.size,
        end=number,
        tokenizer=facts["tokenizer"],
        sources=facts["sources"],
        shards=done,
    )
    files.write(target / INDEX, json.dumps(asdict(index), indent=1) + "\n")
    (target / _JOURNAL).unlink(missing_ok=True)
    return index


@checks_arguments
def count_tokens(sources: Paths, tokenizer: BytePairTokenizer, *, tell: Tell | None = None) -> TokenCount:
    """Return how many ids and documents files hold, as :func:`write_shards` would write them.

    Args:
        sources: files or folders, as for :meth:`BytePairTokenizer.train_files`.
        tokenizer: the tokenizer.
        tell: called with the progress.

    Returns:
        The numbers.

    Raises:
        DataError: for files that cannot be read as texts.
        OSError: as the system gives it.
    """
    paths = files_below(sources)
    tokens = documents = nbytes = 0
    for part in _encoded(tokenizer, 0, paths, _Place(), tell):
        tokens += len(part.ids)
        if part.is_last:
            documents, nbytes = part.place.documents + 1, part.place.nbytes + part.nbytes
    return TokenCount(tokens, documents, nbytes)


def _encoded(
    tokenizer: BytePairTokenizer, end: int, paths: list[Path], place: _Place, tell: Tell | None
) -> Iterator[_Part]:
    """Yield the ids of documents in parts, from a place on; each document begins with ``end``."""
    sizes = [path.stat().st_size for path in paths]
    documents, total = place.documents, place.nbytes
    for at in range(place.file, len(paths)):
        start = place.start if at == place.file else 0
        skip = place.passed if at == place.file else 0
        stream = tokenizer.stream(special="split", dtype=np.uint32)
        passed = nbytes = 0
        for piece in pieces(paths[at], start):
            parts = [stream.feed(piece.text), *([stream.finish()] if piece.is_last else [])]
            ids = np.concatenate([np.full(int(not passed), end, np.uint32), *parts])
            nbytes += len(piece.text)
            fresh = ids[max(0, skip - passed) :]
            here = _Place(at, start, passed + len(ids) - len(fresh), documents, total)
            yield _Part(fresh, here, piece.is_last, nbytes)
            passed += len(ids)
            if piece.is_last:
                documents, total, start = documents + 1, total + nbytes, piece.end
                passed = nbytes = skip = 0
            if tell is not None:
                tell("encoding", sum(sizes[:at]) + min(piece.end, sizes[at]), sum(sizes))


class _Writer:
    """Gathers ids and writes shards as they are full."""

    def __init__(self, folder: Path, facts: dict[str, Any], done: list[dict[str, Any]], validation: int) -> None:
        self._folder, self._facts, self._done, self._validation = folder, facts, done, validation
        self._parts: list[NDArray[np.uint32]] = []
        self._filled = 0

    def add(self, part: _Part) -> None:
        """Take the ids of a part, and write the shards that they fill."""
        ids = part.ids
        while len(ids):
            is_validation = bool(self._validation) and not self._done
            # Of a text that is one document, or ends with a long one, something must be left to train on.
            most = 2 * self._validation if is_validation else self._facts["shard"]
            room = most - self._filled
            self._parts.append(ids[:room])
            self._filled += len(ids[:room])
            ids = ids[room:]
            ends = is_validation and part.is_last and not len(ids) and self._filled >= self._validation
            if ends or self._filled == most:
                self.flush(replace(part.place, passed=part.place.passed + len(part.ids) - len(ids)))

    def flush(self, place: _Place) -> None:
        """Write what is gathered, and note that the run goes on at ``place``."""
        if not self._filled:
            return
        number = len(self._done) + (not self._validation)
        split = "val" if number == 0 else "train"
        name = f"{self._facts['name']}_{split}_{number:06}.bin"
        ids = np.concatenate(self._parts).astype("<u2")
        write_shard(self._folder / name, ids)
        digest = hashlib.sha256((self._folder / name).read_bytes()).hexdigest()
        self._done.append({"name": name, "tokens": len(ids), "sha256": digest})
        self._parts, self._filled = [], 0
        _note(self._folder, self._facts, self._done, place)


def _note(folder: Path, facts: dict[str, Any], done: list[dict[str, Any]], place: _Place) -> None:
    files.write(folder / _JOURNAL, json.dumps({"facts": facts, "shards": done, "place": asdict(place)}))


def _resume(folder: Path, facts: dict[str, Any]) -> tuple[list[dict[str, Any]], _Place]:
    """Return the shards of a run that was interrupted and where it stood. Raises DataError for another run's folder."""
    journal = folder / _JOURNAL
    if not journal.exists():
        taken = sorted(file.name for file in folder.glob("*.bin"))
        if taken or (folder / INDEX).exists():
            raise DataError(f"{folder}: has {', '.join(taken[:3]) or INDEX} already; name another folder or empty it")
        return [], _Place()
    record, label = read_json(journal, error=DataError), os.fspath(journal)
    if member(record, "facts", dict, label, error=DataError) != facts:
        raise DataError(f"{folder}: holds an unfinished run on other files or options; name another folder or empty it")
    done = member(record, "shards", list, label, error=DataError)
    for entry in done:
        if shard_tokens(folder / entry["name"]) != entry["tokens"]:
            raise DataError(f"{folder / entry['name']}: changed since it was written; empty the folder to begin anew")
    return done, _Place(**member(record, "place", dict, label, error=DataError))
