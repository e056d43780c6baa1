"""Plain tensors of a file, put in the places that a model has for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import ContainerError, ModelError
from octavo.model_folder.stored_tensors import PACKED_STATE
from octavo.nn import PackedLayer
from octavo.recipe.sites import join
from octavo.tensors.packed_tensor import FLOATS, PackedTensor


def fits(stored: torch.dtype, wanted: torch.dtype) -> bool:
    """Whether a tensor of a file may take a place of a model: a float of ours for another, else the same dtype."""
    return stored == wanted or (stored in FLOATS and wanted in FLOATS)


def assign_plain(
    model: nn.Module, ties: Mapping[str, str], tensors: Mapping[str, Tensor | PackedTensor], done: Collection[str]
) -> set[str]:
    """Put plain tensors in their places but those of ``done``, tied ones as one object. Return their names."""
    packed = [path for path, layer in model.named_modules(remove_duplicate=False) if isinstance(layer, PackedLayer)]
    own = {join(path, name) for path in packed for name in PACKED_STATE}
    assigned: dict[str, Tensor] = {}
    places = model.state_dict(keep_vars=True)
    for name, place in places.items():
        if name in done or name in own:
            continue
        if name not in tensors:
            raise ContainerError(f"{name}: missing")
        value = tensors[name]
        if not isinstance(value, Tensor) or not isinstance(place, Tensor) or value.shape != place.shape:
            raise ContainerError(f"{name}: {_kind(value)}, but the model has a plain {_kind(place)} there")
        if not fits(value.dtype, place.dtype):
            raise ContainerError(f"{name}: dtype {value.dtype}, but the model has {place.dtype} there")
        source = ties.get(name, name)
        if source not in assigned:
            is_parameter = isinstance(place, nn.Parameter)
            assigned[source] = nn.Parameter(value, requires_grad=place.requires_grad) if is_parameter else value
        path, _, last = name.rpartition(".")
        owner = model.get_submodule(path)
        registry: dict[str, Any] = owner._parameters if last in owner._parameters else owner._buffers
        registry[last] = assigned[source]
    return {name for name in places if name not in own}


def _kind(value: object) -> str:
    if isinstance(value, PackedTensor):
        return repr(value)
    return f"tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def refuse_empty(model: nn.Module) -> None:
    """Refuse a model with tensors that neither the file nor its own code gave a value."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.device.type == "meta":
            raise ModelError(
                f"{name}: not in the file, and without a value in a model built on no memory; give load_model a model "
                "instead of a function that makes one"
            )
