"""GGUF files of version 3: the header from sizes alone, then the bytes of one tensor after the other.

Tensors lie in the order of the header, without gaps but those of the alignment, as ggml's reader demands. Source: ggml,
``docs/gguf.md`` and ``src/gguf.cpp``.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from octavo.errors import ContainerError
from octavo.interchange.gguf import DIMENSIONS, KEYS, MAGIC, NAME_BYTES, TENSORS, VALUES
from octavo.interchange.gguf_metadata import Typed, alignment_of
from octavo.storage import files
from octavo.storage.reading import shown

if TYPE_CHECKING:
    from torch import Tensor

    from octavo.interchange.conversion_report import Progress
    from octavo.interchange.ggml_types import GgmlType

_VERSION = 3


@dataclass(frozen=True)
class FileTensor:
    """A tensor of a file to be written.

    ``shape``: in the order of torch, rows before columns. ``parts``: yields its bytes as uint8, in order.
    """

    name: str
    type: GgmlType
    shape: tuple[int, ...]
    parts: Callable[[], Iterable[Tensor]]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) // self.type.elements * self.type.nbytes


def write_file(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Typed],
    tensors: Sequence[FileTensor],
    *,
    progress: Progress | None = None,
) -> int:
    """Write a file, which appears whole or not at all; return its bytes.

    Raises ContainerError for what ggml's reader refuses, before anything is written: names, dimensions, rows that are
    no whole blocks, values beyond their type. OSErrors.
    """
    alignment = alignment_of(metadata)
    head = _header(metadata, tensors, alignment)
    with files.whole(path) as file:
        written = file.write(head)
        for tensor in tensors:
            nbytes = sum(_write(file, part) for part in tensor.parts())
            assert nbytes == tensor.nbytes, f"{tensor.name}: {nbytes} bytes, {tensor.nbytes} announced"
            written += nbytes + file.write(bytes(-nbytes % alignment))
            if progress:
                progress(tensor.name, nbytes)
    return written


def _write(file: IO[bytes], part: Tensor) -> int:
    return file.write(part.contiguous().flatten().numpy().data)


def _header(metadata: Mapping[str, Typed], tensors: Sequence[FileTensor], alignment: int) -> bytes:
    values = sum(len(one.value) for one in metadata.values() if isinstance(one.value, list))
    for label, count, most in (
        ("keys", len(metadata), KEYS), ("tensors", len(tensors), TENSORS), ("values in lists", values, VALUES)
    ):  # fmt: skip
        if count > most:
            raise ContainerError(f"{count} {label}; a GGUF file has up to {most}")
    names = [tensor.name for tensor in tensors]
    if len(set(names)) != len(names):
        twice = next(name for number, name in enumerate(names) if name in names[:number])
        raise ContainerError(f"tensor {shown(twice)} twice; names in a GGUF file differ")
    parts = [MAGIC, struct.pack("<IQQ", _VERSION, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += [_text(key), value.data(key)]
    offset = 0
    for tensor in tensors:
        _check(tensor)
        dims = struct.pack(f"<{len(tensor.shape)}q", *reversed(tensor.shape))
        parts += [
            _text(tensor.name), struct.pack("<I", len(tensor.shape)), dims,
            struct.pack("<IQ", tensor.type.number, offset),
        ]  # fmt: skip
        offset += tensor.nbytes + -tensor.nbytes % alignment
    head = b"".join(parts)
    return head + bytes(-len(head) % alignment)


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _check(tensor: FileTensor) -> None:
    label, kind = f"tensor {shown(tensor.name)}", tensor.type
    if not 1 <= len(tensor.name.encode()) <= NAME_BYTES:
        raise ContainerError(
            f"{label}: a name of {len(tensor.name.encode())} bytes; a GGUF file has up to {NAME_BYTES}"
        )
    if len(tensor.shape) > DIMENSIONS or min(tensor.shape, default=1) < 1:
        raise ContainerError(
            f"{label}: shape {list(tensor.shape)}; a GGUF file has up to {DIMENSIONS} dimensions of at least 1"
        )
    columns = tensor.shape[-1] if tensor.shape else 1
    if columns % kind.elements:
        raise ContainerError(f"{label}: rows of {columns} elements; {kind.name} takes multiples of {kind.elements}")
