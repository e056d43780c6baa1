"""Attention of XLNet as layers: its weights ``[hidden, heads, size]`` are read by ``torch.einsum`` alone.

The module keeps its class and forward. Where that reads a weight, it finds an :class:`EinsumWeight`, of which
``torch.einsum`` asks the product, and that calls a linear layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from octavo.nn.rewriting import Origin, Rewriting, bare_copy, linear_of, register_rewriting

_CLASS = "transformers.models.xlnet.modeling_xlnet.XLNetRelativeAttention"
_INWARD, _OUTWARD = ("q", "k", "v", "r"), ("o",)


class EinsumLinear(nn.Linear):
    """``x W^T`` as ``torch.einsum`` computes it with a weight ``[hidden, heads, size]``, to the same bits.

    ``is_inward``: from hidden to all heads, else from all heads to hidden.
    """

    is_plain_product = True
    is_inward: bool
    heads: int

    def forward(self, input: Tensor) -> Tensor:
        """Return ``[i, b, heads * size]`` of ``[i, b, hidden]``, or the reverse."""
        if self.is_inward:
            weight = self.weight.T.view(self.in_features, self.heads, -1)
            return torch.einsum("ibh,hnd->ibnd", input, weight).flatten(-2)
        weight = self.weight.view(self.out_features, self.heads, -1)
        return torch.einsum("ibnd,hnd->ibh", input.view(*input.shape[:2], self.heads, -1), weight)


class EinsumWeight:
    """A weight ``[hidden, heads, size]`` in the place of a parameter, whose products a linear layer computes."""

    def __init__(self, owner: nn.Module, layer: str, shape: torch.Size) -> None:
        """Stand for the layer of that name in ``owner``, whichever it is when a product is asked for."""
        self.owner, self.layer, self.shape = owner, layer, shape

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of inputs: that of the layer."""
        layer: Any = self.owner._modules[self.layer]
        weight = layer._parameters.get("weight")
        dtype: torch.dtype = layer.dtype if weight is None else weight.dtype
        return dtype

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Compute ``torch.einsum(equation, x, weight)`` of the two equations that attention has."""
        if func is not torch.einsum or len(args) != 3 or not isinstance(args[2], EinsumWeight):
            return NotImplemented
        equation, x, weight = args
        layer: Any = weight.owner._modules[weight.layer]
        _, heads, size = weight.shape
        if equation == "ibh,hnd->ibnd":
            y: Tensor = layer(x)
            return y.view(*y.shape[:-1], heads, size)
        if equation == "ibnd,hnd->ibh":
            return layer(x.flatten(-2))
        return NotImplemented


def _fits(module: nn.Module) -> bool:
    kind = type(module)
    names = (*_INWARD, *_OUTWARD)
    return (
        f"{kind.__module__}.{kind.__qualname__}" == _CLASS
        and "forward" not in vars(module)
        and all(module._parameters.get(name) is not None for name in names)
    )


def _origins(module: nn.Module) -> dict[str, Origin]:
    origins = {}
    for name in (*_INWARD, *_OUTWARD):
        parameter = module._parameters[name]
        assert parameter is not None  # it fits
        hidden, *sizes = parameter.shape
        inner = math.prod(sizes)
        turned = name in _INWARD  # [hidden, heads * size] there, [heads * size, hidden] in the layer
        shape = (inner, hidden) if turned else (hidden, inner)
        origins[name] = Origin(tuple(parameter.shape), (f"{name}_proj.weight",), shape, turned)
    return origins


def _build(module: nn.Module, parts: Mapping[str, nn.Parameter]) -> nn.Module:
    new: nn.Module = bare_copy(module, type(module), (*_INWARD, *_OUTWARD))
    for name in (*_INWARD, *_OUTWARD):
        parameter = module._parameters[name]
        assert parameter is not None  # it fits
        layer = linear_of(parts[f"{name}_proj.weight"], cls=EinsumLinear)
        layer.is_inward, layer.heads = name in _INWARD, parameter.shape[1]
        new.add_module(f"{name}_proj", layer.train(module.training))
        vars(new)[name] = EinsumWeight(new, f"{name}_proj", parameter.shape)
    return new


register_rewriting(Rewriting("einsum attention", _fits, _origins, _build))
