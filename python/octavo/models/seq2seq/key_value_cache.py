"""Caches of keys and values: slabs for the longest target, filled from the left; nothing looks at unfilled slots."""

from __future__ import annotations

from torch import Tensor

from octavo.models.seq2seq.decoder_state import State, Tensors


def slabs(like_BD: Tensor, layers: int, heads: int, max_length: int) -> Tensors:
    """Return empty keys and values ``[B, heads, max_length, D / heads]`` a layer, of the dtype of ``like_BD``."""
    rows, width = like_BD.shape
    shape = (rows, heads, max_length, width // heads)
    return {f"{kind}{layer}": like_BD.new_zeros(shape) for kind in ("keys", "values") for layer in range(layers)}


def append(state: State, layer: int, keys_BH1D: Tensor, values_BH1D: Tensor) -> tuple[Tensor, Tensor]:
    """Write keys and values of the token at ``state.length`` and return all that are filled, that one included."""
    filled = []
    for kind, new in (("keys", keys_BH1D), ("values", values_BH1D)):
        slab = state.cache[f"{kind}{layer}"]
        slab[:, :, state.length] = new[:, :, 0]
        filled.append(slab[:, :, : state.length + 1])
    return filled[0], filled[1]
