"""Models of GGUF files: built from the metadata, filled from the tensors, those that are carried in packed layers."""

from __future__ import annotations

import json
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
from octavo.interchange.gguf import GgufFile
from octavo.interchange.gguf_config import FACTORS
from octavo.interchange.gguf_metadata import NAME, FormerFile
from octavo.interchange.gguf_names import Architecture, Place, architecture_of, config_of, place_of
from octavo.interchange.gguf_tensors import TensorOrigin, carry_tensor, decode_tensor, factors_of
from octavo.interchange.gguf_tokenizer import tokenizer_files
from octavo.model_folder.config_limits import build_config
from octavo.model_folder.hf_loading import CONFIG, foreign, known
from octavo.model_folder.size_limits import Extent
from octavo.model_folder.skeleton import build_class, drop_pooler, model_class
from octavo.storage import files
from octavo.storage.arguments import checks_arguments
from octavo.storage.reading import shown
from octavo.tensors.packed_tensor import PackedTensor
from octavo.tensors.tensor_entry import TensorEntry


@dataclass(frozen=True)
class GgufModel:
    """A model of a GGUF file before its tensors are read.

    ``places``: where tensors go, by their names in the file. ``config``: of transformers, with the class of the model.
    """

    file: GgufFile
    architecture: Architecture
    config: dict[str, Any]
    places: dict[str, Place]

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GgufModel:
        """Read the header of a file. Raises ContainerError for one that is damaged or of no known architecture."""
        file = GgufFile(path)
        architecture, fields = architecture_of(file)
        config = config_of(architecture, fields)
        named = {*factors_of(file).values(), *([FACTORS] if architecture.has_factors else [])}
        places: dict[str, Place] = {}
        for name in file.tensors:
            if name not in named:
                places[name] = place_of(name, architecture, fields)
        has_head = any(place.name == architecture.head for place in places.values())
        config |= fields.tokens() | {"architectures": [architecture.model], "dtype": "float32"}
        if architecture.head is not None:
            config["tie_word_embeddings"] = not has_head
        return cls(file, architecture, config, places)

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.file.path)

    def as_floats(self) -> GgufModel:
        """Return the model: its parameters are those of its class."""
        return self

    @property
    def names(self) -> Mapping[str, str]:
        """Names of tensors in the file, with those that they have in the model."""
        return {name: place.name for name, place in self.places.items()}

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
        self._check(model)
        return model

    def carried(self, name: str) -> tuple[PackedTensor | None, TensorOrigin]:
        """Return a tensor in a format of ours, None where none holds it or it is plain, and how it is to be read."""
        tensor, origin = carry_tensor(self.file, name, self._factors.get(name))
        order = None if tensor is None else self.places[name].row_order(len(tensor))
        if tensor is None or order is None:
            return tensor, origin
        if tensor.ndim < 2:
            return None, replace(origin, format=None, reason="its blocks run over rows that have another order")
        return _ordered(tensor, order), origin

    def decoded(self, name: str) -> Tensor:
        """Return the float32 values of a tensor as the float model has it."""
        tensor, place = decode_tensor(self.file, name, self._factors.get(name)), self.places[name]
        order = place.row_order(len(tensor)) if tensor.ndim else None
        tensor = tensor if order is None else tensor[order]
        return tensor.t().contiguous() if place.turned else tensor

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
        without_place = [name for name in self.file.tensors if name not in self.places]
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
        shape = self.file.tensors[name].shape
        return shape[::-1] if self.places[name].turned else shape

    def _sizes(self) -> list[TensorEntry]:
        return [self._entry(name, place.name) for name, place in self.places.items()]

    def _entry(self, name: str, place: str) -> TensorEntry:
        nbytes = 4 * self.file.tensors[name].elements
        return TensorEntry(place, "plain", None, self.shape(name), "float32", nbytes, 32.0)

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

    Blocks that a format of ours holds are the weights of packed layers; others are decoded to float32. Architectures:
    llama, gpt2, bert. :func:`octavo.load_model` does the same, and warns of decoded tensors.

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
