"""The digest of an object by content: values, tensors, code, and all objects that it refers to.

Equal content has an equal digest in every process. Addresses, the seed of hashes, the order of sets and the paths of
sources do not count. An object whose content cannot be read, such as a generator, gets a random digest and is reported.
"""

from __future__ import annotations

import io
import mmap
import os
import secrets
import sys
import threading
import weakref
from array import array
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from hashlib import sha256
from pathlib import Path, PurePath
from types import GetSetDescriptorType, MappingProxyType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from octavo.data.batches import Batches
from octavo.search.code_content import library_name, versions
from octavo.search.file_content import array_parts, file_named, file_parts, tensor_parts
from octavo.search.object_parts import (
    CODE,
    NOTES,
    Part,
    attribute_parts,
    code_object,
    is_traced,
    module_parts,
    object_parts,
)

#: Objects inside an object at most.
MOST = 5_000_000
_NESTED = 64  # depth of sets inside sets
_NAMED, _LEVELS = 20, 30  # reported objects that cannot be digested, and parts of their paths
_SCALARS = (int, float, complex, bool, type(None), type(Ellipsis), type(NotImplemented))
_TORCH = (
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch._ops.OpOverload, torch._ops.OpOverloadPacket,
)  # fmt: skip
_EMPTY = (type(threading.Lock()), type(threading.RLock()), RemovableHandle, GetSetDescriptorType)


def digest_objects(objects: Mapping[str, Any]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the SHA-256 of each object by its name, and the parts that cannot be digested, each with the reason.

    A digest with an unreadable part is random. An object that occurs in an earlier one of ``objects`` is written as a
    reference to its place there, so the digests together cover everything.

    The digest covers: numbers, texts, bytes, lists, tuples, dictionaries in their order, sets; tensors and arrays by
    dtype, shape and bytes; functions by code, defaults, closure, attributes and the globals that the code reads;
    partials and bound methods with their arguments and objects; classes by members; modules of torch with all
    parameters, buffers, hooks and attributes; other objects by attributes, or by their pickled state; files whose paths
    occur as texts. Classes and functions of libraries are identified by name and version.
    """
    digests: dict[str, str] = {}
    walk: _Walk | None = None
    for name, value in objects.items():
        walk = _Walk(walk)
        walk.run(name, value)
        digests[name] = walk.sha.hexdigest()
    return digests, () if walk is None else tuple(walk.unknown)


class _Walk:
    """One digest: a depth-first walk over an object. It is iterative, because lists may be nested thousands deep."""

    def __init__(self, outer: _Walk | None = None, nested: int = 0) -> None:
        self.sha = sha256(versions().encode())
        self.unknown: list[str] = [] if outer is None else outer.unknown
        self._count: list[int] = [0] if outer is None else outer._count
        self._nested = nested
        self._outer = outer
        self._places: dict[int, int] = {}
        self._first: int = 0 if outer is None else outer._first + len(outer._places)
        self._references: list[Any] = []  # keeps objects alive, so that no address is reused

    def run(self, name: str, value: Any) -> None:
        stack: list[tuple[str, Iterator[Part]]] = [("", iter([(name, value)]))]
        while stack:
            try:
                key, child = next(stack[-1][1])
            except StopIteration:
                self._write("end")
                stack.pop()
                continue
            except Exception as error:  # the object's own code may raise anything; it then cannot be digested
                self._refuse(stack, "", error)
                stack.pop()
                continue
            self._count[0] += 1
            if self._count[0] > MOST:
                self._refuse(stack[:1], name, ValueError(f"more than {MOST:,} objects in it"))
                return
            try:
                inner = self._visit(child)
            except Exception as error:  # as above
                self._refuse(stack, f"{key}, a {type(child).__name__}", error)
                continue
            if inner is not None:
                stack.append((key, iter(inner)))

    def _write(self, kind: str, content: bytes | memoryview = b"") -> None:
        self.sha.update(f"{kind}:{memoryview(content).nbytes}:".encode())
        self.sha.update(content)

    def _refuse(self, stack: list[tuple[str, Iterator[Part]]], key: str, error: Exception) -> None:
        """Note the path of an object that cannot be digested, and make the digest random."""
        if len(self.unknown) < _NAMED:
            path = "".join(name for name, _ in stack[:_LEVELS]) + ("..." if len(stack) > _LEVELS else "")
            reason = str(error).strip().partition("\n")[0][:200] or type(error).__name__
            self.unknown.append(f"{path}{key}: {reason}")
        self._write("unknown", secrets.token_bytes(16))

    def _is_known(self, value: Any) -> bool:
        """Whether an object was visited before, whose place is then written; otherwise mark it as visited."""
        walk: _Walk | None = self
        while walk is not None:
            if (place := walk._places.get(id(value))) is not None:
                self._write("again", b"%d" % place)
                return True
            walk = walk._outer
        self._places[id(value)] = self._first + len(self._places)
        self._references.append(value)
        return False

    # --- kinds ------------------------------------------------------------------------------------------------------

    def _visit(self, value: Any) -> Iterable[Part] | None:
        """Write the kind and content of an object, and return its parts; None if it has none."""
        kind = type(value)
        if kind in _SCALARS:
            self._write(kind.__name__, _scalar(value))
            return None
        if kind is str:
            self._write("str", value.encode("utf-8", "surrogatepass"))
            if file_named(value):
                self._file(value)
            return None
        if kind is bytes:
            self._write("bytes", value)
            return None
        if isinstance(value, _TORCH):
            self._write("torch", str(value).encode())
            return None
        if (callable(value) or isinstance(value, ModuleType)) and (identity := library_name(value)) is not None:
            self._write("library", identity.encode())
            return None
        if kind is tuple:
            return self._sequence("tuple", value)
        if kind is frozenset:
            self._set("frozenset", value)
            return None
        if isinstance(value, _EMPTY):
            self._write("without content", kind.__name__.encode())
            return None
        if self._is_known(value):
            return None
        return self._inside(value)

    def _inside(self, value: Any) -> Iterable[Part] | None:
        kind = type(value)
        if kind is list:
            return self._sequence("list", value)
        if kind is dict or kind is MappingProxyType:
            self._write("dict", b"%d" % len(value))
            return _pairs(value)
        if kind is set:
            self._set("set", value)
            return None
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, np.ndarray | np.generic):
            return self._array(value)
        if isinstance(value, nn.Module) and not is_traced(kind):
            self._write("module")
            return module_parts(value)
        if isinstance(value, bytearray | memoryview | array | mmap.mmap):
            self._write(kind.__name__, bytes(value))
            return None
        if isinstance(value, Batches):
            self._write("batches")
            return ((f"[{place}]", batch) for place, batch in enumerate(value))
        if isinstance(value, CODE):
            code_kind, content, inner = code_object(value)
            self._write(code_kind, content)
            return inner
        return self._object(value)

    def _object(self, value: Any) -> Iterable[Part]:
        """Return the parts of any other object: its class, its attributes, and its pickled state."""
        kind = type(value)
        self._write("object")
        if isinstance(value, Enum):
            return [(" class", kind), (" name", value.name)]
        if isinstance(value, PurePath):
            if Path(value).is_file() and not file_named(str(value)):
                self._file(value)
            return [("", str(value))]
        if isinstance(value, weakref.ReferenceType):
            return [(" referent", value())]
        if isinstance(value, io.IOBase):
            return self._open_file(value)
        return object_parts(value)

    def _sequence(self, kind: str, values: Any) -> Iterable[Part] | None:
        """Return members; many plain numbers are written at once."""
        self._write(kind, b"%d" % len(values))
        if len(values) > 8 and all(type(one) in _SCALARS for one in values):
            self._count[0] += len(values) // 100
            self._write("scalars", b" ".join(map(_typed, values)))
            return None
        return ((f"[{place}]", one) for place, one in enumerate(values))

    def _set(self, kind: str, values: Any) -> None:
        """Write the sorted digests of the members, because their order differs between processes."""
        if self._nested >= _NESTED:
            raise ValueError(f"sets nested more than {_NESTED} deep")
        digests = []
        for value in values:
            walk = _Walk(self, self._nested + 1)
            walk.run(f"{kind} member", value)
            digests.append(walk.sha.digest())
        self._write(kind, b"".join(sorted(digests)))

    def _tensor(self, value: Tensor) -> Iterable[Part]:
        self._write("tensor")
        flatten = getattr(value, "__tensor_flatten__", None)
        attributes = [(f".{name}", one) for name, one in sorted(vars(value).items()) if name not in NOTES]
        if flatten is not None and type(value) not in (Tensor, nn.Parameter):
            names, context = flatten()
            return [
                (" class", type(value)), (" context", context), *((f".{name}", getattr(value, name)) for name in names)
            ]  # fmt: skip
        if isinstance(value, nn.Parameter):
            self._write("trained" if value.requires_grad else "frozen")
        for part in tensor_parts(value):
            self._write("bytes", part)
        return [(" class", type(value)), *attributes]

    def _array(self, value: Any) -> Iterable[Part]:
        self._write("array")
        plain = np.asarray(value)
        attributes = (
            list(attribute_parts(value)) if isinstance(value, np.ndarray) and type(value) is not np.memmap else []
        )
        if plain.dtype.hasobject:
            return [(" class", type(value)), (" shape", plain.shape), (" members", plain.tolist()), *attributes]
        for part in array_parts(value if isinstance(value, np.memmap) else plain):
            self._write("bytes", part)
        return [(" class", np.ndarray if isinstance(value, np.memmap) else type(value)), *attributes]

    def _file(self, path: str | os.PathLike[str]) -> None:
        for part in file_parts(path):
            self._write("file", part)

    def _open_file(self, value: Any) -> Iterable[Part]:
        """Return the content and position of an open file; a file that is only written has no content."""
        if isinstance(value, io.BytesIO | io.StringIO):
            return [(" class", type(value)), (" content", value.getvalue()), (" place", value.tell())]
        if value in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            return [(" stream", None)]
        if not value.closed and value.readable():
            self._file(value.name)
            return [(" class", type(value)), (" place", value.tell())]
        return [(" class", type(value))]


def _scalar(value: Any) -> bytes:
    if type(value) is int:
        return b"%x" % value  # decimal digits are limited to some thousands
    return repr(value).encode()


def _typed(value: Any) -> bytes:
    return type(value).__name__.encode() + b" " + _scalar(value)


def _pairs(table: Mapping[Any, Any]) -> Iterator[Part]:
    for key, value in table.items():
        yield " key", key
        yield f"[{key!r:.60}]" if type(key) in (*_SCALARS, str, bytes) else "[...]", value
