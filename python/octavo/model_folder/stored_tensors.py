"""The tensors of a model that a file holds, by name: packed weights as one, tied ones once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from octavo.model_folder.features import FEATURES
from octavo.model_folder.features.described_layers import described_layers
from octavo.nn import PackedLayer
from octavo.nn.packed_layer import BITMAP, FORMAT, PARTS
from octavo.recipe.sites import join

PACKED_STATE = (*(f"weight_{part}" for part in PARTS), FORMAT, BITMAP)
"""What the state dict of a packed layer has in place of its weight; the bitmap where codes are sparse."""


def main_dtype(model: nn.Module) -> torch.dtype | None:
    """Return the float dtype that most elements of a model have, those of packed weights included; None without any."""
    elements: Counter[torch.dtype] = Counter()
    for module in model.modules():
        if isinstance(module, PackedLayer):
            elements[module.dtype] += module.packed_weight.numel()
        for parameter in module._parameters.values():
            if parameter is not None and parameter.is_floating_point():
                elements[parameter.dtype] += parameter.numel()
    return elements.most_common(1)[0][0] if elements else None


def stored_state(model: nn.Module) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of the state dict by name, packed weights as PackedTensors, and the names tied to another.

    What features leave unsaved is left out, such as the scores that pruning gathers in training.
    A value that is neither a Tensor nor a PackedTensor is state of the model's own, which no file holds.
    """
    state: dict[str, Any] = model.state_dict(keep_vars=True)
    for feature in FEATURES:
        for name in feature.unsaved(model):
            del state[name]
    identity = {name: id(value) for name, value in state.items()}
    for path, layer in described_layers(model).items():
        if isinstance(layer, PackedLayer):
            for name in PACKED_STATE:
                state.pop(join(path, name), None)
            name = join(path, "weight")
            state[name], identity[name] = layer.packed_weight, id(layer.weight_codes)
    values: dict[str, Any] = {}
    ties: dict[str, str] = {}
    first: dict[int, str] = {}
    for name, value in state.items():
        if identity[name] in first:
            ties[name] = first[identity[name]]
        else:
            first[identity[name]] = name
            values[name] = value.detach() if isinstance(value, Tensor) else value
    return values, ties
