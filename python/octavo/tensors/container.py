"""The container: safetensors files that hold packed and plain tensors. FORMATS.md section 5.

:func:`save` and :func:`load` for files, :func:`dumps` and :func:`loads` for bytes, :func:`inspect` for the table of
contents alone (it does not import torch). The rules of what is valid live in Rust; this module converts tensors to and
from addresses.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from octavo import _core
from octavo.errors import ContainerError, DTypeError, ShapeError
from octavo.storage import file_kinds, files, folders
from octavo.storage.arguments import check
from octavo.storage.reading import shown
from octavo.tensors.tensor_entry import TensorEntry as TensorEntry

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

    from octavo.tensors.formats import Format
    from octavo.tensors.packed_tensor import PackedTensor
    from octavo.tensors.sparse_codes import SparseCodes

    Storable: TypeAlias = "Tensor | PackedTensor | np.ndarray | Deferred | DeferredPacked"

# safetensors' name, and the name that torch, numpy and ml_dtypes share.
_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}
_STORED = {name: stored for stored, name in _NAMES.items()}
_EXPECTED = "expected is a safetensors file"
# What makes a safetensors file of a file of another kind, by octavo.storage.file_kinds.
_TORCH_LOAD = (
    "; in Python, octavo.save(torch.load({name!r}, weights_only=True), 'NAME.safetensors') writes one of its tensors"
)
_WAYS_OUT = {
    file_kinds.TORCH_ZIP: _TORCH_LOAD,
    file_kinds.PICKLE: _TORCH_LOAD,
    file_kinds.NPZ: "; in Python, octavo.save(dict(numpy.load({name!r})), 'NAME.safetensors') writes one of them",
    file_kinds.NPY: "; in Python, octavo.save({{'x': numpy.load({name!r})}}, 'NAME.safetensors') writes one of it",
    file_kinds.GGUF: "; in Python, octavo.load_model({name!r}) reads its model",
    file_kinds.LFS_POINTER: "; git lfs pull downloads it",
}
#: Stands for the digest of a tensor whose values are not known; digests have one length.
NO_DIGEST = "0" * 16
# Two elements in one byte; torch counts bytes, safetensors elements.
_PAIR, _PAIR_NAME = "F4", "float4_e2m1fn_x2"


@dataclass(frozen=True, eq=False)
class Deferred:
    """A plain tensor that is made when it is written, so that a file never has all of its tensors in memory at once.

    ``fill`` writes every element of the contiguous torch tensor that it is given, of this ``dtype`` and ``shape``.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    fill: Callable[[Tensor], None]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * self.dtype.itemsize

    def tensor(self) -> Tensor:
        """Return the tensor.

        Returns:
            A new tensor, filled.
        """
        import torch

        out = torch.empty(self.shape, dtype=self.dtype)
        self.fill(out)
        return out


@dataclass(frozen=True, eq=False)
class DeferredPacked:
    """A packed tensor that is made when it is written, so that a file never has all of its tensors in memory at once.

    ``like``: on the meta device, with the format, shape, dtype and axis of what ``make`` returns.
    """

    like: PackedTensor
    make: Callable[[], PackedTensor]

    @classmethod
    def of(cls, packed: PackedTensor, make: Callable[[], PackedTensor]) -> DeferredPacked:
        """Return the description of a packed tensor with dense codes, which ``make`` makes again.

        Args:
            packed: the tensor; its codes are not kept.
            make: returns it once more.

        Returns:
            What stands for it until it is written.
        """
        return cls(packed.to(device="meta"), make)

    @property
    def dtype(self) -> torch.dtype:
        """Logical dtype."""
        return self.like.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape."""
        return self.like.shape

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return self.like.nbytes


# --- writing --------------------------------------------------------------------------------------------------------


def save(
    tensors: Mapping[str, Storable],
    path: str | os.PathLike[str],
    *,
    metadata: Mapping[str, str] | None = None,
    overwrite: bool = True,
    progress: Callable[[str, int], None] | None = None,
) -> None:
    """Write tensors to a safetensors file, which appears under ``path`` complete or not at all.

    Equal content gives equal bytes: the order in the file depends on names and dtypes alone. On an error an older file
    stays as it was. Source: FORMATS.md section 5.

    Args:
        tensors: by name, PackedTensors, torch tensors and numpy arrays of every dtype that safetensors has, on any
            device, :class:`~octavo.tensors.container.Deferred` or
            :class:`~octavo.tensors.container.DeferredPacked`. Non-contiguous tensors are copied one at a time;
            tensors that share memory are stored once for each name.
        path: file to write.
        metadata: strings of the user's own; keys that begin with ``octavo.`` are reserved.
        overwrite: False refuses an existing file.
        progress: called with the name of each tensor that was written, and its bytes.

    Raises:
        DTypeError: for another kind of object or dtype, before anything is written.
        ContainerError: for names that clash, exceed the limits or are no UTF-8 text, before anything is written.
        FileExistsError: for an existing file, with ``overwrite=False``.
        OSError: as the system gives it.

    Example:
        >>> weight = octavo.encode(torch.ones(64, 64), "mxint8")
        >>> octavo.save({"weight": weight, "bias": torch.zeros(64)}, "layer.safetensors", metadata={"step": "100"})
        >>> octavo.load("layer.safetensors")["weight"] == weight
        True
    """
    place = files.path_text(path)
    check(overwrite, bool, "save: overwrite")
    with files.native(path):
        files.sweep_native(path)
        _write(tensors, place, metadata, overwrite, progress)


def dumps(tensors: Mapping[str, Storable], *, metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the bytes of the file that :func:`save` would write.

    Args:
        tensors: as for :func:`save`.
        metadata: as for :func:`save`.

    Returns:
        A container.

    Raises:
        DTypeError: as :func:`save`.
        ContainerError: as :func:`save`.
    """
    data = _write(tensors, None, metadata, True)
    assert data is not None
    return data


def planned_bytes(tensors: Mapping[str, Storable], *, metadata: Mapping[str, str] | None = None) -> int:
    """Return the bytes of the file that :func:`save` would write, header included, without reading a tensor's values.

    Args:
        tensors: as for :func:`save`; their memory may be of any content.
        metadata: as for :func:`save`.

    Returns:
        The size that the system would report of the file.

    Raises:
        DTypeError: as :func:`save`.
        ContainerError: as :func:`save`.
    """
    plain, packed = _announced(tensors, metadata)
    # The writer lays a file out before it has data. The file that it begins has its full length, and is given up.
    with folders.scratch() as folder:
        writer = _core._ContainerWriter(os.fspath(folder / "planned"), plain, packed, dict(metadata or {}), True)
        try:
            (begun,) = folder.iterdir()
            return begun.stat().st_size
        finally:
            writer.abandon()


def digests(tensors: Mapping[str, Tensor | PackedTensor]) -> dict[str, str]:
    """Return the digest of each tensor, of the bytes that :func:`save` writes of it.

    Source: FORMATS.md section 5.

    Args:
        tensors: by name.

    Returns:
        XXH3, 64 bits, as 16 hexadecimal digits, by name.

    Raises:
        DTypeError: as :func:`save`.
    """
    by_name = {}
    for name, tensor in tensors.items():
        if _is_packed(tensor):
            parts = [_plain_memory(part) for part in tensor.held_parts]
        else:
            _describe(name, tensor)
            parts = [_plain_memory(tensor)]
        by_name[name] = _core._digest([_span(part) for part in parts])
    return by_name


def verify(path: str | os.PathLike[str]) -> None:
    """Compare every tensor of a file with the digest that its metadata state under ``digests``; others pass.

    Reads the whole file. Source: FORMATS.md section 5.

    Args:
        path: file to read.

    Raises:
        ContainerError: names the tensor whose bytes are others, as they are where two tensors were exchanged or bytes
            damaged; or for an invalid file.
        OSError: as the system gives it.
    """
    _reader(path, False).verify()


def _announced(
    tensors: Mapping[str, Storable], metadata: Mapping[str, str] | None
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Return what a writer is told of plain and of packed tensors; what no file can hold is refused."""
    if not isinstance(tensors, Mapping):
        raise DTypeError(f"tensors is a {type(tensors).__name__}; accepted is a mapping from name to tensor")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise DTypeError(f"metadata is a {type(metadata).__name__}; accepted are mappings of strings to strings")
    for key, value in (metadata or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise DTypeError(f"metadata {shown(key)}: {shown(value)} is not a string for a string")
        _refuse_halves(key, "metadata key {}")
        _refuse_halves(value, f"metadata {key!a}: value {{}}")
    plain: list[tuple[Any, ...]] = []
    packed: list[tuple[Any, ...]] = []
    for name, tensor in tensors.items():
        if not isinstance(name, str):
            raise DTypeError(f"{shown(name)} is a {type(name).__name__}; names of tensors are strings")
        _refuse_halves(name, "tensor name {}")
        if isinstance(tensor, DeferredPacked):
            packed.append((name, *_described(tensor.like), None))
        elif _is_packed(tensor):
            parts = tensor.held_parts
            if any(not part.is_cpu for part in parts):
                raise DTypeError(f"{name}: the packed tensor is on {tensor.device}; files are written from the CPU")
            from octavo.tensors.tensor_memory import check_held

            for part in parts:
                check_held(part, f"{name}: a part")
            packed.append((name, *_described(tensor), None if tensor.sparse is None else tensor.sparse.nonzero))
        else:
            plain.append((name, *_describe(name, tensor)))
    return plain, packed


def _write(
    tensors: Mapping[str, Storable],
    path: str | None,
    metadata: Mapping[str, str] | None,
    overwrite: bool,
    progress: Callable[[str, int], None] | None = None,
) -> bytes | None:
    plain, packed = _announced(tensors, metadata)
    room = _Room(tensor.nbytes for tensor in tensors.values() if isinstance(tensor, Deferred))
    writer = _core._ContainerWriter(path, plain, packed, dict(metadata or {}), overwrite)
    try:
        for name, stored in tensors.items():
            tensor = _made(name, stored) if isinstance(stored, DeferredPacked) else stored
            if _is_packed(tensor):
                codes, scales, zeros, levels, *bitmap = (_plain_memory(part) for part in tensor.held_parts)
                spans = _span(codes), _span(scales), _span(zeros), _span(levels)
                writer.put_packed(name, (*spans, _span(bitmap[0]) if bitmap else (0, 0)))
            else:
                data = room.filled(tensor) if isinstance(tensor, Deferred) else _plain_memory(tensor)
                writer.put_plain(name, _span(data))
            if progress is not None:
                progress(name, stored.nbytes)
        return writer.finish()
    finally:
        writer.abandon()  # after finish there is nothing to give up


def _described(packed: PackedTensor) -> tuple[Any, ...]:
    """Return what a writer is told of a packed tensor, without the number of sparse codes."""
    dtype = str(packed.dtype).removeprefix("torch.")
    return packed.format.core, packed.scale, list(packed.shape), dtype, packed.axis


def _made(name: str, deferred: DeferredPacked) -> PackedTensor:
    """Return a packed tensor that was announced. Raises ContainerError for another one."""
    packed = deferred.make()
    if packed.is_sparse or [str(one) for one in _described(packed)] != [str(one) for one in _described(deferred.like)]:
        raise ContainerError(f"{name}: {packed!r} is not what was announced, {deferred.like!r}")
    return packed


def _refuse_halves(text: str, template: str) -> None:
    """Refuse a text that UTF-8 has no bytes for; ``template`` is the text of the error, with ``{}`` for this one."""
    try:
        text.encode()
    except UnicodeEncodeError:
        place = template.format(ascii(text if len(text) <= 80 else f"{text[:77]}..."))
        raise ContainerError(f"{place}: half of a surrogate pair, which is no character; write the character") from None


class _Room:
    """Memory that deferred tensors are made in, one after another.

    One allocation: glibc uses the space of a freed aligned block of this size for no later one, and keeps it.
    """

    def __init__(self, sizes: Iterable[int]) -> None:
        self._nbytes = max(sizes, default=0)
        self._memory: Tensor | None = None

    def filled(self, deferred: Deferred) -> Tensor:
        """Return a tensor that lasts until the next one is made."""
        import torch

        if self._memory is None:
            self._memory = torch.empty(self._nbytes, dtype=torch.uint8)
        out: Tensor = self._memory[: deferred.nbytes].view(deferred.dtype).view(deferred.shape)
        deferred.fill(out)
        return out


def _is_packed(tensor: object) -> TypeGuard[PackedTensor]:
    module = sys.modules.get("octavo.tensors.packed_tensor")  # no PackedTensor exists before its module is loaded
    return module is not None and isinstance(tensor, module.PackedTensor)


def _is_torch(tensor: object) -> bool:
    module = sys.modules.get("torch")
    return module is not None and isinstance(tensor, module.Tensor)


def _is_numpy(tensor: object) -> bool:
    module = sys.modules.get("numpy")
    return module is not None and isinstance(tensor, module.ndarray)


def _describe(name: str, tensor: Any) -> tuple[str, list[int]]:
    """safetensors' dtype and the shape under which a plain tensor is stored."""
    if isinstance(tensor, Deferred):
        dtype = str(tensor.dtype).removeprefix("torch.")
    elif _is_torch(tensor):
        import torch

        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta or tensor.is_nested:
            raise DTypeError(f"{name}: a {tensor.layout} tensor on {tensor.device}; accepted are dense ones with data")
        from octavo.tensors.tensor_memory import check_held

        check_held(tensor, f"{name}: a tensor")
        dtype = str(tensor.dtype).removeprefix("torch.")
    elif _is_numpy(tensor):
        dtype = tensor.dtype.name
    else:
        raise DTypeError(
            f"{name} is a {type(tensor).__name__}; accepted are torch tensors, numpy arrays and PackedTensors"
        )
    shape = [int(n) for n in tensor.shape]
    if dtype == _PAIR_NAME and shape:
        return _PAIR, [*shape[:-1], 2 * shape[-1]]
    if dtype not in _STORED:
        raise DTypeError(f"{name} has dtype {dtype}, which safetensors has not; accepted are {', '.join(_STORED)}")
    return _STORED[dtype], shape


def _plain_memory(tensor: Any) -> Any:
    """The tensor as contiguous little-endian memory of this process; a copy only where it must be."""
    if _is_torch(tensor):
        return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    import numpy as np

    return np.ascontiguousarray(tensor.astype(tensor.dtype.newbyteorder("<"), copy=False))


def _span(data: Any) -> tuple[int, int]:
    address = data.data_ptr() if _is_torch(data) else data.ctypes.data
    return address, data.nbytes


# --- reading --------------------------------------------------------------------------------------------------------


def load(
    path: str | os.PathLike[str], *, mmap: bool = False, names: Iterable[str] | None = None
) -> dict[str, Tensor | PackedTensor]:
    """Read a container, or any safetensors file, into CPU tensors and PackedTensors.

    Source: FORMATS.md section 5.

    Args:
        path: file to read.
        mmap: map the file instead of reading it. Tensors then share memory with a private mapping: writing to them does
            not change the file. Values change where another process writes to the file in place; where it shortens the
            file, touching the lost bytes ends this process (SIGBUS). Files replaced by :func:`save` are safe.
        names: read these tensors only.

    Returns:
        Tensors by name, in the order of names.

    Raises:
        ContainerError: for an invalid file, before any tensor is allocated; names the tensor, the value and what is
            accepted.
        DTypeError: for a plain tensor of a dtype that torch lacks.
        OSError: as the system gives it.

    Example:
        >>> octavo.save({"a": torch.ones(2), "b": octavo.encode(torch.ones(64), "int8")}, "two.safetensors")
        >>> octavo.load("two.safetensors", names=["b"])
        {'b': PackedTensor('int8', shape=(64,), dtype=float32, axis=0, nbytes=68, bits_per_element=8.5)}
    """
    try:
        return _read(_reader(path, mmap), mmap, names)
    except _SparseError as error:  # the reader names the file in its own refusals
        raise ContainerError(f"{os.fspath(path)}: {error}") from None


def _reader(path: str | os.PathLike[str], mmap: bool) -> Any:
    """Open a file. Raises ContainerError, which says what the file is where its first bytes tell another kind."""
    name = files.path_text(path)
    check(mmap, bool, "mmap")
    try:
        return _core._ContainerReader(name, mmap)
    except ContainerError:
        kind = file_kinds.kind_of_file(name)
        if kind is None or kind == file_kinds.SAFETENSORS:
            raise
        way_out = _WAYS_OUT.get(kind, "").format(name=name)
        raise ContainerError(f"{name}: {kind}; {_EXPECTED}{way_out}") from None


def loads(data: bytes) -> dict[str, Tensor | PackedTensor]:
    """Read the bytes that :func:`dumps` returned.

    Args:
        data: a container.

    Returns:
        Tensors by name, in the order of names.

    Raises:
        ContainerError: as :func:`load`.
        DTypeError: as :func:`load`.
    """
    if not isinstance(data, bytes | bytearray):
        raise DTypeError(f"data is a {type(data).__name__}; accepted are bytes")
    try:
        reader = _core._ContainerReader.from_bytes(data)
    except ContainerError:
        kind = file_kinds.kind_of(bytes(data[: file_kinds.HEAD]))
        if kind is None or kind == file_kinds.SAFETENSORS:
            raise
        raise ContainerError(f"{kind}; {_EXPECTED}") from None
    return _read(reader, False, None)


def loads_one(data: bytes) -> Tensor | PackedTensor:
    """Read the only tensor of bytes that :func:`dumps` returned.

    Args:
        data: a container of one tensor.

    Returns:
        The tensor.

    Raises:
        ContainerError: as :func:`load`, and for another number of tensors.
        DTypeError: as :func:`load`.
    """
    tensors = loads(data)
    if len(tensors) != 1:
        raise ContainerError(f"{len(tensors)} tensors; expected one")
    return next(iter(tensors.values()))


def inspect(path: str | os.PathLike[str]) -> list[TensorEntry]:
    """List the contents of a container, or of any safetensors file, from its header alone, without torch.

    Args:
        path: file to read.

    Returns:
        One :class:`~octavo.tensors.tensor_entry.TensorEntry` for each tensor, in the order of names.

    Raises:
        ContainerError: for an invalid file.
        OSError: as the system gives it.

    Example:
        >>> octavo.save({"a": torch.ones(64), "b": octavo.encode(torch.ones(64), "mxfp4")}, "two.safetensors")
        >>> for entry in octavo.inspect("two.safetensors"):
        ...     print(entry.name, entry.kind, entry.format, entry.shape, entry.nbytes)
        a plain None (64,) 256
        b packed mxfp4 (64,) 34
    """
    return [_line(*entry) for entry in _reader(path, False).entries()]


def plain_bytes(path: str | os.PathLike[str], name: str) -> bytes:
    """Return the bytes of a small plain tensor, without torch.

    Args:
        path: file to read.
        name: of the tensor.

    Returns:
        Its bytes, little-endian.

    Raises:
        ContainerError: for an invalid file, or one without the tensor.
        OSError: as the system gives it.
    """
    reader = _reader(path, False)
    span = reader.part(name)
    data = bytearray(span[1] if span else 0)
    if span is None:
        raise ContainerError(f"{os.fspath(path)}: no tensor {name!r}")
    if data:
        reader.read_into(name, ctypes.addressof((ctypes.c_char * len(data)).from_buffer(data)), len(data))
    return bytes(data)


def metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the user's metadata of a container, without the keys of Octavo.

    Args:
        path: file to read.

    Returns:
        Texts by key.

    Raises:
        ContainerError: for an invalid file.
        OSError: as the system gives it.
    """
    return _reader(path, False).metadata


def _line(
    name: str, fmt: Any, rule: str | None, shape: list[int], dtype: str, axis: int | None, nbytes: int,
    nonzero: int | None,
) -> TensorEntry:  # fmt: skip
    bits = 8 * nbytes / count if (count := math.prod(shape)) else 0.0
    kind, text = ("plain", None) if fmt is None else ("packed", str(fmt))
    return TensorEntry(name, kind, text, tuple(shape), _NAMES.get(dtype, dtype), nbytes, bits, axis, rule, nonzero)


def _read(reader: Any, mmap: bool, names: Iterable[str] | None) -> dict[str, Tensor | PackedTensor]:
    import torch

    if isinstance(names, str):
        raise DTypeError(f"names is the string {names!r}; accepted is a list of names")
    check(names, Iterable[str] | None, "names")
    wanted = None if names is None else set(names)
    tensors: dict[str, Tensor | PackedTensor] = {}
    for name, fmt, rule, shape, dtype, axis, _, nonzero in reader.entries():
        if wanted is not None and name not in wanted:
            continue
        if fmt is None:
            tensors[name] = _read_plain(reader, mmap, name, dtype, shape)
        else:
            logical = {"shape": tuple(shape), "dtype": getattr(torch, dtype), "axis": axis, "scale": rule}
            tensors[name] = _read_packed(reader, mmap, name, str(fmt), logical, nonzero)
    if wanted is not None and (missing := sorted(wanted - tensors.keys())):
        raise ContainerError(
            f"no tensor {missing[0]!r} in the file ({len(missing)} of {len(wanted)} names are missing)"
        )
    return tensors


def _read_plain(reader: Any, mmap: bool, name: str, stored: str, shape: list[int]) -> Tensor:
    import torch

    if stored == _PAIR and shape and shape[-1] % 2 == 0:
        dtype, shape = getattr(torch, _PAIR_NAME, None), [*shape[:-1], shape[-1] // 2]
    else:
        dtype = getattr(torch, _NAMES.get(stored, ""), None)
    if dtype is None:
        raise DTypeError(f"{name} has dtype {stored}, which this torch has not; leave it out with names=")
    if dtype == torch.bool:  # bytes other than 0 and 1 are no booleans that torch defines
        return _read_part(reader, mmap, name, torch.uint8, shape).ne(0)
    return _read_part(reader, mmap, name, dtype, shape)


def _read_packed(
    reader: Any, mmap: bool, name: str, text: str, logical: dict[str, Any], nonzero: int | None
) -> PackedTensor:
    from octavo.tensors.formats import Format
    from octavo.tensors.packed_tensor import PackedTensor, part_specs

    fmt = Format(text)
    shape, axis = logical["shape"], logical["axis"]
    specs = part_specs(fmt.core, shape, axis)
    if nonzero is None:
        parts = [_read_part(reader, mmap, f"{name}.{part}", dtype, list(size)) for part, dtype, size in specs]
        return PackedTensor(fmt, *parts, **logical)
    scales, zeros, levels = (
        _read_part(reader, mmap, f"{name}.{part}", dtype, list(size)) for part, dtype, size in specs[1:]
    )
    return PackedTensor.of_sparse(
        fmt, _read_sparse(reader, mmap, name, fmt, shape, axis, nonzero), scales, zeros, levels, **logical
    )


class _SparseError(ContainerError):
    """A bitmap that does not fit its codes."""


def _read_sparse(
    reader: Any, mmap: bool, name: str, fmt: Format, shape: tuple[int, ...], axis: int, nonzero: int
) -> SparseCodes:
    """Return sparse codes, their bitmap checked. Raises ContainerError for one that does not fit."""
    import torch

    from octavo.tensors import sparse_codes

    columns = shape[axis] if shape else 1
    rows = math.prod(n for i, n in enumerate(shape) if i != axis)
    nbytes = sparse_codes.code_bytes(nonzero, fmt.width)
    codes = _read_part(reader, mmap, f"{name}.codes", torch.uint8, [nbytes])
    size = list(sparse_codes.bitmap_shape(rows, columns))
    bitmap = _read_part(reader, mmap, f"{name}.bitmap", torch.int64, size)
    try:
        return sparse_codes.of_parts(codes, bitmap, nonzero, rows, columns)
    except ShapeError as error:
        raise _SparseError(f"{name}: {error}") from None


def _read_part(reader: Any, mmap: bool, stored: str, dtype: torch.dtype, shape: list[int]) -> Tensor:
    """The bytes stored under a name as a tensor; empty where the file has none."""
    import torch

    from octavo.tensors.fresh import empty

    span = reader.part(stored)
    if mmap and span and span[1]:
        offset, nbytes = span
        if offset % dtype.itemsize == 0:  # the mapping begins on a page
            return torch.frombuffer(reader, dtype=dtype, count=nbytes // dtype.itemsize, offset=offset).view(shape)
    out = empty(shape, dtype)  # products of packed weights in huge pages take down to 0.7 of their time
    if span:
        reader.read_into(stored, out.data_ptr(), out.nbytes)
    return out
