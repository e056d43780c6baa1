"""Attention that knows positions by distances: a number is added to the score of every distance back."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from octavo.lab.language.gpt.attention_mixer import Attention, AttentionMixer
from octavo.lab.language.gpt.mixing_context import MixingContext
from octavo.lab.language.techniques import choice, register, whole


@dataclass(frozen=True, kw_only=True)
class BiasedAttention(Attention):
    """:class:`Attention` whose scores get a bias for the distance; nothing is turned unless ``rotary`` says so.

    ``distance``: ``alibi``, a fixed slope a head, ``2 ** (-8 h / heads)`` for head h from 1 on (Press et al. 2022), or
    ``buckets``, a learned number a head and bucket of distances: half of the ``buckets`` hold one distance each, the
    others grow geometrically up to ``farthest`` (Raffel et al. 2020). The other fields are those of :class:`Attention`.
    """

    rotary: str = "none"
    distance: str = "alibi"
    buckets: int = 32
    farthest: int = 128

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        choice(self, "distance", ("alibi", "buckets"))
        whole(self, "buckets", least=2, most=4096)
        whole(self, "farthest", least=self.buckets)


@register(
    "mixer",
    "biased_attention",
    BiasedAttention,
    examples=(
        BiasedAttention(heads=4),
        BiasedAttention(heads=4, kv_heads=2, window=9, distance="buckets", buckets=6, farthest=12),
    ),
    lags=(0, 1, 3, 8),
)
class BiasedAttentionMixer(AttentionMixer):
    """:class:`BiasedAttention` as a mixer. Biases are those of distances, so that any length has them."""

    attends_to_pages = False

    config: BiasedAttention
    slope_H: Tensor

    def __init__(self, config: BiasedAttention, width: int) -> None:
        """Make the projections and the biases."""
        super().__init__(config, width)
        if config.distance == "buckets":
            self.bias_HN = nn.Parameter(torch.empty(config.heads, config.buckets))
            self.rules["bias_HN"] = "zero"
        else:
            heads = torch.arange(1, config.heads + 1, dtype=torch.float32)
            self.register_buffer("slope_H", 2 ** (-8 * heads / config.heads), persistent=False)

    @property
    def masks_alike(self) -> bool:
        """Biases are added to the mask."""
        return False

    def biases(self, back_TS: Tensor) -> Tensor:
        """Return what is added to scores of keys that many positions back, ``[H, T, S]`` float32."""
        if self.config.distance == "alibi":
            return -self.slope_H[:, None, None] * back_TS
        return self.bias_HN.float()[:, bucket(back_TS, self.config.buckets, self.config.farthest)]

    def _product(self, query: Tensor, key: Tensor, value: Tensor, context: MixingContext) -> Tensor:
        places = context.positions_T
        return self._attend(query, key, value, self._mask(places, places, context, context.documents_BT))

    def _mask(self, queries_T: Tensor, keys_S: Tensor, context: MixingContext, documents_BS: Tensor | None) -> Tensor:
        seen = super()._mask(queries_T, keys_S, context, documents_BS)
        return self.biases(queries_T[:, None] - keys_S).masked_fill(~seen, -math.inf)


def bucket(back: Tensor, buckets: int, farthest: int) -> Tensor:
    """Return the bucket of distances, int64 of the same shape; 0 for what is not back at all."""
    exact = buckets // 2
    back = back.clamp_min(0)
    grown = torch.log(back.clamp_min(exact).float() / exact) / math.log(farthest / exact) * (buckets - exact)
    return torch.where(back < exact, back, (exact + grown.long()).clamp_max(buckets - 1))
