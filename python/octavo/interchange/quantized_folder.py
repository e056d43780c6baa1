"""Folders of transformers whose weights another package has packed: ``quantization_config`` names the package.

A package is a :class:`Packing`: which tensors of the folder make a weight, and what the weight is. The model, the names
of its tensors and its other files are those of the folder.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from octavo.errors import ContainerError
from octavo.interchange.conversion_report import left_out
from octavo.interchange.foreign_model import TensorOrigin
from octavo.interchange.joined_rows import joined_rows
from octavo.interchange.packing_settings import BESIDE, packing_settings
from octavo.model_folder.companion_files import belonging, copy_companions
from octavo.model_folder.infer_structure import fitting
from octavo.model_folder.merged_tensors import MergedTensor
from octavo.model_folder.model_config import CONFIG
from octavo.model_folder.quantization_entry import ENTRY
from octavo.model_folder.tensor_names import Placed, Places
from octavo.model_folder.weight_files import Checkpoint
from octavo.nn.replace_modules import replace_modules
from octavo.nn.rewriting import RewrittenFrom, made_from, rewritten
from octavo.recipe.sites import join
from octavo.storage import files
from octavo.storage.reading import read_json, shown
from octavo.tensors.packed_tensor import FLOATS, PackedTensor


class PackedWeight(Protocol):
    """A weight that a package has packed in one or several tensors."""

    @property
    def type(self) -> str:
        """How it is packed, for people."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the values."""

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the values that the package decodes it to."""

    def carry(self, dtype: torch.dtype) -> PackedTensor | str:
        """Return the weight of a logical dtype in a format of ours, or why none holds it."""

    def decode(self) -> Tensor:
        """Return the values, to the bit those of the package."""

    def matrices(self) -> Sequence[PackedWeight]:
        """Return the matrices that a weight of several layers has, one for each; of others nothing."""


class Packing(Protocol):
    """The weights of a folder that a package has packed."""

    @property
    def weights(self) -> Mapping[str, PackedWeight]:
        """By the names that the float weights would have in the folder."""

    @property
    def taken(self) -> Collection[str]:
        """Names of the tensors that the weights are made of, or that no float model has."""

    def settle(self, layers: Mapping[str, Sequence[str]]) -> None:
        """Take the names that weights have in the model, and the classes of their layers: ``(name, *classes)``.

        Raises ContainerError for weights whose tensors are not those that the configuration says.
        """

    def notes(self) -> list[str]:
        """Return sentences on what of the configuration is not in the model."""

    def companions(self) -> list[str]:
        """Return the names of the files of :meth:`files`."""

    def files(self, names: Mapping[str, str], joined: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Return texts of files by which a folder of the model can be written back.

        ``names``: in the model, by those in the folder; of tensors that are one in both. ``joined``: by name in the
        model, the weights of the folder whose rows follow each other in it.
        """


_JOINED = "the model joins it with others to one tensor, which no packed layer multiplies"

ReadPacking = Callable[[Mapping[str, Tensor], Mapping[str, Any], str], Packing]
"""Makes the packing of the tensors of a folder, the settings of the packing, and the file that has them."""


@dataclass(frozen=True)
class QuantizedFolder:
    """The model of such a folder before its weights are read. ``network``: on the meta device, not to be changed.

    ``places``: where tensors go; a packed weight is a tensor on the meta device there, of
    ``stand_ins``. ``plain``: tensors of the folder that are not packed. ``whole``: the model as its class has it, where
    experts are layers in this one. ``pieces``: weights of such experts that are one tensor in the folder, by names of
    their own.
    """

    source: Checkpoint
    packing: Packing
    network: nn.Module
    places: Places
    plain: Mapping[str, Tensor]
    stand_ins: Mapping[str, Tensor]
    whole: QuantizedFolder | None = None
    pieces: Mapping[str, PackedWeight] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path, read: ReadPacking) -> QuantizedFolder:
        """Read the headers of a folder.

        Raises ContainerError for a folder that is damaged, or of no model that transformers has; ModelError without it.
        """
        source = Checkpoint.open(path)
        tensors = {name: tensor for name, tensor in source.tensors().items() if isinstance(tensor, Tensor)}
        packing = read(tensors, *packing_settings(path))
        taken = set(packing.taken)
        plain = {name: tensor for name, tensor in tensors.items() if name not in taken}
        twice = plain.keys() & packing.weights.keys()
        if twice:
            raise ContainerError(f"{path}: {shown(min(twice))} is there packed and plain; keep one of them")
        stand_ins = {
            name: torch.empty(weight.shape, dtype=weight.dtype, device="meta")
            for name, weight in packing.weights.items()
        }
        network, places = fitting(source, {**plain, **stand_ins}, is_unpacked=True)
        folder = cls(source, packing, network, places, plain, stand_ins)
        folder._check()
        return folder._with_layers()

    @property
    def path(self) -> Path:
        """The folder."""
        return self.source.path

    def as_floats(self) -> QuantizedFolder:
        """Return the model with the parameters that its class has, none of them as layers."""
        return self if self.whole is None else self.whole

    @property
    def config(self) -> dict[str, Any]:
        """Configuration of transformers without the packing."""
        values = read_json(self.path / CONFIG, finite=False)
        return {name: value for name, value in values.items() if name != ENTRY}

    @property
    def names(self) -> Mapping[str, str]:
        """Names of tensors in the model."""
        return {name: name for name in self.places.tensors}

    @property
    def ties(self) -> Mapping[str, str]:
        """Names in the model of tensors that are another one, with its name."""
        return self.places.ties

    def skeleton(self) -> nn.Module:
        """Return the float model without memory for its weights."""
        return copy.deepcopy(self.network)

    def carried(self, name: str) -> tuple[PackedTensor | None, TensorOrigin]:
        """Return a tensor in a format of ours, None where none holds it or it is plain, and how it is to be read."""
        placed, weight = self.places.tensors[name], self._weight(name)
        dtype = str(self.dtype(name)).removeprefix("torch.")
        origin = TensorOrigin(name, dtype, self.shape(name), placed.nbytes, None, None, dtype)
        if isinstance(placed, MergedTensor):
            parts = [one for part in _parts(placed) if (one := self.packing.weights.get(part)) is not None]
            if not parts:
                return None, origin
            origin = replace(origin, type=parts[0].type, nbytes=sum(one.nbytes for one in parts))
            joined = self._joined(placed, self.dtype(name))
            if isinstance(joined, str):
                return None, replace(origin, reason=joined)
            return joined, replace(origin, format=str(joined.format))
        if weight is None:
            return None, origin
        origin, carried = replace(origin, type=weight.type, nbytes=weight.nbytes), weight.carry(self.dtype(name))
        if isinstance(carried, str):
            return None, replace(origin, reason=carried)
        return carried, replace(origin, format=str(carried.format))

    def decoded(self, name: str) -> Tensor:
        """Return the values of a tensor as the float model has it."""
        placed, weight = self.places.tensors[name], self._weight(name)
        if weight is not None:
            return weight.decode().to(self.dtype(name))
        if not isinstance(placed, MergedTensor):
            return self.places.value(name)
        sources = {
            pattern: [
                (part, self.packing.weights[part].decode() if part in self.packing.weights else tensor)
                for part, tensor in tensors
            ]
            for pattern, tensors in placed.sources.items()
        }
        return replace(placed, sources=sources).tensor().to(self.dtype(name))

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape that a tensor has in the float model."""
        return tuple(self.places.tensors[name].shape)

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype that a tensor has in the float model."""
        stored, wanted = self.places.tensors[name].dtype, self.places.dtypes[name]
        return wanted if stored in FLOATS and wanted in FLOATS else stored

    def notes(self) -> list[str]:
        """Return sentences on what of the folder is not in the model."""
        return [*self.packing.notes(), *left_out(self.places.left_out, f"a {type(self.network).__name__} has")]

    def companions(self) -> list[str]:
        """Return the names of the tokenizer's files, and of those of the packing."""
        return [*belonging(self.path), *self.packing.companions()]

    def write_companions(self, folder: Path) -> None:
        """Copy configuration, tokenizer and other files; the packing is left out of the configuration."""
        copy_companions(self.path, folder)
        for name in BESIDE:
            (folder / name).unlink(missing_ok=True)
        files.write(folder / CONFIG, json.dumps(self.config, indent=2) + "\n")
        for name, text in self.packing.files(self._model_names, self._joined_names).items():
            files.write(folder / name, text)

    @cached_property
    def _by_identity(self) -> Mapping[int, str]:
        return {id(tensor): name for name, tensor in self.stand_ins.items()}

    @cached_property
    def _model_names(self) -> Mapping[str, str]:
        """Names in the model of the tensors that are one there, by those in the folder."""
        origins = {**self._by_identity, **{id(tensor): name for name, tensor in self.plain.items()}}
        return {
            own: name for name, placed in self.places.tensors.items() if (own := origins.get(id(placed))) is not None
        }

    @property
    def _joined_names(self) -> Mapping[str, Sequence[str]]:
        """Names in the folder of the weights that are rows of one in the model."""
        return {
            name: [tensors[0][0] for tensors in _ordered(placed)]
            for name, placed in self.places.tensors.items()
            if isinstance(placed, MergedTensor) and placed.part is not None and len(placed.shape) == 2
            if all(len(tensors) == 1 and tensors[0][0] in self.packing.weights for tensors in _ordered(placed))
        }

    def _weight(self, name: str) -> PackedWeight | None:
        own = self._by_identity.get(id(self.places.tensors[name]))
        return None if own is None else self.pieces.get(own) or self.packing.weights[own]

    def _joined(self, placed: MergedTensor, dtype: torch.dtype) -> PackedTensor | str:
        """Return the weights of one expert behind each other, or why they are not one packed matrix."""
        ordered = _ordered(placed)
        if placed.part is None or len(placed.shape) != 2 or any(len(tensors) != 1 for tensors in ordered):
            return _JOINED
        weights = [self.packing.weights.get(tensors[0][0]) for tensors in ordered]
        carried = [_JOINED if weight is None else weight.carry(dtype) for weight in weights]
        problem = next((one for one in carried if isinstance(one, str)), None)
        if problem is not None:
            return problem
        return joined_rows([one for one in carried if isinstance(one, PackedTensor)])

    def _with_layers(self) -> QuantizedFolder:
        """Return the folder with experts as layers, where a packed layer multiplies each of them."""
        network = self.skeleton()
        new: dict[int, nn.Module] = {}
        modules: dict[str, RewrittenFrom] = {}
        for name, placed in self.places.tensors.items():
            path = name.rpartition(".")[0]
            if path in modules or not self._is_of_experts(name, placed):
                continue
            module = network.get_submodule(path)
            stand_in = rewritten(module)
            record = None if stand_in is None else made_from(stand_in)
            if stand_in is not None and record is not None and self._are_layers(path, record):
                new[id(module)] = stand_in
                modules[path] = record
        if not modules:
            return self
        places = self.places.split(modules)
        pieces: dict[str, PackedWeight] = {}
        stand_ins: dict[str, Tensor] = {}
        for path, record in modules.items():
            for name, origin in record.origins.items():
                weight = self._weight(join(path, name))
                for part, matrix in zip(origin.parts, () if weight is None else weight.matrices(), strict=False):
                    pieces[own := join(path, part)] = matrix
                    stand_ins[own] = places.tensors[own] = torch.empty(matrix.shape, dtype=matrix.dtype, device="meta")
        return replace(
            self,
            network=replace_modules(network, new),
            places=places,
            whole=self,
            pieces=pieces,
            stand_ins={**self.stand_ins, **stand_ins},
        )

    def _is_of_experts(self, name: str, placed: Placed) -> bool:
        """Whether a tensor of the model is made of several packed matrices."""
        if isinstance(placed, MergedTensor):
            return any(part in self.stand_ins for part in _parts(placed))
        weight = self._weight(name)
        return weight is not None and len(weight.matrices()) > 0

    def _are_layers(self, path: str, record: RewrittenFrom) -> bool:
        """Whether the first part of each parameter is a packed matrix as it lies in the folder, or a bias."""
        for name, origin in record.origins.items():
            whole = join(path, name)
            placed, weight = self.places.tensors.get(whole), self._weight(whole)
            if weight is not None:
                matrices = weight.matrices()
                if len(matrices) != len(origin.parts) or matrices[0].shape != origin.part_shape:
                    return False
                if isinstance(matrices[0].carry(self.dtype(whole)), str):
                    return False
            elif isinstance(placed, MergedTensor) and not origin.is_turned:
                parts = placed.parts()
                if not parts or len(parts) != len(origin.parts) or parts[0].shape != origin.part_shape:
                    return False
                if isinstance(self._joined(parts[0], self.dtype(whole)), str):
                    return False
            elif not isinstance(placed, Tensor) or len(origin.part_shape) != 1:
                return False
        return True

    def _check(self) -> None:
        """Refuse tensors of other shapes than the model's, and tell the packing where its weights are."""
        state = self.network.state_dict(keep_vars=True)
        layers: dict[str, Sequence[str]] = {}
        for name, placed in self.places.tensors.items():
            if tuple(placed.shape) != tuple(state[name].shape):
                label = self._by_identity.get(id(placed), name)
                raise ContainerError(
                    f"{self.path}: {shown(label)}: shape {list(placed.shape)}; by the configuration {name} is "
                    f"{list(state[name].shape)}"
                )
            if isinstance(placed, MergedTensor):
                layers |= {part: (part, "Linear", "Module") for part in _parts(placed)}
            elif (own := self._by_identity.get(id(placed))) is not None:
                layer = self.network.get_submodule(name.rpartition(".")[0])
                layers[own] = (name, *(kind.__name__ for kind in type(layer).__mro__))
        self.packing.settle({name: layer for name, layer in layers.items() if name in self.packing.weights})


def _ordered(placed: MergedTensor) -> list[Sequence[tuple[str, Tensor]]]:
    """Return the tensors of each pattern, in the order in which the rule joins them."""
    return [placed.sources[pattern] for pattern in placed.rule.source_patterns if pattern in placed.sources]


def _parts(placed: MergedTensor) -> list[str]:
    """Return the names in the folder of the tensors that one of the model is made of."""
    return [part for tensors in placed.sources.values() for part, _ in tensors]
