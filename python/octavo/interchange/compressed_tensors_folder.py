"""Folders of transformers that compressed-tensors has packed: what of them is a weight, and what is left out."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from octavo.interchange.compressed_tensors_config import CompressedTensorsConfig
from octavo.interchange.compressed_tensors_former import NAME, FormerFolder
from octavo.interchange.compressed_tensors_layout import Layout, group_tensors, settle
from octavo.interchange.compressed_tensors_weights import CompressedWeight
from octavo.interchange.quantized_folder import QuantizedFolder
from octavo.tensors.tensor_entry import TensorEntry


@dataclass
class CompressedTensors:
    """The weights of a folder. ``activations``: names of tensors for inputs and outputs of layers, and for caches."""

    config: CompressedTensorsConfig
    tensors: Mapping[str, Tensor]
    layouts: dict[str, Layout]
    activations: list[str]
    weights: dict[str, CompressedWeight] = field(default_factory=dict)

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor], values: Mapping[str, Any], label: str) -> CompressedTensors:
        """Find the weights among tensors. Raises ContainerError naming tensor or field."""
        config = CompressedTensorsConfig.read(values, label)

        def integers(name: str) -> tuple[int, ...]:
            return tuple(map(int, tensors[name].flatten()[:8]))

        entries = [_entry(name, tensor) for name, tensor in tensors.items()]
        layouts, activations = group_tensors(entries, integers, str(Path(label).parent))
        config.check_expressions(layout.layer for layout in layouts.values())
        packing = cls(config, tensors, layouts, activations)
        for name, layout in layouts.items():
            packing.weights[name] = CompressedWeight(layout, packing._reader(layout))
        return packing

    @property
    def taken(self) -> Collection[str]:
        """Names of the tensors that the weights are made of, or that no float model has."""
        parts = {entry.name for layout in self.layouts.values() for entry in layout.parts.values()}
        return {*parts, *self.activations}

    def settle(self, layers: Mapping[str, Sequence[str]]) -> None:
        """Give every weight its scheme. Raises ContainerError naming a tensor that the scheme does not fit."""
        for name, layout in self.layouts.items():
            own, *classes = layers.get(name, (name, "Linear"))
            scheme = self.config.scheme_of((layout.layer, own.rpartition(".")[0]), classes)
            assert scheme.weights is not None  # scheme_of gives no other
            stated = scheme.format or self.config.format
            self.layouts[name] = settle(layout, scheme.weights, stated, self.config.version)
            self.weights[name] = CompressedWeight(self.layouts[name], self._reader(layout))

    def notes(self) -> list[str]:
        """Return what of the configuration is not in the model: rounding of inputs, outputs, keys and values."""
        sentences = []
        for role in ("inputs", "outputs"):
            rounding = sorted({text for scheme in self.config.schemes if (text := getattr(scheme, role))})
            if rounding:
                sentences.append(
                    f"{role} of layers are not rounded; the configuration rounds them ({'; '.join(rounding)})"
                )
        if self.config.cache is not None:
            sentences.append(f"keys and values are not rounded; the configuration rounds them ({self.config.cache})")
        return sentences

    def companions(self) -> list[str]:
        """Return the name of the file that tells how the folder is written back."""
        return [NAME]

    def files(self, names: Mapping[str, str], joined: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Return the text of the file that tells how the folder is written back."""
        extra = {name: self.tensors[name] for name in self.activations}
        return {NAME: FormerFolder.of(self.config.values, self.weights, names, joined, extra).text()}

    def _reader(self, layout: Layout) -> Any:
        return lambda part: self.tensors[layout.parts[part].name]


def _entry(name: str, tensor: Tensor) -> TensorEntry:
    bits = 8 * tensor.element_size()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorEntry(name, "plain", None, tuple(tensor.shape), dtype, tensor.nbytes, bits if tensor.numel() else 0.0)


def open_folder(path: str | os.PathLike[str]) -> QuantizedFolder:
    """Read the headers of a folder. Raises as :meth:`octavo.interchange.quantized_folder.QuantizedFolder.open`."""
    return QuantizedFolder.open(Path(path), CompressedTensors.read)
