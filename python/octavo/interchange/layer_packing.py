"""Folders of packages that :mod:`~octavo.interchange.stored_weights` describes, as models and as tables of contents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.interchange.packing_settings import packing_settings
from octavo.interchange.stored_weights import FindWeights, PackedWeights, StoredFolder
from octavo.model_folder.quantization_entry import ENTRY
from octavo.model_folder.weight_files import Checkpoint
from octavo.tensors import container
from octavo.tensors.tensor_entry import TensorEntry

if TYPE_CHECKING:
    from torch import Tensor

    from octavo.interchange.quantized_folder import QuantizedFolder


def open_folder(path: Path, find: FindWeights) -> QuantizedFolder:
    """Read the headers of a folder. Raises as :meth:`octavo.interchange.quantized_folder.QuantizedFolder.open`."""
    from octavo.interchange.quantized_folder import QuantizedFolder

    return QuantizedFolder.open(path, partial(read_packing, find))


def packing_of(path: Path, find: FindWeights) -> PackedWeights:
    """Find the weights of a folder, without its model. Raises ContainerError naming tensor or field."""
    from torch import Tensor

    tensors = Checkpoint.open(path).tensors()
    plain = {name: tensor for name, tensor in tensors.items() if isinstance(tensor, Tensor)}
    return read_packing(find, plain, *packing_settings(path))


def read_packing(
    find: FindWeights, tensors: Mapping[str, Tensor], settings: Mapping[str, Any], label: str
) -> PackedWeights:
    """Find the weights among tensors. Raises ContainerError naming tensor or field."""

    def data(name: str) -> bytes:
        import torch

        return bytes(tensors[name].contiguous().view(-1).view(torch.uint8).numpy().tobytes())

    folder = Path(label).parent
    metadata = Checkpoint.open(folder).metadata() if folder.is_dir() else {}
    return find(StoredFolder(entries_of(tensors), settings, label, tensors.__getitem__, data, metadata))


def entries_of(tensors: Mapping[str, Tensor]) -> dict[str, TensorEntry]:
    """Return the lines of a table of contents for tensors."""
    return {name: _entry(name, tensor) for name, tensor in tensors.items()}


def contents_of(path: Path, find: FindWeights) -> tuple[list[TensorEntry], dict[str, str]]:
    """Return the table of contents of a folder and its metadata, with the settings of the packing.

    torch is not loaded. Raises ContainerError for a damaged folder.
    """
    source = Checkpoint.open(path)
    places = {entry.name: (entry, file) for file in source.files for entry in container.inspect(file)}
    settings, label = packing_settings(source.folder)

    def data(name: str) -> bytes:
        return container.plain_bytes(places[name][1], name)

    def read(name: str) -> Tensor:
        raise AssertionError(name)  # headers alone are looked at

    entries = {name: entry for name, (entry, _) in places.items()}
    packing = find(StoredFolder(entries, settings, label, read, data, source.metadata()))
    taken = set(packing.taken)
    plain = [entry for name, entry in entries.items() if name not in taken]
    packed = [weight.entry() for weight in packing.weights.values()]
    metadata = {**source.metadata(), ENTRY: json.dumps(settings, ensure_ascii=False)}
    return sorted([*plain, *packed], key=lambda entry: entry.name), metadata


def _entry(name: str, tensor: Tensor) -> TensorEntry:
    bits = 8 * tensor.element_size()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorEntry(name, "plain", None, tuple(tensor.shape), dtype, tensor.nbytes, bits if tensor.numel() else 0.0)
