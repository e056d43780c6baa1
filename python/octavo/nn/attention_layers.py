"""``nn.MultiheadAttention`` of torch as layers: ``q_proj``, ``k_proj``, ``v_proj`` and ``out_proj``.

With float layers the outputs are those of torch's own code, outside its fast path, up to the order in which the product
of one matrix for queries, keys and values is summed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from octavo.nn.rewriting import Origin, Rewriting, bare_copy, linear_of, register_rewriting

_PROJECTIONS = ("q_proj", "k_proj", "v_proj")


class AttentionLayers(nn.Module):
    """``nn.MultiheadAttention`` made of linear layers; options and their attributes are those of torch."""

    embed_dim: int
    num_heads: int
    head_dim: int
    dropout: float
    batch_first: bool
    add_zero_attn: bool
    in_proj_weight: None = None  # the fast path of nn.TransformerEncoderLayer looks for these
    in_proj_bias: None = None
    _qkv_same_embed_dim = False

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output, and the weights of attention where they are asked for.

        Args:
            query: ``[T, B, E]``, ``[B, T, E]`` with ``batch_first``, or ``[T, E]``.
            key: as ``query``, with a length of its own.
            value: as ``key``.
            key_padding_mask: ``[B, S]``, True or minus infinity where a key is hidden.
            need_weights: whether weights are returned.
            attn_mask: ``[T, S]`` or ``[B * heads, T, S]``.
            average_attn_weights: return the mean over heads.
            is_causal: a hint that ``attn_mask`` is causal.

        Returns:
            Output as ``query`` is laid out; weights ``[B, T, S]``, with heads ``[B, heads, T, S]``, or None.

        Raises:
            RuntimeError: for ``is_causal`` without a mask, and masks of other shapes.
        """
        batched, turned = query.dim() == 3, self.batch_first and query.dim() == 3
        axis = 0 if turned else 1
        q, k, v = (
            self._heads(self._modules[name], x, batched, axis)
            for name, x in zip(_PROJECTIONS, (query, key, value), strict=True)
        )  # B, heads, length, head
        padding = key_padding_mask if key_padding_mask is None or batched else key_padding_mask[None]
        mask, is_causal = self._mask(q, k, padding, attn_mask, is_causal, need_weights)
        k, v, mask = self._with_more(k, v, mask)
        dropout = self.dropout if self.training else 0.0
        y, weights = _attend_with_weights(q, k, v, mask, dropout) if need_weights else (
            functional.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal), None
        )  # fmt: skip
        y = self.get_submodule("out_proj")(y.permute(2, 0, 1, 3).flatten(2))  # T, B, E
        y = y.squeeze(1) if not batched else y.transpose(0, 1) if turned else y
        if weights is not None:
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights if batched else weights.squeeze(0)
        return y, weights

    def _heads(self, layer: Any, x: Tensor, batched: bool, axis: int) -> Tensor:
        """Project ``x``; return ``[B, heads, length, head]``."""
        y: Tensor = layer(x)
        y = y if batched else y.unsqueeze(1)
        y = y if axis == 0 else y.transpose(0, 1)
        return y.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def _mask(
        self, q: Tensor, k: Tensor, padding: Tensor | None, mask: Tensor | None, is_causal: bool, need_weights: bool
    ) -> tuple[Tensor | None, bool]:
        """Return one mask that is added to scores, ``[1 or B, 1 or heads, 1 or T, S]``, and whether the hint counts."""
        batch, heads, length, _ = q.shape
        if is_causal and mask is None:
            raise RuntimeError("is_causal is a hint about attn_mask, and there is none")
        if is_causal and padding is None and not need_weights:
            return None, True
        added = _added(mask, q.dtype)
        if added is not None:
            shapes = (length, k.shape[2]), (batch * heads, length, k.shape[2])
            if tuple(added.shape) not in shapes:
                raise RuntimeError(
                    f"attn_mask has shape {tuple(added.shape)}; accepted are {shapes[0]} and {shapes[1]}"
                )
            added = added[None, None] if added.dim() == 2 else added.unflatten(0, (batch, heads))
        hidden = _added(padding, q.dtype)
        if hidden is not None:
            if tuple(hidden.shape) != (batch, k.shape[2]):
                raise RuntimeError(
                    f"key_padding_mask has shape {tuple(hidden.shape)}; accepted is {(batch, k.shape[2])}"
                )
            hidden = hidden[:, None, None]
            return hidden if added is None else added + hidden, False
        return added, is_causal and added is not None and not need_weights

    def _with_more(self, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Add the key and value that the module has itself, and those of zeros."""
        batch, heads, _, size = k.shape
        key, value = (getattr(self, name, None) for name in ("bias_k", "bias_v"))
        if key is not None and value is not None:
            k, v = (
                torch.cat([old, new.view(1, heads, 1, size).expand(batch, -1, -1, -1)], 2)
                for old, new in ((k, key), (v, value))
            )
            mask = None if mask is None else functional.pad(mask, (0, 1))
        if self.add_zero_attn:
            zeros = k.new_zeros(batch, heads, 1, size)
            k, v = torch.cat([k, zeros], 2), torch.cat([v, zeros], 2)
            mask = None if mask is None else functional.pad(mask, (0, 1))
        return k, v, mask


def _added(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return a mask as numbers that are added: minus infinity where a mask of truth values is True."""
    if mask is None or mask.is_floating_point():
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.bool(), float("-inf"))


def _attend_with_weights(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> tuple[Tensor, Tensor]:
    batch, heads, _, size = q.shape
    scaled, keys, values = (x.flatten(0, 1) for x in (q * math.sqrt(1.0 / float(size)), k, v))
    if mask is None:
        scores = torch.bmm(scaled, keys.transpose(-2, -1))
    else:
        whole = mask.expand(batch, heads, -1, -1).flatten(0, 1)
        scores = torch.baddbmm(whole, scaled, keys.transpose(-2, -1))
    weights = functional.dropout(scores.softmax(-1), dropout) if dropout else scores.softmax(-1)
    shape = (batch, heads)
    return torch.bmm(weights, values).unflatten(0, shape), weights.unflatten(0, shape)


def _fits(module: nn.Module) -> bool:
    if type(module) is not nn.MultiheadAttention or "forward" in vars(module):
        return False
    plain = list(module._modules) == ["out_proj"]
    names = {"in_proj_weight", "in_proj_bias", "bias_k", "bias_v", *(f"{name}_weight" for name in _PROJECTIONS)}
    known = {name for name, value in module._parameters.items() if value is not None} <= names
    return plain and known and type(module.out_proj).forward is nn.Linear.forward


def _origins(module: Any) -> dict[str, Origin]:
    size, origins = module.embed_dim, {}
    weights = tuple(f"{name}.weight" for name in _PROJECTIONS)
    if module.in_proj_weight is not None:
        origins["in_proj_weight"] = Origin((3 * size, size), weights, (size, size))
    else:
        for name in _PROJECTIONS:
            shape = tuple(module.get_parameter(f"{name}_weight").shape)
            origins[f"{name}_weight"] = Origin(shape, (f"{name}.weight",), shape)
    if module.in_proj_bias is not None:
        origins["in_proj_bias"] = Origin((3 * size,), tuple(f"{name}.bias" for name in _PROJECTIONS), (size,))
    return origins


def _build(module: Any, parts: Mapping[str, nn.Parameter]) -> nn.Module:
    gone = (*module._parameters.keys() - {"bias_k", "bias_v"}, "out_proj")
    new: AttentionLayers = bare_copy(module, AttentionLayers, gone)
    vars(new).pop("_qkv_same_embed_dim", None)
    for name in _PROJECTIONS:
        new.add_module(name, linear_of(parts[f"{name}.weight"], parts.get(f"{name}.bias")).train(module.training))
    new.add_module("out_proj", bare_copy(module.out_proj, nn.Linear))  # its own: torch's module reads it past the layer
    return new


register_rewriting(Rewriting("attention", _fits, _origins, _build))
