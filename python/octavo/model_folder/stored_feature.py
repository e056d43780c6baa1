"""StoredFeature: one thing that a file says about a model beside its tensors, and how a model gets it back.

A feature is a file in :mod:`octavo.model_folder.features` and a place in its ``FEATURES``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from octavo.tensors.packed_tensor import PackedTensor


class Stage(IntEnum):
    """When a feature is read back, in this order; tensors without a layer of ours are placed before ``FILLED``."""

    SHAPES = 0
    """Parameters get the shapes that the file has."""
    MODULES = 1
    """Modules are added or taken out."""
    TENSORS = 2
    """Tensors of the file are turned into those of the model."""
    LAYERS = 3
    """Float layers are replaced."""
    PARAMETERS = 4
    """Parameters get what belongs to each of them."""
    FILLED = 5
    """Every tensor has its value."""


@dataclass
class Restoration:
    """A model on the way from its file, which features change.

    ``tensors``: of the file, by name. ``ties``: further names, and the name that each is tied to. ``file``: for errors.
    ``from_config``: whether the model was built from the configuration of its folder. ``placed``: names of the tensors
    that are in the model.
    """

    model: nn.Module
    tensors: dict[str, Tensor | PackedTensor]
    ties: Mapping[str, str]
    file: Path
    from_config: bool = False
    placed: set[str] = field(default_factory=set)

    def by_name(self) -> dict[str, Tensor | PackedTensor]:
        """Return the tensors by every name, those of ties included."""
        return self.tensors | {name: self.tensors[source] for name, source in self.ties.items()}


def _none(_: Any) -> Any:
    return None


def _no_names(_: Any) -> Iterable[str]:
    return ()


def _not_null(value: Any) -> bool:
    return value is not None


def is_names(value: Any) -> bool:
    """Whether a value is a list of names."""
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _restore_nothing(_: Restoration, __: Any) -> None:
    return None


@dataclass(frozen=True)
class StoredFeature:
    """One thing that a file says about a model.

    ``key``: of its value in the model's description, or with ``in_metadata`` of its text in the file's metadata.
    ``describe``: returns the value of a model, as JSON has it; None where there is nothing to say.
    ``is_valid``: whether a value of a file has the types that it must.
    ``restore``: gives a model that feature back, at ``stage``; the value is None where the file says nothing. Raises
    ContainerError for a value that does not fit the model.
    ``refuse``: raises ModelError for a model with something that no file holds.
    ``unsaved``: names in a model's state dict that no file has.
    ``own_tensors``: names of tensors in a file that a float model has no place for.
    ``float_problem``: what a file of float weights could not tell; None where it loses nothing.
    """

    key: str
    stage: Stage = Stage.FILLED
    in_metadata: bool = False
    describe: Callable[[nn.Module], Any] = _none
    is_valid: Callable[[Any], bool] = _not_null
    restore: Callable[[Restoration, Any], None] = _restore_nothing
    refuse: Callable[[nn.Module], None] = _none
    unsaved: Callable[[nn.Module], Iterable[str]] = _no_names
    own_tensors: Callable[[Any], Iterable[str]] = _no_names
    float_problem: Callable[[Any], str | None] = _none
