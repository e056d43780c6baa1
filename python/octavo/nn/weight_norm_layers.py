"""Layers whose weight torch normalizes, as layers that hold the direction and normalize it themselves.

``torch.nn.utils.parametrizations.weight_norm`` computes a weight from a direction and lengths at each read. Here the
direction is the ``weight`` of a layer, which takes a format, and the lengths are its ``lengths``; its ``forward``
normalizes the rounded or decoded direction. Rounding changes no length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from octavo.nn.conv_transposed import convolve_transposed
from octavo.nn.rewriting import Origin, Rewriting, bare_copy, register_rewriting

_TENSOR = "weight"
_DIRECTION, _LENGTHS = (f"parametrizations.{_TENSOR}.original{number}" for number in (1, 0))


class NormedLinear(nn.Linear):
    """``nn.Linear`` with a normalized weight."""

    def forward(self, input: Tensor) -> Tensor:
        """Return ``x W^T + b``."""
        return functional.linear(input, normed(self), self.bias)


class NormedConv1d(nn.Conv1d):
    """``nn.Conv1d`` with a normalized weight."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution."""
        return self._conv_forward(input, normed(self), self.bias)


class NormedConv2d(nn.Conv2d):
    """``nn.Conv2d`` with a normalized weight."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution."""
        return self._conv_forward(input, normed(self), self.bias)


class NormedConvTranspose1d(nn.ConvTranspose1d):
    """``nn.ConvTranspose1d`` with a normalized weight."""

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Return the transposed convolution."""
        return convolve_transposed(self, input, normed(self), self.bias, output_size)


class NormedLayer(nn.Module):
    """Stands in for a layer with weight normalization: ``layer`` computes it. Attributes are those of that layer."""

    layer: nn.Module

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return what the layer does."""
        y: Tensor = self.layer(*args, **kwargs)
        return y


_CLASSES: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: NormedLinear,
    nn.Conv1d: NormedConv1d,
    nn.Conv2d: NormedConv2d,
    nn.ConvTranspose1d: NormedConvTranspose1d,
}


def normed(layer: Any) -> Tensor:
    """Return the weight of a layer: its direction, as it is rounded or decoded here, of the layer's lengths."""
    direction: Tensor = layer.weight
    return torch._weight_norm(direction, layer.lengths, layer.norm_dim)


def _fits(module: nn.Module) -> bool:
    if list(module._modules) != ["parametrizations"] or "forward" in vars(module):
        return False
    steps = getattr(module.parametrizations, _TENSOR, None)
    if not parametrize.is_parametrized(module) or list(cast("Any", module.parametrizations)) != [_TENSOR]:
        return False
    is_norm = steps is not None and [type(step).__name__ for step in steps] == ["_WeightNorm"]
    return is_norm and parametrize.type_before_parametrizations(module) in _CLASSES


def _origins(module: nn.Module) -> dict[str, Origin]:
    names = {_DIRECTION: "layer.weight", _LENGTHS: "layer.lengths"}
    if module._parameters.get("bias") is not None:
        names["bias"] = "layer.bias"
    shapes = {name: tuple(module.get_parameter(name).shape) for name in names}
    return {name: Origin(shapes[name], (part,), shapes[name]) for name, part in names.items()}


def _build(module: Any, parts: Mapping[str, nn.Parameter]) -> nn.Module:
    base = parametrize.type_before_parametrizations(module)
    layer = bare_copy(module, _CLASSES[base], ("parametrizations", "bias"))
    layer.norm_dim = module.parametrizations[_TENSOR][0].dim
    layer.weight, layer.lengths = parts["layer.weight"], parts["layer.lengths"]
    layer.register_parameter("bias", parts.get("layer.bias"))
    new: NormedLayer = bare_copy(module, NormedLayer, ("parametrizations", "bias"))
    new._load_state_dict_pre_hooks.clear()  # torch's own, a local function that no pickle holds
    for name in ("_forward_hooks", "_forward_pre_hooks", "_load_state_dict_pre_hooks"):
        getattr(layer, name).clear()  # hooks of the module stay with what stands in for it
    new.layer = layer
    return new


register_rewriting(Rewriting("weight normalization", _fits, _origins, _build))
