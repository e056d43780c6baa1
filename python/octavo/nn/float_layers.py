"""Packed layers as float ones again, with the weights that their codes stand for."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn

from octavo.nn.conv import _PackedConv
from octavo.nn.embedding import PackedEmbedding
from octavo.nn.linear import PackedLinear
from octavo.nn.own_forward import OwnForward
from octavo.nn.packed_layer import PackedLayer

_OURS = {  # attributes of packed layers
    "format", "scale", "dtype", "what", "_text", "_rows", "_width", "_has_two_parts", "_weight_shape", "_transposed",
    "_integer", "_known",
}  # fmt: skip
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs")


def has_float_layer(layer: nn.Module) -> bool:
    """Whether :func:`float_layer` takes a layer."""
    return isinstance(layer, PackedLinear | PackedEmbedding) or is_convolution(layer)


def is_convolution(layer: nn.Module) -> bool:
    """Whether a layer is a packed convolution, not a transposed one."""
    return isinstance(layer, _PackedConv)


def float_layer(layer: PackedLayer, weight: nn.Parameter | None = None) -> nn.Module:
    """Return the float layer that a packed linear layer, convolution or embedding stands for.

    Its class, mode and hooks are those of the layer that was packed.

    ``weight``: one that another layer has, too; else the codes are decoded to float32.
    """
    if isinstance(layer, PackedEmbedding):
        sizes = layer.num_embeddings, layer.embedding_dim
        float_one: nn.Module = nn.Embedding(*sizes, padding_idx=layer.padding_idx, device="meta")
    elif isinstance(layer, PackedLinear) and layer.is_transposed:
        from transformers.pytorch_utils import Conv1D

        with torch.device("meta"):
            float_one = Conv1D(layer.out_features, layer.in_features)
    elif isinstance(layer, _PackedConv):
        geometry = {name: getattr(layer, name) for name in layer._geometry}
        float_one = layer._float(out_channels=layer._rows, bias=False, device="meta", **geometry)
    else:
        assert isinstance(layer, PackedLinear)
        float_one = nn.Linear(layer.in_features, layer.out_features, device="meta")
    if isinstance(layer, OwnForward):
        _take_own(float_one, layer)
    float_one.weight = decoded(layer) if weight is None else weight
    if not isinstance(layer, PackedEmbedding):
        bias = layer.float_bias()
        frozen = None if bias is None else nn.Parameter(bias.detach().float(), requires_grad=False)
        float_one._parameters["bias"] = frozen
    for name in _HOOKS:
        float_one.__dict__[name] = copy.copy(getattr(layer, name))
    return float_one.train(layer.training)


@torch.no_grad()
def decoded(layer: PackedLayer) -> nn.Parameter:
    """Return the weight of a layer as the float layer holds it, float32."""
    weight = layer._decoded(torch.float32)
    return nn.Parameter(weight.t().contiguous() if layer._transposed else weight, requires_grad=False)


def matrix_of(layer: nn.Module, packed: PackedLayer) -> Tensor:
    """Return the weight of a float layer as it is packed, ``[N, K]``."""
    weight = cast("Tensor", layer.weight).detach()
    return weight.t() if packed._transposed else weight.flatten(1)


def _take_own(float_one: nn.Module, layer: OwnForward) -> None:
    """Give a float layer the class whose forward the packed one has, and what that has beside weight and bias."""
    float_one.__class__ = layer.own
    attributes: Any = vars(layer)
    for name, value in attributes.items():
        if name not in vars(float_one) and name not in _OURS and not name.startswith("weight_"):
            vars(float_one)[name] = copy.copy(value)
    for registry in ("_buffers", "_modules"):
        for name, value in attributes[registry].items():
            if not name.startswith("weight_") and not name.endswith("_quantizer") and name != "bias":
                vars(float_one)[registry].setdefault(name, value)
    vars(float_one)["_non_persistent_buffers_set"] |= {
        name for name in attributes["_non_persistent_buffers_set"] if name in vars(float_one)["_buffers"]
    }
