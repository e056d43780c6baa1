"""Noise and savings of memory that a model has while it trains, and neither in evaluation nor in decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from octavo.lab.language.techniques import choice, number, whole


@dataclass(frozen=True, kw_only=True)
class InTraining:
    """What blocks do in training alone.

    ``dropout``: chance that a number which a mixer or a feed-forward network writes is 0. ``layer_drop``: chance that a
    block is left out of a forward pass (LayerDrop); with ``layer_drop_grows`` that of the last block, others in a line
    from 0 (stochastic depth). Where a block stays, what it writes is divided by its chance to stay.
    ``positions_passed_over``: share of the positions that all blocks but the first and the last pass over, drawn anew
    for each (random layer-wise token dropping). ``recomputed``: first blocks whose activations are computed again in
    the backward pass instead of kept. ``fused``: residual, drop-out and norm inside a block as one operation, which
    has a mask of its own (:mod:`octavo.lab.language.gpt.residual_norm`).
    ``autocast_stream``: under autocast the residual stream has its dtype, which is half of the bytes, not the table's.

    Draws come from torch's global generator. At 0 everything is the plain model, bit for bit.
    """

    dropout: float = 0.0
    layer_drop: float = 0.0
    layer_drop_grows: bool = False
    positions_passed_over: float = 0.0
    recomputed: int = 0
    fused: bool = False
    autocast_stream: bool = False

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("dropout", "layer_drop", "positions_passed_over"):
            number(self, name, least=0, most=0.95)
        choice(self, "layer_drop_grows", (True, False))
        whole(self, "recomputed", least=0)
        choice(self, "fused", (True, False))
        choice(self, "autocast_stream", (True, False))

    def layer_rate(self, layer: int, layers: int) -> float:
        """Return the chance that block ``layer``, counted from 0, is left out."""
        return self.layer_drop * (layer + 1) / layers if self.layer_drop_grows else self.layer_drop


class BlockDraw(NamedTuple):
    """What is drawn for a block in one pass. ``factor``: of what it writes; the block is left out where it is 0.0.

    ``positions_K``: those that it sees, ascending, int64; None for all.
    """

    factor: float = 1.0
    positions_K: Tensor | None = None


PLAIN = BlockDraw()


def drawn(options: InTraining, layers: int, length: int, strength: float, device: torch.device) -> list[BlockDraw]:
    """Return the draws of every block for a pass over ``length`` positions, rates multiplied with ``strength``.

    Nothing is drawn for rates of 0.
    """
    factors = [1.0] * layers
    if options.layer_drop * strength > 0:
        rates = [options.layer_rate(layer, layers) * strength for layer in range(layers)]
        pairs = zip(torch.rand(layers).tolist(), rates, strict=True)
        factors = [1 / (1 - rate) if draw >= rate else 0.0 for draw, rate in pairs]
    seen = length - round(options.positions_passed_over * strength * length)
    found = []
    for layer, factor in enumerate(factors):
        inner = 0 < layer < layers - 1 and seen < length
        places = torch.randperm(length)[: max(seen, 1)].sort().values.to(device) if inner else None
        found.append(BlockDraw(factor, places))
    return found
