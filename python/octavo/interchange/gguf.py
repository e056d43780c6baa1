"""GGUF files, versions 2 and 3: the header is parsed, the data is mapped.

Every count, length, offset and dimension is compared with the bytes of the file before anything is allocated for it.
Source: ggml, ``docs/gguf.md`` and ``src/gguf.cpp``.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.errors import ContainerError
from octavo.interchange.ggml_types import REMOVED, TYPES, GgmlType
from octavo.storage import system
from octavo.storage.reading import check_regular, shown

if TYPE_CHECKING:
    from torch import Tensor

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT_KEY, ALIGNMENT = "general.alignment", 32
KEYS, TENSORS, VALUES = 1 << 16, 1 << 17, 4_000_000
"""Most keys, tensors and values in all arrays of a file. A value takes up to 60 bytes once it is read."""
DIMENSIONS, NAME_BYTES = 4, 63
"""Most dimensions of a tensor and bytes of its name, as in ggml."""

NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Types of numbers in metadata, with their codes for :mod:`struct`."""
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
"""Some types of metadata."""
_LEAST_KEY, _LEAST_TENSOR = 8 + 4 + 1, 8 + 4 + 4 + 8


@dataclass(frozen=True)
class GgufTensor:
    """A tensor of a GGUF file.

    ``shape``: in the order of torch, rows before columns. ``offset``: of its first byte, from the start of the file.
    """

    name: str
    type: GgmlType
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class GgufFile:
    """A GGUF file: its metadata and the places of its tensors; their bytes are mapped, not read.

    Attributes:
        path: of the file.
        version: 2 or 3.
        alignment: of tensors, in bytes.
        metadata: by key, numbers, booleans, texts, and lists of one kind of them.
        kinds: by key, the number of the type of the value; of a list that of lists, then that of its elements.
        tensors: by name, in the order of the file.
        nbytes: bytes of the file.

    Args:
        path: file to open.

    Raises:
        ContainerError: for a file that is no GGUF file of version 2 or 3, is cut off or contradicts itself; names key
            or tensor, field and byte.
        OSError: as the system gives it.

    Example:
        >>> from octavo.interchange.gguf import GgufFile
        >>> _ = Path("x.gguf").write_bytes(b"GGUF" + bytes([3]) + bytes(19))
        >>> GgufFile("x.gguf").tensors
        {}
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Map the file and parse its header."""
        self.path = Path(path)
        check_regular(self.path)
        with open(os.open(self.path, system.READ), "rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            if size < 24:
                raise ContainerError(f"{self.path}: {size} bytes; a GGUF file has at least 24")
            # Private and writable, since torch shares the memory of writable buffers alone; nothing writes to it.
            self._map = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
        self.nbytes = len(self._map)
        header = _Header(str(self.path), self._map)
        self.version = header.version
        self.metadata = header.metadata
        self.kinds = header.kinds
        self.alignment = header.alignment
        self.tensors: dict[str, GgufTensor] = header.tensors

    def read(self, name: str) -> Tensor:
        """Return the bytes of a tensor.

        Args:
            name: of the tensor.

        Returns:
            uint8, ``[rows, bytes of a row]``, in the mapped file: pages are read when they are touched.

        Raises:
            KeyError: for a name that the file lacks.
        """
        import torch

        tensor = self.tensors[name]
        flat = torch.frombuffer(self._map, dtype=torch.uint8, count=tensor.nbytes, offset=tensor.offset)
        columns = tensor.shape[-1] if tensor.shape else 1
        return flat.view(-1, columns // tensor.type.elements * tensor.type.nbytes)


class _Header:
    """The header of a file, parsed from its first byte on."""

    def __init__(self, path: str, data: mmap.mmap) -> None:
        self.path, self.data, self.at, self.values = path, data, 0, 0
        magic = self.take(4, "the magic number")
        if magic != MAGIC:
            raise ContainerError(f"{path}: begins with {shown(magic)}; a GGUF file begins with 'GGUF'")
        self.version = self.number("I", "version")
        if self.version & 0xFFFF == 0:
            raise ContainerError(
                f"{path}: version {self.version} at byte 4: a big-endian file; accepted are little-endian ones"
            )
        if self.version not in VERSIONS:
            raise ContainerError(f"{path}: version {self.version} at byte 4; accepted are {VERSIONS[0]}, {VERSIONS[1]}")
        tensors = self.count("tensors", _LEAST_TENSOR, TENSORS)
        keys = self.count("keys", _LEAST_KEY, KEYS)
        self.metadata: dict[str, Any] = {}
        self.kinds: dict[str, tuple[int, ...]] = {}
        for _ in range(keys):
            self.pair()
        self.alignment = self.metadata.get(ALIGNMENT_KEY, ALIGNMENT)
        announced = [self.announced(number) for number in range(tensors)]
        start = self.at + -self.at % self.alignment
        self.tensors = self.placed(announced, start)

    # --- numbers and texts ---

    def refused(self, label: str, at: int) -> ContainerError:
        return ContainerError(f"{self.path}: {label} at byte {at}")

    def take(self, count: int, label: str) -> bytes:
        if count > len(self.data) - self.at:
            raise self.refused(f"{label}: {count} bytes, but {len(self.data) - self.at} are left", self.at)
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, code: str, label: str) -> Any:
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}"), label))[0]

    def count(self, label: str, least: int, most: int) -> int:
        """Return a count of things that take at least so many bytes each; refuse more than the file can hold."""
        at = self.at
        count: int = self.number("Q", f"number of {label}")
        left = len(self.data) - self.at
        if count > left // least:
            raise self.refused(f"{count} {label}: {left} bytes are left, and each takes at least {least};", at)
        if count > most:
            raise self.refused(f"{count} {label}: accepted are up to {most};", at)
        return count

    def text(self, label: str) -> str:
        at = self.at
        length: int = self.number("Q", f"{label}: length")
        data = self.take(length, label)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.refused(f"{label}: not UTF-8", at + 8 + error.start) from None

    # --- metadata ---

    def pair(self) -> None:
        at = self.at
        key = self.text("key")
        if not key or key in self.metadata:
            raise self.refused(f"key {shown(key)}: {'appears twice' if key else 'is empty'};", at)
        at = self.at
        kind = self.number("I", f"{shown(key)}: type")
        if kind == ARRAY:
            element, self.metadata[key] = self.array(key)
            self.kinds[key] = (ARRAY, element)
        else:
            self.metadata[key] = self.reader(kind, shown(key), at)()
            self.kinds[key] = (kind,)
        if key == ALIGNMENT_KEY:
            value = self.metadata[key]
            if kind != UINT32 or value == 0 or value & (value - 1):
                raise self.refused(f"{key} is {shown(value)}; accepted are powers of two as uint32;", at)

    def reader(self, kind: int, label: str, at: int) -> Callable[[], Any]:
        if kind == STRING:
            return lambda: self.text(label)
        if kind not in NUMBERS:
            raise self.refused(f"{label}: values of type {kind}; accepted are 0 to 12, no arrays in arrays;", at)
        return lambda: self.numbers(kind, 1, label)[0]

    def array(self, key: str) -> tuple[int, list[Any]]:
        """Return the type of the elements of a list, and the list."""
        label, at = shown(key), self.at
        kind = self.number("I", f"{label}: type of elements")
        read = self.reader(kind, label, at)
        least = 8 if kind == STRING else struct.calcsize(f"<{NUMBERS[kind]}")
        count = self.count(f"elements of {label}", least, VALUES - self.values)
        self.values += count
        return kind, [read() for _ in range(count)] if kind == STRING else self.numbers(kind, count, label)

    def numbers(self, kind: int, count: int, label: str) -> list[Any]:
        code, at = NUMBERS[kind], self.at
        data = self.take(count * struct.calcsize(f"<{code}"), label)
        if kind == BOOL and data.strip(b"\0\1"):
            raise self.refused(f"{label}: a boolean that is neither 0 nor 1; from", at)
        return list(struct.unpack(f"<{count}{code}", data))

    # --- tensors ---

    def announced(self, number: int) -> tuple[str, GgmlType, tuple[int, ...], int, int]:
        """Return name, type, shape, offset in the data, and where the file says so."""
        at = self.at
        name = self.text(f"tensor {number}: name")
        label = f"tensor {shown(name)}"
        if not name or len(name.encode()) > NAME_BYTES:
            raise self.refused(f"{label}: a name of {len(name.encode())} bytes; accepted are 1 to {NAME_BYTES};", at)
        at = self.at
        ndim = self.number("I", f"{label}: number of dimensions")
        if ndim > DIMENSIONS:
            raise self.refused(f"{label}: {ndim} dimensions; accepted are up to {DIMENSIONS};", at)
        at = self.at
        dims = [self.number("q", f"{label}: dimension {axis}") for axis in range(ndim)]
        wrong = next((axis for axis, size in enumerate(dims) if size < 1), None)
        if wrong is not None:
            raise self.refused(f"{label}: dimension {wrong} is {dims[wrong]}; accepted are 1 and more;", at + 8 * wrong)
        at = self.at
        kind = self.number("I", f"{label}: type")
        if kind not in TYPES:
            known = f", {REMOVED[kind]}, which ggml no longer has" if kind in REMOVED else ""
            raise self.refused(f"{label}: type {kind}{known}; accepted are those of ggml;", at)
        block = TYPES[kind]
        columns = dims[0] if dims else 1
        if columns % block.elements:
            raise self.refused(
                f"{label}: rows of {columns} elements; {block.name} takes multiples of {block.elements};", at
            )
        at = self.at
        return name, block, tuple(reversed(dims)), self.number("Q", f"{label}: offset"), at

    def placed(
        self, announced: list[tuple[str, GgmlType, tuple[int, ...], int, int]], start: int
    ) -> dict[str, GgufTensor]:
        tensors: dict[str, GgufTensor] = {}
        for name, block, shape, offset, at in announced:
            label, nbytes = f"tensor {shown(name)}", math.prod(shape) // block.elements * block.nbytes
            if name in tensors:
                raise self.refused(f"{label}: appears twice; again", at)
            if offset % self.alignment:
                raise self.refused(f"{label}: offset {offset} is no multiple of {self.alignment};", at)
            if start + offset + nbytes > len(self.data):
                raise self.refused(
                    f"{label}: offset {offset} and {nbytes} bytes of {block.name}, shape {list(shape)}, "
                    f"but the data has {max(len(self.data) - start, 0)} bytes; offset",
                    at,
                )
            tensors[name] = GgufTensor(name, block, shape, start + offset, nbytes)
        for before, after in pairwise(sorted(tensors.values(), key=lambda tensor: tensor.offset)):
            if before.offset + before.nbytes > after.offset:
                raise self.refused(
                    f"tensor {shown(after.name)}: its data overlaps that of {shown(before.name)}", after.offset
                )
        return tensors
