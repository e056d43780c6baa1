"""Models of GGUF files: built from the metadata, filled from the tensors, those that are carried in packed layers."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import ContainerError
from octavo.interchange.foreign_model import load_foreign_model
from octavo.interchange.ggml_carry import PLAIN
from octavo.interchange.gguf import GgufFile
from octavo.interchange.gguf_architecture import Architecture
from octavo.interchange.gguf_metadata import NAME, FormerFile
from octavo.interchange.gguf_names import (
    Place,
    Source,
    architecture_of,
    config_of,
    expert_places,
    places_of,
)
from octavo.interchange.gguf_tensors import TensorOrigin, carry_tensor, decode_tensor, factors_of
from octavo.interchange.gguf_tokenizer import tokenizer_files
from octavo.interchange.joined_rows import joined_rows
from octavo.model_folder.config_limits import build_config
from octavo.model_folder.hf_loading import CONFIG, foreign, known
from octavo.model_folder.size_limits import Extent
from octavo.model_folder.skeleton import build_class, drop_pooler, model_class
from octavo.nn.replace_modules import replace_modules
from octavo.nn.rewriting import rewritten
from octavo.storage import files
from octavo.storage.arguments import checks_arguments
from octavo.storage.reading import shown
from octavo.tensors.packed_tensor import PackedTensor
from octavo.tensors.tensor_entry import TensorEntry


@dataclass(frozen=True)
class GgufModel:
    """A model of a GGUF file before its tensors are read.

    ``places``: where tensors go, by what they are made of. ``config``: of transformers, with the class of the model.
    ``whole``: the model as its class has it, where experts are layers in this one.
    """

    file: GgufFile
    architecture: Architecture
    config: dict[str, Any]
    places: dict[str, Place]
    whole: GgufModel | None = None

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GgufModel:
        """Read the header of a file. Raises ContainerError for one that is damaged or of no known architecture."""
        file = GgufFile(path)
        architecture, fields = architecture_of(file)
        config = config_of(architecture, fields)
        named = {*factors_of(file).values(), *architecture.factor_names}
        names = [name for name in file.tensors if name not in named]
        places = {place.label: place for place in places_of(names, architecture, fields)}
        has_head = any(place.name == architecture.head for place in places.values())
        config |= fields.tokens() | {"architectures": [architecture.model], "dtype": "float32"}
        if architecture.head is not None:
            config["tie_word_embeddings"] = not has_head
        return cls(file, architecture, config, places)._with_layers()

    def _with_layers(self) -> GgufModel:
        """Return the model with experts as layers, where a format holds the weights of one."""
        places: dict[str, Place] = {}
        for label, place in self.places.items():
            each = expert_places(place) if place.experts else []
            if any(self._carried(one)[0] is not None for one in self._siblings(place)):
                places |= {one.label: one for one in each}
            else:
                places[label] = place
        return self if places.keys() == self.places.keys() else replace(self, places=places, whole=self)

    def _siblings(self, place: Place) -> list[Place]:
        """Return the places of the first expert of a module."""
        module = place.name.rpartition(".")[0]
        stacks = [one for one in self.places.values() if one.experts and one.name.rpartition(".")[0] == module]
        return [expert_places(one)[0] for one in stacks]

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.file.path)

    def as_floats(self) -> GgufModel:
        """Return the model with the parameters that its class has, none of them as layers."""
        return self if self.whole is None else self.whole

    @property
    def names(self) -> Mapping[str, str]:
        """Names of tensors in the file, with those that they have in the model."""
        return {label: place.name for label, place in self.places.items()}

    @property
    def ties(self) -> dict[str, str]:
        """Names of tensors that are another one, with its name."""
        head, table = self.architecture.head, self.architecture.table
        if head is None or table is None or not self.config["tie_word_embeddings"]:
            return {}
        return {head: table}

    @cached_property
    def _factors(self) -> dict[str, str]:
        return factors_of(self.file)

    def skeleton(self) -> nn.Module:
        """Return the float model without memory for its weights.

        Raises ModelError without transformers, ContainerError for sizes that are not those of the tensors.
        """
        path = self.file.path
        network = known(path, lambda transformers: model_class(transformers, self.architecture.model), "model")
        if network is None:
            raise ContainerError(f"{path}: this transformers has no {self.architecture.model}")
        with foreign(path, self.config):
            config = build_config(path, self.config, network.config_class.from_dict)
        model = build_class(path, network, config, Extent.of(self._sizes(), str(path), self.config))
        drop_pooler(model, [place.name for place in self.places.values()])
        model = self._of_layers(model)
        self._check(model)
        return model

    def _of_layers(self, model: nn.Module) -> nn.Module:
        """Return the model with layers in the place of the experts that are layers here."""
        if self.whole is None:
            return model
        own = {place.name for place in self.places.values()}
        stacks = [place.name for place in self.whole.places.values() if place.experts and place.name not in own]
        new: dict[int, nn.Module] = {}
        for path in dict.fromkeys(name.rpartition(".")[0] for name in stacks):
            module = model.get_submodule(path)
            stand_in = rewritten(module)
            if stand_in is None:
                raise ContainerError(
                    f"{self.file.path}: {path} is a {type(module).__name__}; its experts are no layers"
                )
            new[id(module)] = stand_in
        return replace_modules(model, new)

    def carried(self, name: str) -> tuple[PackedTensor | None, TensorOrigin]:
        """Return a tensor in a format of ours, None where none holds it or it is plain, and how it is to be read."""
        return self._carried(self.places[name])

    def _carried(self, place: Place) -> tuple[PackedTensor | None, TensorOrigin]:
        if place.experts:
            return None, self._stacked_origin(place)
        parts = [
            carry_tensor(self.file, source.name, self._factors.get(source.name), number=source.number)
            for source in place.sources
        ]
        tensors = [tensor for tensor, _ in parts if tensor is not None]
        origin = parts[0][1]
        if len(parts) > 1:
            shape, nbytes = self._shape(place), sum(one.nbytes for _, one in parts)
            reason = next((one.reason for _, one in parts if one.reason is not None), None)
            origin = replace(origin, name=place.label, shape=shape, nbytes=nbytes, reason=reason)
        if len(tensors) != len(parts):
            return None, replace(origin, format=None)
        joined = joined_rows(tensors)
        if isinstance(joined, str):
            return None, replace(origin, format=None, reason=joined)
        origin = replace(origin, format=str(joined.format))
        if place.added:
            return None, replace(origin, format=None, reason="its values are 1 less in the model")
        order = place.row_order(len(joined))
        if order is None:
            return joined, origin
        if joined.ndim < 2:
            return None, replace(origin, format=None, reason="its blocks run over rows that have another order")
        return _ordered(joined, order), origin

    def _stacked_origin(self, place: Place) -> TensorOrigin:
        """Return how the matrices of all experts are read, in one tensor."""
        kinds = dict.fromkeys(self.file.tensors[source.name].type.name for source in place.sources)
        names = dict.fromkeys(source.name for source in place.sources)
        nbytes = sum(self.file.tensors[name].nbytes for name in names)
        is_plain = all(kind in PLAIN for kind in kinds)
        reason = None if is_plain else "the model has one tensor of all experts, which no packed layer multiplies"
        return TensorOrigin(place.label, " and ".join(kinds), self._shape(place), nbytes, None, reason)

    def decoded(self, name: str) -> Tensor:
        """Return the float32 values of a tensor as the float model has it."""
        place = self.places[name]
        parts = [self._values(source) for source in place.sources]
        tensor = parts[0] if len(parts) == 1 else torch.cat(parts)
        order = place.row_order(len(tensor)) if tensor.ndim else None
        tensor = tensor if order is None else tensor[order]
        tensor = tensor - place.added if place.added else tensor
        if place.experts:
            return tensor.view(self._shape(place))
        return tensor.t().contiguous() if place.turned else tensor

    def _values(self, source: Source) -> Tensor:
        return decode_tensor(self.file, source.name, self._factors.get(source.name), number=source.number)

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype that tensors have in the float model."""
        return torch.float32

    def notes(self) -> list[str]:
        """Return why the tokenizer of the file was not read."""
        return [f"no tokenizer: {self._tokenizer[1]}"] if self._tokenizer[1] else []

    def companions(self) -> list[str]:
        """Return the names of the tokenizer's files, and of ``gguf.json``."""
        return list(self._files)

    def write_companions(self, folder: Path) -> None:
        """Write configuration, tokenizer and ``gguf.json``."""
        files.write(folder / CONFIG, json.dumps(self.config, indent=2) + "\n")
        for file, text in self._files.items():
            files.write(folder / file, text)

    @cached_property
    def _files(self) -> dict[str, str]:
        """Texts of the tokenizer's files, and of ``gguf.json``."""
        placed = {source.name for place in self.places.values() for source in place.sources}
        without_place = [name for name in self.file.tensors if name not in placed]
        return {**self._tokenizer[0], NAME: FormerFile.of(self.file, without_place).text()}

    @cached_property
    def _tokenizer(self) -> tuple[dict[str, str], str | None]:
        return tokenizer_files(self.file, self.positions)

    @property
    def positions(self) -> int:
        """Number of positions that the model has."""
        positions: int = self.config.get("max_position_embeddings", self.config.get("n_positions", 0))
        return positions

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape that a tensor has in the float model."""
        return self._shape(self.places[name])

    def _shape(self, place: Place) -> tuple[int, ...]:
        shapes = [self._source_shape(source) for source in place.sources]
        shape = shapes[0]
        if len(shapes) > 1:
            if any(not one or one[1:] != shape[1:] for one in shapes):
                raise ContainerError(f"{self.file.path}: tensors {shown(place.label)} have no rows of one length")
            shape = (sum(one[0] for one in shapes), *shape[1:])
        if place.experts:
            return (place.experts, shape[0] // place.experts, *shape[1:])
        return shape[::-1] if place.turned else shape

    def _source_shape(self, source: Source) -> tuple[int, ...]:
        shape = self.file.tensors[source.name].shape
        return shape if source.number is None else shape[1:]

    def _sizes(self) -> list[TensorEntry]:
        return [self._entry(place) for place in self.as_floats().places.values()]

    def _entry(self, place: Place) -> TensorEntry:
        shape = self._shape(place)
        return TensorEntry(place.name, "plain", None, shape, "float32", 4 * math.prod(shape), 32.0)

    def _check(self, model: nn.Module) -> None:
        """Refuse tensors of other shapes than the metadata say, and those that are missing or too many."""
        state = model.state_dict(keep_vars=True)
        for name, place in self.places.items():
            expected = state.get(place.name)
            if expected is None:
                raise ContainerError(
                    f"{self.file.path}: tensor {shown(name)}: the metadata say nothing of {place.name}"
                )
            if tuple(expected.shape) != self.shape(name):
                shape, expected_shape = list(self.shape(name)), list(expected.shape)
                raise ContainerError(
                    f"{self.file.path}: tensor {shown(name)}: shape {shape}; by the metadata {place.name} is "
                    f"{expected_shape}"
                )
        there = {place.name for place in self.places.values()} | self.ties.keys()
        parameters = dict(model.named_parameters(remove_duplicate=False))
        missing = next((name for name in parameters if name not in there), None)
        if missing is not None:
            raise ContainerError(f"{self.file.path}: no tensor for {missing}, which the metadata ask for")


@checks_arguments
def load_gguf_model(path: str | os.PathLike[str]) -> tuple[nn.Module, list[TensorOrigin]]:
    """Return the model of a GGUF file, in evaluation mode, and how each of its tensors was read.

    Blocks that a format of ours holds are the weights of packed layers; others are decoded to float32.
    :func:`octavo.load_model` does the same, and warns of decoded tensors.

    Args:
        path: file to read.

    Returns:
        A model of transformers, and the origins of its tensors in the order of the file.

    Raises:
        ContainerError: for a file that is damaged, of another architecture, or whose tensors do not fit its metadata.
        FormatError: for a type of blocks that has no definition here; names the tensor.
        ModelError: without transformers.
        OSError: as the system gives it.
    """
    return load_foreign_model(GgufModel.open(path))


def _ordered(tensor: PackedTensor, order: Tensor) -> PackedTensor:
    """Return a packed matrix with its rows in another order."""
    zeros = tensor.zeros[order] if tensor.format.core.has_zeros else tensor.zeros
    return PackedTensor(
        tensor.format, tensor.codes[order], tensor.scales[order], zeros, tensor.levels, shape=tensor.shape,
        dtype=tensor.dtype,
    )  # fmt: skip
