"""Shards of tokens: a header of 256 int32 and uint16 ids, little-endian, as the benchmark of GPT-2 on FineWeb has them.

``header[0]`` is 20240520, ``header[1]`` the version 1, ``header[2]`` the number of ids, the rest 0. Every document
begins with its end token, so that the first id of a stream is one.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from octavo.data._arguments import Paths, array_of, paths_of
from octavo.errors import DataError, DTypeError, ShapeError
from octavo.storage import files
from octavo.storage.arguments import checks_arguments
from octavo.storage.reading import check_regular

MAGIC: Final = 20240520
VERSION: Final = 1
HEADER_BYTES: Final = 1024
MOST_TOKENS: Final = (1 << 31) - 1
_CHECKED_AT_ONCE: Final = 1 << 24


@checks_arguments
def write_shard(path: str | os.PathLike[str], ids: object) -> None:
    """Write ids as a shard, which appears whole or not at all.

    Args:
        path: file to write.
        ids: ``[N]``, below 65,536.

    Raises:
        DataError: for larger ids and more than 2**31 - 1 of them.
        ShapeError: for another number of dimensions.
        DTypeError: for anything else than whole numbers.
        OSError: as the system gives it.

    Example:
        >>> octavo.data.write_shard("tokens_train_000001.bin", [5, 3, 65535])
        >>> octavo.data.read_shard("tokens_train_000001.bin").tolist()
        [5, 3, 65535]
    """
    array = array_of("ids", ids)
    if array.ndim != 1:
        raise ShapeError(f"ids of shape {array.shape}; accepted is one row of ids, [N]")
    if array.size and array.dtype.kind not in "iu":
        raise DTypeError(f"ids of dtype {array.dtype}; accepted are whole numbers")
    if array.size > MOST_TOKENS:
        raise DataError(f"{array.size} ids; a shard holds up to {MOST_TOKENS}")
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < 1 << 16:
        raise DataError(f"ids from {array.min()} to {array.max()}; a shard holds ids of 0 to 65535")
    with files.whole(path) as file:
        file.write(_header(array.size))
        file.write(np.ascontiguousarray(array, "<u2").data)


@checks_arguments
def read_shard(path: str | os.PathLike[str], *, vocabulary: int | None = None) -> NDArray[np.uint16]:
    """Return the ids of a shard, mapped from the file: they take memory as they are read.

    Args:
        path: file to read.
        vocabulary: ids from this number on are refused, which reads all of them.

    Returns:
        Ids, ``[N]`` uint16.

    Raises:
        DataError: for another magic number, version or length of the file, and for such ids with their place.
        OSError: as the system gives it.
    """
    count = shard_tokens(path)
    ids: NDArray[np.uint16] = np.memmap(path, "<u2", "r", HEADER_BYTES, (count,)) if count else np.empty(0, np.uint16)
    if vocabulary is not None:
        if vocabulary < 1:
            raise DataError(f"vocabulary {vocabulary}; accepted are 1 and more")
        check_ids(os.fspath(path), ids, vocabulary)
    return ids


def shard_tokens(path: str | os.PathLike[str]) -> int:
    """Return the number of ids that the header of a shard tells, after checking it against the file."""
    nbytes = check_regular(path, DataError).st_size
    name = os.fspath(path)
    with open(path, "rb") as file:
        head = file.read(HEADER_BYTES)
    if len(head) < HEADER_BYTES:
        raise DataError(f"{name}: {nbytes} bytes; a shard has a header of {HEADER_BYTES} bytes")
    header = np.frombuffer(head, "<i4")
    magic, version, count = (int(number) for number in header[:3])
    if magic != MAGIC:
        raise DataError(f"{name}: magic number {magic}; accepted is {MAGIC}: no shard, or of another kind")
    if version != VERSION:
        raise DataError(f"{name}: version {version}; accepted is {VERSION}")
    if count < 0 or nbytes != HEADER_BYTES + 2 * count:
        expected = f"{HEADER_BYTES} + 2 * {count}"
        raise DataError(
            f"{name}: {nbytes} bytes, its header says {count} ids, which are {expected}: cut off or damaged"
        )
    if header[3:].any():
        raise DataError(f"{name}: header[3:] is not 0: written by something that means more than ids by it")
    return count


def check_ids(name: str, ids: NDArray[np.uint16], vocabulary: int) -> None:
    """Refuse ids from ``vocabulary`` on by a DataError with the place of the first."""
    for begin in range(0, len(ids), _CHECKED_AT_ONCE):
        part = ids[begin : begin + _CHECKED_AT_ONCE]
        if int(part.max()) >= vocabulary:
            at = begin + int(np.argmax(part >= vocabulary))
            raise DataError(f"{name}: id {ids[at]} at place {at}; accepted are ids below {vocabulary}")


@checks_arguments
def find_shards(paths: Paths, split: str | None = None) -> list[Path]:
    """Return shards in the order of their names.

    Args:
        paths: files, or folders, of which all ``*.bin``.
        split: ``train`` or ``val``: of a folder only files with ``_train_`` or ``_val_`` in their names.

    Returns:
        Paths.

    Raises:
        DataError: where there are none.
        OSError: as the system gives it.
    """
    places = paths_of(paths)
    shards: list[Path] = []
    for path in places:
        if path.is_dir():
            shards += sorted(
                file
                for file in path.iterdir()
                if file.suffix == ".bin" and (split is None or re.search(rf"(^|_){re.escape(split)}(_|\.)", file.name))
            )
        else:
            os.stat(path)
            shards.append(path)
    if not shards:
        kind = "shards" if split is None else f"shards of the split {split!r}"
        raise DataError(f"{', '.join(str(path) for path in places) or 'no path'}: no {kind}, which are files *.bin")
    return shards


def document_starts(ids: NDArray[Any], end: int) -> NDArray[np.int64]:
    """Return where documents begin: at 0, and at each end token."""
    starts = np.flatnonzero(ids == end).astype(np.int64)
    return starts if starts.size and starts[0] == 0 else np.concatenate([np.zeros(1, np.int64), starts])


def _header(count: int) -> bytes:
    header = np.zeros(HEADER_BYTES // 4, "<i4")
    header[:3] = MAGIC, VERSION, count
    return header.tobytes()
