"""Checkpoints on disk: safetensors files and Hugging Face model folders, read lazily, written whole or not at all."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.errors import ContainerError, ModelError
from octavo.late_binding import late
from octavo.model_folder.companion_files import WEIGHTS, belonging, copy_companions, measurements
from octavo.model_folder.model_card import remove_card
from octavo.model_folder.quantization_entry import write_entry
from octavo.storage import folders
from octavo.storage.reading import INDEX_BYTES, member, parse_json, read_json, shown
from octavo.tensors import container

if TYPE_CHECKING:
    from torch import Tensor

    from octavo.tensors.container import Storable
    from octavo.tensors.packed_tensor import PackedTensor

PLAIN_NAME = "model.safetensors"
# Not PLAIN_NAME: transformers would find no weight it knows there and quietly start from random ones.
PACKED_NAME = "model.octavo.safetensors"
INDEX_NAME = "model.safetensors.index.json"
PACKED_INDEX = "model.octavo.safetensors.index.json"
"""Where a model whose packed weights are in several files says which tensor is in which."""
_PACKED_SHARD = re.compile(r"model\.octavo-\d{5,}-of-\d{5,}\.safetensors")
CONFIGURATIONS = ("config.json", "generation_config.json")
"""Files of a model folder that belong to its weights: they are never kept beside those of another model."""
STRUCTURE = "structure"
"""Key in a file's metadata, under which :func:`octavo.save_model` describes the layers that its tensors belong to."""
RECIPE = "recipe"
"""Key in a file's metadata with the text of the recipe that gave its tensors their formats."""
DIGESTS = "digests"
"""Key in a file's metadata of the digests of its tensors, by name: :func:`octavo.tensors.container.digests`."""
OF_TENSORS = (STRUCTURE, RECIPE, DIGESTS)
"""Keys that hold for the very tensors of a file."""
_NAMES = (PLAIN_NAME, INDEX_NAME, PACKED_NAME, PACKED_INDEX)


@dataclass(frozen=True)
class Checkpoint:
    """The files of a model's tensors: ``path`` as given, and the safetensors ``files`` that hold them."""

    path: Path
    files: tuple[Path, ...]

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """Find the weights of a file or folder; nothing is read but the index of a sharded model.

        Raises FileNotFoundError, or ContainerError for a folder without safetensors weights.
        """
        path = Path(path)
        if not path.exists():
            raise FileNotFoundError(2, "No such file or directory", str(path))
        if path.suffix == ".json" and path.is_file():
            raise ContainerError(f"{path}: a text beside the weights of a model; give its folder, {path.parent}")
        if not path.is_dir():
            return cls(path, (path,))
        names = held(path)
        if len(names) > 1:
            raise ContainerError(f"{path}: holds {' and '.join(names)}; name the file that is meant")
        if names in ([INDEX_NAME], [PACKED_INDEX]):
            return cls(path, tuple(path / name for name in _shards(path / names[0])))
        if names:
            return cls(path, (path / names[0],))
        inside = path / "model"
        if inside.is_dir() and held(inside):
            raise ContainerError(f"{path}: the folder of a run; give its model, {inside}")
        found = sorted(file.name for file in path.iterdir() if file.suffix in WEIGHTS)
        only = f"; it has {', '.join(found[:3])}, save the model as safetensors first" if found else ""
        raise ContainerError(f"{path}: no {', '.join(_NAMES)} in this folder{only}")

    @property
    def is_folder(self) -> bool:
        """True for a model folder."""
        return self.path.is_dir()

    @property
    def folder(self) -> Path:
        """The model folder, or the one that the file lies in."""
        return self.path if self.is_folder else self.path.parent

    @property
    def has_config(self) -> bool:
        """Whether a configuration lies beside the weights."""
        return (self.folder / CONFIGURATIONS[0]).exists()

    @property
    def nbytes(self) -> int:
        """Bytes of the files that hold the weights."""
        return sum(file.stat().st_size for file in self.files)

    def tensors(self, *, mmap: bool = True) -> dict[str, Tensor | PackedTensor]:
        """Map every tensor by name; pages are read when they are touched. ``mmap=False`` reads them now.

        Raises ContainerError for a hostile file.
        """
        merged: dict[str, Tensor | PackedTensor] = {}
        for file in self.files:
            loaded = container.load(file, mmap=mmap)
            twice = merged.keys() & loaded.keys()
            if twice:
                raise ContainerError(f"{file}: tensor {min(twice)} is in another shard, too")
            merged.update(loaded)
        return merged

    def verify(self) -> None:
        """Compare the tensors with the digests that their files state; files without them pass.

        Raises ContainerError naming file and tensor.
        """
        for file in self.files:
            container.verify(file)

    def entries(self) -> list[container.TensorEntry]:
        """List what the files hold, from their headers alone; torch is not loaded."""
        return [entry for file in self.files for entry in container.inspect(file)]

    def metadata(self) -> dict[str, str]:
        """Return the files' own metadata, without the keys of Octavo."""
        merged: dict[str, str] = {}
        for file in self.files:
            merged.update(container.metadata(file))
        return merged


def held(folder: Path) -> list[str]:
    """Return which of the names that stand for a model's weights a folder holds."""
    return [name for name in _NAMES if (folder / name).is_file()]


def packed_shard(number: int, count: int) -> str:
    """Return the name of one of ``count`` files of packed weights; numbers begin with 1."""
    return f"model.octavo-{number:05}-of-{count:05}.safetensors"


def packed_files(folder: Path) -> set[str]:
    """Return the names of the files of packed weights in a folder, and of the one that there usually is."""
    names = [file.name for file in folder.iterdir()] if folder.is_dir() else []
    return {PACKED_NAME, *(name for name in names if name == PACKED_INDEX or _PACKED_SHARD.fullmatch(name))}


def _shards(index: Path) -> list[str]:
    """Return the file names of a sharded model. Raises ContainerError for an index that is not one."""
    table = member(read_json(index, INDEX_BYTES), "weight_map", dict, f"{index}: not an index of shards")
    for tensor, name in table.items():
        is_name = isinstance(name, str) and Path(name).name == name and "\0" not in name
        if not is_name or not name.endswith(".safetensors"):
            raise ContainerError(
                f"{index}: weight_map: {shown(tensor)} is in {shown(name)}, which is not the name of a safetensors "
                "file in this folder"
            )
    names = sorted(set(table.values()))
    if not names:
        raise ContainerError(f"{index}: weight_map is empty; accepted are tensors with the names of their files")
    return names


def refuse_file(path: Path) -> None:
    """Refuse a file, or a folder of another package, in the place of a model folder.

    Raises ModelError, which says where the folder is, or the line that writes one.
    """
    reader = late("foreign_reader")(path)
    if reader is not None:
        raise ModelError(f"{path}: {reader.kind}; octavo pack {path} -o FOLDER writes a folder of its model")
    if path.is_file():
        raise ModelError(f"{path}: a file of weights; give the folder of the model, {path.parent}")


def check_target(source: Checkpoint, target: Path, weights_name: str, *, force: bool) -> None:
    """Refuse a target that is there (unless ``force``; an empty folder is no obstacle), or that cannot be one.

    Raises FileExistsError; ContainerError where it is or lies in the source, is a folder for a file or the reverse, or
    holds weights under another name than ``weights_name``; also for a source with simulated layers.
    """
    _refuse_simulated(source)
    inside = source.is_folder and target.resolve().is_relative_to(source.path.resolve())
    if inside or any(target.exists() and target.samefile(file) for file in source.files):
        raise ContainerError(f"{target}: the output would lie in the input {source.path}; give another --out")
    if not target.exists():
        return
    if source.is_folder != target.is_dir():
        kind = "a folder" if source.is_folder else "a file"
        raise ContainerError(f"{target}: {source.path} is {kind}, so the output is {kind}, too; give another --out")
    if target.is_dir() and not any(target.iterdir()):
        return
    if not force:
        raise FileExistsError(f"{target} exists; give --force to replace it, or another --out")
    own = packed_files(target) if weights_name == PACKED_NAME else {weights_name}
    others = [name for name in held(target) if name not in own] if target.is_dir() else []
    if others:
        raise ContainerError(f"{target}: holds {others[0]}, and {weights_name} beside it would be ambiguous")


def _refuse_simulated(source: Checkpoint) -> None:
    """Refuse a model whose layers round what goes through them: its tensors alone are another model."""
    from octavo.nn.registry import simulated_classes  # and torch, which reading a table of contents does without

    for path, record in layers_of(source).items():
        kind = record.get("class") if isinstance(record, dict) else None
        if isinstance(kind, str) and kind in simulated_classes():
            raise ContainerError(
                f"{source.path}: {shown(path)} is a simulated layer ({shown(kind)}), whose quantizers would be lost; "
                "octavo.pack_model packs what octavo.load_model reads, octavo.save_model writes it"
            )


def layers_of(source: Checkpoint) -> Mapping[str, Any]:
    """Return what :func:`octavo.save_model` said about quantized layers; none in files of other writers."""
    text = source.metadata().get(STRUCTURE, "{}")
    try:
        layers = parse_json(text, str(source.path)).get("layers")
    except ContainerError:  # another library's text
        return {}
    return layers if isinstance(layers, dict) else {}


def write(
    source: Checkpoint,
    target: Path,
    weights_name: str,
    tensors: Mapping[str, Storable],
    *,
    force: bool,
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Write ``tensors`` to ``target``, a file, or a folder with copies of the source's other files.

    ``metadata``: beside that of the source, such as the recipe. Returns the file with the weights. The target appears
    whole or not at all; with ``force``, weights, configuration, tokenizer and files of the same name are replaced in
    one step, and others kept.
    """
    if not source.is_folder:
        _save(source, target, tensors, metadata, overwrite=force)
        return target
    with folders.whole(target, owned=replaced(target, weights_name), overwrite=force) as folder:
        fill_folder(source, folder, weights_name, tensors, metadata)
    return target / weights_name


def replaced(target: Path, *names: str) -> set[str]:
    """Return which files of a folder belong to the model that is there: those and ``names`` go when it is replaced."""
    shards = packed_files(target) if PACKED_NAME in names else ()
    return {
        *names,
        *shards,
        *CONFIGURATIONS,
        *(Path(place).parts[0] for place in belonging(target)),
        *measurements(target),
    }


def fill_folder(
    source: Checkpoint,
    folder: Path,
    weights_name: str,
    tensors: Mapping[str, Storable],
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Write ``tensors`` and copies of the source's other files into ``folder``. Return the weights' file."""
    copy_companions(source.path, folder)
    if weights_name == PLAIN_NAME:
        write_entry(folder, None)
        remove_card(folder)
    _save(source, folder / weights_name, tensors, metadata, overwrite=True)
    return folder / weights_name


def _save(
    source: Checkpoint,
    file: Path,
    tensors: Mapping[str, Storable],
    more: Mapping[str, str] | None,
    *,
    overwrite: bool,
) -> None:
    from octavo.tensors.packed_tensor import PackedTensor

    metadata = {"format": "pt", **source.metadata()}  # transformers refuses weights without it
    metadata.pop(DIGESTS, None)
    was_packed = layers_of(source) or any(entry.format for entry in source.entries())
    if was_packed or any(isinstance(tensor, PackedTensor) for tensor in tensors.values()):
        for key in (STRUCTURE, RECIPE):  # of the tensors as they were
            metadata.pop(key, None)
    container.save(tensors, file, metadata=metadata | dict(more or {}), overwrite=overwrite)
