"""Caches of keys and values: slabs for the longest target, filled from the left; nothing looks at unfilled slots."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from octavo.lab.polynomials.seq2seq.decoder_state import State, Tensors


def slabs(like_B: Tensor, heads: Sequence[int], width: int, max_length: int) -> Tensors:
    """Return empty keys and values ``[B, heads, max_length, width]`` of each layer, of the dtype of ``like_B``."""
    rows = like_B.shape[0]
    return {
        f"{kind}{layer}": like_B.new_zeros((rows, count, max_length, width))
        for kind in ("keys", "values")
        for layer, count in enumerate(heads)
    }


def append(state: State, layer: int, keys_BH1D: Tensor, values_BH1D: Tensor) -> tuple[Tensor, Tensor]:
    """Write keys and values of the token at ``state.length`` and return all that are filled, that one included."""
    filled = []
    for kind, new in (("keys", keys_BH1D), ("values", values_BH1D)):
        slab = state.cache[f"{kind}{layer}"]
        slab[:, :, state.length] = new[:, :, 0]
        filled.append(slab[:, :, : state.length + 1])
    return filled[0], filled[1]
