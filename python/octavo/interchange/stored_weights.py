"""Layers whose weights another package has packed: their tensors by name, dtype and shape. torch is not loaded.

A package is a function that returns the :class:`PackedWeights` of a :class:`StoredFolder`. From their headers commands
list the weights; :mod:`~octavo.interchange.layer_packing` makes a model of them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.errors import ContainerError
from octavo.storage.reading import shown
from octavo.tensors.tensor_entry import TensorEntry

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from octavo.tensors.packed_tensor import PackedTensor

FLOATS = ("float32", "float16", "bfloat16")
WEIGHT = "weight"


class NotHeldError(Exception):
    """Why no format holds a weight with the same values."""


@dataclass(frozen=True)
class PackedLayer:
    """The tensors of a weight. ``name``: of its layer. ``parts``: by what they are. ``folder``: for errors."""

    name: str
    parts: Mapping[str, TensorEntry]
    folder: str

    @property
    def weight(self) -> str:
        """Name that the float weight would have."""
        return f"{self.name}.{WEIGHT}"

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(entry.nbytes for entry in self.parts.values())

    def error(self, part: str, problem: str) -> ContainerError:
        """Return the error of a tensor."""
        entry = self.parts.get(part)
        named = f"{self.name}.{part}" if entry is None else entry.name
        return ContainerError(f"{self.folder}: tensor {shown(named)}: {problem}")

    def require(self, part: str, *others: str) -> None:
        """Raise ContainerError where a tensor is not beside ``part``."""
        for other in others:
            if other not in self.parts:
                raise self.error(part, f"no {other} is beside it")

    def check(self, part: str, dtypes: Sequence[str], *shapes: tuple[int, ...]) -> None:
        """Raise ContainerError for a tensor of another dtype or shape; no shapes accept all."""
        entry = self.parts[part]
        if entry.dtype not in dtypes or (shapes and tuple(entry.shape) not in shapes):
            accepted = " or ".join(str(list(shape)) for shape in shapes)
            raise self.error(part, f"{entry.dtype} {list(entry.shape)}; expected is {', '.join(dtypes)} {accepted}")

    def matrix(self, part: str, *dtypes: str) -> tuple[int, int]:
        """Return the sizes of a matrix. Raises ContainerError for another dtype or other dimensions."""
        self.check(part, dtypes)
        shape = tuple(self.parts[part].shape)
        if len(shape) != 2:
            raise self.error(part, f"shape {list(shape)}; read are matrices")
        return shape[0], shape[1]


@dataclass(frozen=True)
class LayerWeight(ABC):
    """A weight of a package. ``type``: how it is packed, for people. ``stored_dtype``: that the package decodes to.

    ``read``: returns a part of the layer.
    """

    layer: PackedLayer
    shape: tuple[int, ...]
    type: str
    stored_dtype: str
    read: Callable[[str], Tensor] = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        """Name that the float weight would have."""
        return self.layer.weight

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return self.layer.nbytes

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the values that the package decodes it to."""
        import torch

        kind: torch.dtype = getattr(torch, self.stored_dtype)
        return kind

    def carry(self, dtype: torch.dtype) -> PackedTensor | str:
        """Return the weight of a logical dtype in a format of ours, or why none holds it."""
        try:
            return self.held(dtype)
        except NotHeldError as error:
            return str(error)

    def matrices(self) -> Sequence[LayerWeight]:
        """Return the matrices that a weight of several layers has, one for each; of others nothing."""
        return ()

    @abstractmethod
    def held(self, dtype: torch.dtype) -> PackedTensor:
        """Return the weight of a logical dtype in a format of ours. Raises NotHeldError."""

    @abstractmethod
    def decode(self) -> Tensor:
        """Return the values, to the bit those of the package."""

    def entry(self) -> TensorEntry:
        """Return the line of a table of contents."""
        count = math.prod(self.shape)
        bits = 8 * self.nbytes / count if count else 0.0
        return TensorEntry(self.name, "packed", self.type, self.shape, self.stored_dtype, self.nbytes, bits)


@dataclass(frozen=True)
class StoredFolder:
    """What a package looks at before weights are read.

    ``settings``: of the packing. ``label``: the file that has them. ``read``: returns a tensor. ``data``: the bytes of
    a small one. ``metadata``: of the files of weights.
    """

    entries: Mapping[str, TensorEntry]
    settings: Mapping[str, Any]
    label: str
    read: Callable[[str], Tensor]
    data: Callable[[str], bytes]
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The folder."""
        return str(Path(self.label).parent)

    def layers(self, suffixes: Collection[str], needed: str) -> dict[str, PackedLayer]:
        """Return the layers with a tensor ``needed``, and their tensors by the suffixes of their names."""
        layers: dict[str, dict[str, TensorEntry]] = {}
        ordered = sorted(suffixes, key=len, reverse=True)
        for name, entry in self.entries.items():
            suffix = next((one for one in ordered if name.endswith(f".{one}")), None)
            if suffix is not None:
                layers.setdefault(name[: -len(suffix) - 1], {})[suffix] = entry
        return {name: PackedLayer(name, parts, self.path) for name, parts in layers.items() if needed in parts}

    def reader(self, layer: PackedLayer) -> Callable[[str], Tensor]:
        """Return what reads a part of a layer."""
        return lambda part: self.read(layer.parts[part].name)


@dataclass
class PackedWeights:
    """The weights of a folder by the names that the float ones would have. ``sentences``: on what is left out.

    ``left``: names of tensors that no float model has.
    """

    weights: dict[str, LayerWeight] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)
    left: set[str] = field(default_factory=set)

    @classmethod
    def of(
        cls, weights: Iterable[LayerWeight], sentences: Sequence[str] = (), left: Collection[str] = ()
    ) -> PackedWeights:
        """Return some weights."""
        return cls({weight.name: weight for weight in weights}, list(sentences), set(left))

    @property
    def taken(self) -> Collection[str]:
        """Names of the tensors that the weights are made of, or that no float model has."""
        parts = (entry.name for weight in self.weights.values() for entry in weight.layer.parts.values())
        return {*parts, *self.left}

    def settle(self, layers: Mapping[str, Sequence[str]]) -> None:
        """Refuse layers whose weights a package stores transposed. Raises ContainerError."""
        for name, (_, *classes) in layers.items():
            if "Conv1D" in classes and name in self.weights:
                weight = self.weights[name]
                raise weight.layer.error(next(iter(weight.layer.parts)), "of a Conv1D layer; read are Linear layers")

    def notes(self) -> list[str]:
        """Return sentences on what of the configuration is not in the model."""
        return self.sentences

    def companions(self) -> list[str]:
        """Return nothing: such folders are not written."""
        return []

    def files(self, names: Mapping[str, str], joined: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Return nothing: such folders are not written."""
        return {}


FindWeights = Callable[[StoredFolder], PackedWeights]
"""Finds the weights of a package. Raises ContainerError naming tensor or field."""
