"""Metadata of GGUF files as they are written: values with their types, as bytes and as the text of ``gguf.json``.

A model folder that was made of a GGUF file has ``gguf.json``: keys, values and types of the file's metadata, the types
and order of its tensors, and small tensors that have no place in the model. A file that is written of the folder has
them again. Source: ggml, ``docs/gguf.md``.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.errors import ContainerError
from octavo.interchange.ggml_types import TYPES
from octavo.interchange.gguf import (
    ALIGNMENT,
    ALIGNMENT_KEY,
    ARRAY,
    BOOL,
    FLOAT32,
    INT32,
    NUMBERS,
    STRING,
    UINT32,
    GgufFile,
)
from octavo.storage.reading import VOCABULARY_BYTES, member, parse_json, read_text, shown

NAME = "gguf.json"
"""File of a model folder with what its GGUF file had and the folder has nowhere else."""
_VERSION = 1
_FLOATS = ("f", "d")
_JSON_VALUES = 8_000_000
_MOST_EXTRA = 1 << 20  # bytes of a tensor that has no place in the model

TYPE_OF = {kind.name: kind for kind in TYPES.values()}
"""Types of tensors by their names."""


@dataclass(frozen=True)
class Typed:
    """A value of the metadata. ``kind``: number of its type; of a list that of lists, then that of its elements."""

    kind: tuple[int, ...]
    value: Any

    def data(self, key: str) -> bytes:
        """Return type and value as a file has them. Raises ContainerError for a value beyond its type."""
        head = struct.pack(f"<{len(self.kind)}I", *self.kind)
        try:
            if self.kind[0] != ARRAY:
                return head + _bytes(self.kind[0], [self.value])
            return head + struct.pack("<Q", len(self.value)) + _bytes(self.kind[1], self.value)
        except (struct.error, OverflowError, TypeError, AttributeError, UnicodeEncodeError):
            raise ContainerError(f"{shown(key)}: {shown(self.value)} is no value of type {self.kind[-1]}") from None

    def is_like(self, other: Typed) -> bool:
        """Whether the other value is this one in the type of this one."""
        try:
            return Typed(self.kind, other.value).data("") == self.data("")
        except ContainerError:
            return False


def u32(value: int) -> Typed:
    """Return a whole number from 0."""
    return Typed((UINT32,), value)


def f32(value: float) -> Typed:
    """Return a float32."""
    return Typed((FLOAT32,), value)


def flag(value: bool) -> Typed:
    """Return a boolean."""
    return Typed((BOOL,), value)


def text(value: str) -> Typed:
    """Return a text."""
    return Typed((STRING,), value)


def texts(values: Sequence[str]) -> Typed:
    """Return a list of texts."""
    return Typed((ARRAY, STRING), list(values))


def i32s(values: Sequence[int]) -> Typed:
    """Return a list of whole numbers."""
    return Typed((ARRAY, INT32), list(values))


def f32s(values: Sequence[float]) -> Typed:
    """Return a list of float32."""
    return Typed((ARRAY, FLOAT32), list(values))


def typed(file: GgufFile) -> dict[str, Typed]:
    """Return the metadata of a file with their types, in its order."""
    return {key: Typed(file.kinds[key], value) for key, value in file.metadata.items()}


def alignment_of(metadata: Mapping[str, Typed]) -> int:
    """Return the alignment that metadata ask for. Raises ContainerError for one that is no power of two."""
    entry = metadata.get(ALIGNMENT_KEY)
    if entry is None:
        return ALIGNMENT
    value = entry.value
    if entry.kind != (UINT32,) or value < 1 or value & (value - 1):
        raise ContainerError(f"{ALIGNMENT_KEY} is {shown(value)}; accepted are powers of two as uint32")
    return int(value)


def _bytes(kind: int, values: Sequence[Any]) -> bytes:
    if kind == STRING:
        encoded = [value.encode() for value in values]
        return b"".join(struct.pack("<Q", len(one)) + one for one in encoded)
    return struct.pack(f"<{len(values)}{NUMBERS[kind]}", *values)


# --- gguf.json --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FormerFile:
    """What a model folder keeps of the GGUF file that it was made of.

    ``metadata``: in the order of the file. ``types``: of its tensors by name, in its order. ``extra``: bytes and shapes
    of float32 tensors that have no place in the model.
    """

    metadata: Mapping[str, Typed]
    types: Mapping[str, str]
    extra: Mapping[str, tuple[tuple[int, ...], bytes]]

    @classmethod
    def of(cls, file: GgufFile, extra: Sequence[str]) -> FormerFile:
        """Return what is kept of a file; ``extra``: names of its tensors that have no place in the model."""
        small = {
            name: (file.tensors[name].shape, bytes(file.read(name).numpy().tobytes()))
            for name in extra
            if file.tensors[name].type.name == "F32" and file.tensors[name].nbytes <= _MOST_EXTRA
        }
        return cls(typed(file), {name: tensor.type.name for name, tensor in file.tensors.items()}, small)

    @classmethod
    def read(cls, folder: Path) -> FormerFile | None:
        """Return what a folder keeps, None where it has no such file. Raises ContainerError for one that is damaged."""
        path = folder / NAME
        if not path.exists():
            return None
        content = parse_json(read_text(path, VOCABULARY_BYTES), str(path), most=_JSON_VALUES)
        try:
            return cls._of_json(content, str(path))
        except ContainerError as error:
            raise ContainerError(f"{error}; remove the file to write the model with new metadata") from None

    @classmethod
    def _of_json(cls, content: Mapping[str, Any], label: str) -> FormerFile:
        if content.get("version") != _VERSION:
            raise ContainerError(f"{label}: version is {shown(content.get('version'))}; this Octavo reads {_VERSION}")
        metadata: dict[str, Typed] = {}
        for entry in member(content, "metadata", list, label):
            if not (isinstance(entry, list) and len(entry) == 3 and isinstance(entry[0], str) and entry[0]):
                raise ContainerError(f"{label}: metadata has {shown(entry)}; accepted are lists of key, type and value")
            key, kind, value = entry
            if key in metadata:
                raise ContainerError(f"{label}: key {shown(key)} appears twice")
            metadata[key] = _value(kind, value, f"{label}: {shown(key)}")
        alignment_of(metadata)
        types = member(content, "tensors", dict, label)
        wrong = next((name for name, kind in types.items() if not isinstance(kind, str) or kind not in TYPE_OF), None)
        if wrong is not None:
            raise ContainerError(
                f"{label}: tensor {shown(wrong)} is of {shown(types[wrong])}; accepted are ggml's types"
            )
        extra = {
            name: _extra(entry, f"{label}: tensor {shown(name)}")
            for name, entry in member(content, "extra", dict, label).items()
        }
        return cls(metadata, types, extra)

    def text(self) -> str:
        """Return the content of ``gguf.json``."""
        return json.dumps(
            {
                "version": _VERSION,
                "metadata": [[key, list(one.kind), _plain(one)] for key, one in self.metadata.items()],
                "tensors": dict(self.types),
                "extra": {
                    name: {"shape": list(shape), "float32": list(struct.unpack(f"<{len(data) // 4}f", data))}
                    for name, (shape, data) in self.extra.items()
                },
            },
            ensure_ascii=False,
            separators=(",", ":"),
        )


def _plain(entry: Typed) -> Any:
    """Return a value as JSON has it: floats that JSON lacks are texts."""
    if NUMBERS.get(entry.kind[-1], "") not in _FLOATS:
        return entry.value
    if entry.kind[0] == ARRAY:
        return [one if math.isfinite(one) else str(one) for one in entry.value]
    return entry.value if math.isfinite(entry.value) else str(entry.value)


def _value(kind: Any, value: Any, label: str) -> Typed:
    refusal = ContainerError(f"{label}: type {shown(kind)} and value {shown(value)}; accepted are those of GGUF")
    if not isinstance(kind, list) or not kind or any(type(one) is not int for one in kind):
        raise refusal
    is_list = kind[0] == ARRAY
    if (
        len(kind) != 1 + is_list
        or (kind[-1] not in NUMBERS and kind[-1] != STRING)
        or is_list != isinstance(value, list)
    ):
        raise refusal
    values = value if is_list else [value]
    code = NUMBERS.get(kind[-1], "")
    if code in _FLOATS:
        values = [float(one) if one in ("nan", "inf", "-inf") else one for one in values]
        accepted: tuple[type, ...] = (float, int)
    else:
        accepted = (str,) if not code else (bool,) if kind[-1] == BOOL else (int,)
    if not all(type(one) in accepted for one in values):
        raise refusal
    result = Typed(tuple(kind), values if is_list else values[0])
    try:
        result.data("")
    except ContainerError:
        raise refusal from None
    return result


def _extra(entry: Any, label: str) -> tuple[tuple[int, ...], bytes]:
    refusal = ContainerError(f"{label}: {shown(entry)}; accepted are a shape and its numbers")
    if not isinstance(entry, dict) or set(entry) != {"shape", "float32"}:
        raise refusal
    shape, values = entry["shape"], entry["float32"]
    if not isinstance(shape, list) or not isinstance(values, list) or any(type(one) is not int for one in shape):
        raise refusal
    if any(type(one) not in (int, float) for one in values) or 4 * len(values) > _MOST_EXTRA:
        raise refusal
    if any(one < 1 for one in shape) or math.prod(shape) != len(values):
        raise refusal
    try:
        return tuple(shape), struct.pack(f"<{len(values)}f", *values)
    except (struct.error, OverflowError):
        raise refusal from None
