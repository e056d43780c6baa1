"""What commands show of a folder that compressed-tensors has packed: its weights, each with how it is packed."""

from __future__ import annotations

import json
import math
import os

from octavo.errors import ContainerError
from octavo.interchange.compressed_tensors_config import CompressedTensorsConfig
from octavo.interchange.compressed_tensors_layout import WEIGHT, Layout, group_tensors, read_integers
from octavo.model_folder.model_config import CONFIG
from octavo.model_folder.quantization_entry import ENTRY, packing_entry
from octavo.model_folder.weight_files import Checkpoint
from octavo.tensors import container
from octavo.tensors.tensor_entry import TensorEntry


def contents_of(path: str | os.PathLike[str]) -> tuple[list[TensorEntry], dict[str, str]]:
    """Return the table of contents of a folder and its metadata, with the configuration of the packing.

    Packed weights have the name of their form and their bits for a format. torch is not loaded. Raises ContainerError
    for a damaged folder.
    """
    source = Checkpoint.open(path)
    places = {entry.name: (entry, file) for file in source.files for entry in container.inspect(file)}

    def integers(name: str) -> tuple[int, ...]:
        entry, file = places[name]
        return read_integers(file, entry)

    values = packing_entry(source.folder)
    config = CompressedTensorsConfig.read(values, str(source.folder / CONFIG))
    layouts, _ = group_tensors((entry for entry, _ in places.values()), integers, str(path))
    config.check_expressions(layout.layer for layout in layouts.values())
    taken = {entry.name for layout in layouts.values() for entry in layout.parts.values()}
    entries = [entry for name, (entry, _) in places.items() if name not in taken]
    packed = [_line(layout, config) for layout in layouts.values()]
    metadata = {**source.metadata(), ENTRY: json.dumps(values, ensure_ascii=False)}
    return sorted([*entries, *packed], key=lambda entry: entry.name), metadata


def _line(layout: Layout, config: CompressedTensorsConfig) -> TensorEntry:
    try:
        weights = config.scheme_of((layout.layer,), ("Linear",)).weights
    except ContainerError:  # by a class that the headers do not tell
        weights = None
    text = layout.form if weights is None else f"{layout.form}, {weights}"
    dtype = layout.parts["weight_scale"].dtype
    bits = 8 * layout.nbytes / count if (count := math.prod(layout.shape)) else 0.0
    dtype = dtype if dtype in ("float32", "float16", "bfloat16") else "bfloat16"
    return TensorEntry(f"{layout.layer}.{WEIGHT}", "packed", text, layout.shape, dtype, layout.nbytes, bits)
