"""A checkpoint as a linter sees it: raw tensors of all its files, their places, and its configurations.

Tensors are mapped, so that a page is read when a rule touches it. Headers go through the readers of the package:
:class:`octavo.interchange.gguf.GgufFile` and the container's reader in Rust.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo import _core
from octavo.errors import ContainerError
from octavo.interchange.gguf import GgufFile
from octavo.model_folder.weight_files import INDEX_NAME, PACKED_INDEX, PACKED_NAME, PLAIN_NAME
from octavo.storage import file_kinds
from octavo.storage.reading import INDEX_BYTES, read_json, shown

Bytes = NDArray[np.uint8]

_INDICES = (INDEX_NAME, PACKED_INDEX)
CONFIGURATIONS = ("config.json", "hf_quant_config.json", "quantize_config.json", "quant_config.json")
"""Texts that say how a checkpoint is quantised: of transformers, ModelOpt, AutoGPTQ and AutoAWQ."""
_WORDS: dict[int, np.dtype[Any]] = {1: np.dtype("u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8")}
ITEMS = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1,
    "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8, "C64": 4,
}  # fmt: skip
"""Bytes of an element, by dtype of safetensors."""


@dataclass(frozen=True)
class Raw:
    """A stored tensor. ``dtype``: name of safetensors, or of ggml's type. ``offset``: of its first byte in ``file``."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int
    load: Callable[[], Bytes] = field(repr=False, compare=False)

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element; 1 where elements are parts of bytes or blocks."""
        return ITEMS.get(self.dtype, 1)

    def data(self) -> Bytes:
        """Return the bytes, mapped and flat."""
        return self.load()

    def words(self) -> NDArray[Any]:
        """Return the elements as unsigned integers of their size, flat, mapped."""
        return self.data().view(_WORDS[self.itemsize])


@dataclass(frozen=True)
class PackedEntry:
    """A packed tensor of a container of ours. ``axis``: along which blocks run."""

    name: str
    format: str
    shape: tuple[int, ...]
    axis: int
    file: Path


@dataclass
class Source:
    """The files of a checkpoint.

    ``tensors``: by name. ``twice``: names that stand in two files, with both. ``index``: its file and the table from
    tensor to file; ``missing``: files that the index names and the folder lacks. ``configs``: JSON by the name of its
    file. ``packed``: tensors of our containers. ``gguf``: the file where it is one.
    """

    path: Path
    files: list[Path] = field(default_factory=list)
    tensors: dict[str, Raw] = field(default_factory=dict)
    twice: dict[str, tuple[Path, Path]] = field(default_factory=dict)
    index: tuple[Path, dict[str, str]] | None = None
    index_bytes: object = None
    missing: list[str] = field(default_factory=list)
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    packed: dict[str, PackedEntry] = field(default_factory=dict)
    metadata: dict[Path, Mapping[str, str]] = field(default_factory=dict)
    gguf: GgufFile | None = None

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def config(self) -> dict[str, Any]:
        """``config.json``; empty where there is none."""
        return self.configs.get("config.json", {})

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(raw.nbytes for raw in self.tensors.values())


def open_source(path: str | os.PathLike[str]) -> Source:
    """Map the files of a checkpoint; nothing but headers and configurations is read.

    Args:
        path: GGUF file, safetensors file, or folder of safetensors files.

    Returns:
        The checkpoint.

    Raises:
        ContainerError: for a file that cannot be read, and for a folder without weights.
        FileNotFoundError: for a path that is not there.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(2, "No such file or directory", str(path))
    source = Source(path)
    if path.is_dir():
        _find_files(source)
        _read_configs(source)
    else:
        source.files = [path]
        if file_kinds.kind_of_file(path) == file_kinds.GGUF:
            _add_gguf(source)
            return source
        if path.name in (PLAIN_NAME, PACKED_NAME):
            _read_configs(source)
    for file in source.files:
        _add_safetensors(source, file)
    return source


def _find_files(source: Source) -> None:
    folder = source.path
    index = next((folder / name for name in _INDICES if (folder / name).is_file()), None)
    candidates = sorted(file for file in folder.iterdir() if file.suffix == ".safetensors" and file.is_file())
    if index is None:
        single = [file for file in candidates if file.name in (PLAIN_NAME, PACKED_NAME)]
        source.files = single[:1] or candidates
        if not source.files:
            files = sorted(file for file in folder.iterdir() if file.suffix == ".gguf" and file.is_file())
            if len(files) == 1:
                source.files = files
                _add_gguf(source)
                source.files = []
                return
            many = f"; it has {len(files)} GGUF files, give one of them" if files else ""
            raise ContainerError(f"{folder}: no safetensors files in this folder{many}")
        return
    content = read_json(index, INDEX_BYTES)
    table = content.get("weight_map")
    if not isinstance(table, dict) or not table:
        raise ContainerError(
            f"{index}: weight_map is {shown(table)}; accepted are tensors with the names of their files"
        )
    for name, file_name in table.items():
        if not isinstance(file_name, str) or Path(file_name).name != file_name or "\0" in file_name:
            raise ContainerError(f"{index}: {shown(name)} is in {shown(file_name)}; accepted are names of files here")
    source.index = index, table
    more = content.get("metadata")
    source.index_bytes = more.get("total_size") if isinstance(more, dict) else None
    named = sorted(set(table.values()))
    source.missing = [name for name in named if not (folder / name).is_file()]
    source.files = [folder / name for name in named if (folder / name).is_file()]
    if not source.files:
        raise ContainerError(f"{index}: none of its {len(named)} files is in the folder")


def _read_configs(source: Source) -> None:
    for name in CONFIGURATIONS:
        file = source.folder / name
        if file.is_file():
            source.configs[name] = read_json(file, finite=False)


def _add_safetensors(source: Source, file: Path) -> None:
    kind = file_kinds.kind_of_file(file)
    if kind not in (None, file_kinds.SAFETENSORS):
        raise ContainerError(f"{file}: {kind}; accepted are GGUF and safetensors files")
    reader = _core._ContainerReader(os.fspath(file), True)
    source.metadata[file] = reader.metadata
    buffer: Any = reader  # Python 3.11 has no type for buffers
    whole: Bytes = np.frombuffer(buffer, np.uint8)

    def add(name: str, dtype: str, shape: tuple[int, ...]) -> None:
        place = reader.part(name)
        if place is None:
            return
        offset, nbytes = place
        if name in source.tensors:
            source.twice[name] = source.tensors[name].file, file
            return
        source.tensors[name] = Raw(name, dtype, shape, file, offset, nbytes, lambda: whole[offset : offset + nbytes])

    for name, format, _, shape, dtype, axis, _, _ in reader.entries():
        if format is None:
            add(name, dtype, tuple(shape))
            continue
        source.packed[name] = PackedEntry(name, str(format), tuple(shape), axis or 0, file)
        for part in ("codes", "scales", "zeros", "levels", "bitmap"):
            add(f"{name}.{part}", f"octavo:{part}", ())


def _add_gguf(source: Source) -> None:
    file = source.gguf = GgufFile(source.files[0])
    for tensor in file.tensors.values():
        source.tensors[tensor.name] = Raw(
            tensor.name,
            tensor.type.name,
            tensor.shape,
            file.path,
            tensor.offset,
            tensor.nbytes,
            _gguf_bytes(file, tensor.name),
        )


def _gguf_bytes(file: GgufFile, name: str) -> Callable[[], Bytes]:
    return lambda: file.read(name).numpy().reshape(-1)
