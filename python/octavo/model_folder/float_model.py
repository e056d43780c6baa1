"""A packed or simulated model of transformers as a float model again, with the values that its layers multiply."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import ModelError
from octavo.model_folder.carried_files import hand_files
from octavo.model_folder.quantization_entry import ENTRY
from octavo.model_folder.skeleton import build
from octavo.model_folder.stored_tensors import stored_state
from octavo.nn.format_layer import FormatLayer
from octavo.nn.packed_layer import PackedLayer
from octavo.nn.parameter_tables import TableClass
from octavo.nn.quant_layer import QuantLayer
from octavo.nn.rewriting import joined_state
from octavo.nn.transformers_methods import OurMethods


@torch.no_grad()
def float_model(model: Any, dtype: torch.dtype | None) -> nn.Module:
    """Return a float model of transformers with the weights of ``model`` as they are rounded.

    ``dtype``: of its float tensors; None for the one that each has. Formats of inputs and outputs are left out. Raises
    ModelError for tensors that such a model has no place for.
    """
    values, ties = stored_state(model)
    layers = {path: layer for path, layer in model.named_modules() if isinstance(layer, FormatLayer)}
    rounded: dict[str, Any] = {}
    for name, value in values.items():
        path, _, last = name.rpartition(".")
        if path.rpartition(".")[2].endswith("_quantizer"):
            continue
        layer = layers.get(path)
        if isinstance(layer, PackedLayer) and last in ("weight", "bias"):
            value = layer.float_weight() if last == "weight" else layer.float_bias()
        elif isinstance(layer, QuantLayer) and last in ("weight", "bias"):
            value = (layer._weight if last == "weight" else layer._bias)()
        is_cast = dtype is not None and isinstance(value, Tensor) and value.is_floating_point()
        rounded[name] = value.detach().to(dtype) if is_cast else value
    state = joined_state(model, rounded | {name: rounded[first] for name, first in ties.items() if first in rounded})
    config = copy.deepcopy(model.config)
    for name in (ENTRY, "_is_quantized"):
        vars(config).pop(name, None)
    architecture: Any = _float_class(type(model))
    fresh: Any = build(lambda: architecture(config))
    places = fresh.state_dict()
    wrong = next((name for name in (*places, *state) if not _fits(places.get(name), state.get(name))), None)
    if wrong is not None:
        raise ModelError(
            f"{wrong}: a float {architecture.__name__} has no such tensor of this model; octavo.save_model and octavo "
            "unpack write the tensors that there are"
        )
    parameters: dict[int, nn.Parameter] = {}
    for name in places:
        path, _, last = name.rpartition(".")
        owner = fresh.get_submodule(path)
        if last not in owner._parameters:
            owner._buffers[last] = state[name]
            continue
        value = state[name]
        parameters.setdefault(id(value), nn.Parameter(value, requires_grad=value.is_floating_point()))
        owner._parameters[last] = parameters[id(value)]
    hand_files(model, fresh)
    for name in ("generation_config", "name_or_path"):
        if name in vars(model):
            vars(fresh)[name] = vars(model)[name]
    result: nn.Module = fresh.to(next(iter(state.values())).device).train(model.training)
    return result


def _float_class(cls: type) -> type:
    """Return the class of transformers that a model was made of."""
    return next(base for base in cls.__mro__ if not isinstance(base, TableClass) and not issubclass(base, OurMethods))


def _fits(place: Any, value: Any) -> bool:
    return isinstance(place, Tensor) and isinstance(value, Tensor) and place.shape == value.shape
