"""Attention over pooled keys and values: the own chunk position by position, finished chunks by a few summaries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import SettingError
from octavo.lab.language.gpt.attention_mixer import Attention, AttentionMixer
from octavo.lab.language.gpt.mixing_context import MixingContext
from octavo.lab.language.techniques import choice, register, whole

_NEVER = 1 << 62


@dataclass(frozen=True, kw_only=True)
class PooledAttention(Attention):
    """:class:`Attention` to the earlier positions of the own chunk, and to a memory of the finished ones.

    ``chunk``: positions of a chunk; a query sees nothing of it beyond itself. ``pooling``, how a chunk that is finished
    goes to memory: its ``mean`` or ``max`` of keys and of values; ``latents`` means, weighted by the scores that as
    many learned queries give its keys; or ``reservoir``, which keeps that many of all earlier positions, each as likely
    as any other, by a draw that depends on positions alone. Summaries stand at the middle of their chunk.
    """

    chunk: int = 32
    pooling: str = "mean"
    latents: int = 2
    reservoir: int = 64

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        for name in ("chunk", "latents", "reservoir"):
            whole(self, name, least=1)
        choice(self, "pooling", ("mean", "max", "latents", "reservoir"))
        if self.window:
            raise SettingError(f"window is {self.window}; accepted is 0: the chunk is the window")


@register(
    "mixer",
    "pooled_attention",
    PooledAttention,
    examples=(
        PooledAttention(heads=4, chunk=8),
        PooledAttention(heads=4, chunk=5, pooling="max", kv_heads=2),
        PooledAttention(heads=4, chunk=6, pooling="latents", latents=3, qk_norm=True),
        PooledAttention(heads=4, chunk=8, pooling="reservoir", reservoir=5),
    ),
    off=((PooledAttention(heads=4, chunk=1 << 20), Attention(heads=4)),),
    lags=(0, 1, 2),
)
class PooledAttentionMixer(AttentionMixer):
    """:class:`PooledAttention` as a mixer. Decoding keeps the open chunk and the memory: :meth:`rows_kept`."""

    keeps_documents = False
    reads_positions = False
    reads_on = False
    config: PooledAttention

    def __init__(self, config: PooledAttention, width: int) -> None:
        """Make the projections, and the learned queries of latents."""
        super().__init__(config, width)
        if config.pooling == "latents":
            self.latent_KMd = nn.Parameter(torch.empty(self.kv_heads, config.latents, self.size))
            self.rules["latent_KMd"] = "matrix"

    def rows_kept(self, length: int) -> int:
        """Return the keys of a head that decoding holds after ``length`` positions, the open chunk's included."""
        finished, open_ = divmod(length, self.config.chunk)
        if self.config.pooling == "reservoir":
            return min(self.config.reservoir, finished * self.config.chunk) + open_
        return finished * (self.config.latents if self.config.pooling == "latents" else 1) + open_

    def forward(self, x_BTD: Tensor, context: MixingContext) -> Tensor:
        """Return the mixed vectors ``[B, T, D]``."""
        length, chunk = x_BTD.shape[1], self.config.chunk
        if length <= chunk:  # nothing is finished: plain attention
            return super().forward(x_BTD, replace(context, window=None))
        query, key, value = self._projected(x_BTD, context)
        places_T = context.positions_T
        number_T, first = (places_T - places_T[0]) // chunk, places_T[0]
        near = self._turned(key, places_T)
        seen_TT = (number_T[:, None] == number_T) & (places_T[:, None] >= places_T)
        if self.config.pooling == "reservoir":
            last_S = torch.tensor(kept_until(length, chunk, self.config.reservoir), device=x_BTD.device)
            mask = seen_TT | ((number_T[:, None] > number_T) & (number_T[:, None] <= last_S))
        else:
            finished = (length - 1) // chunk  # the last chunk, whole or not, is seen by itself alone
            cut = [part[:, :, : finished * chunk].unflatten(2, (finished, chunk)) for part in (key, value)]
            far_key, far_value = self._summaries(*cut)
            each = far_key.shape[3]
            far_key = self._turned(far_key.flatten(2, 3), first + self._middles(finished, each, x_BTD.device))
            near, value = torch.cat([far_key, near], 2), torch.cat([far_value.flatten(2, 3), value], 2)
            number_S = torch.arange(finished, device=x_BTD.device).repeat_interleave(each)
            mask = torch.cat([number_T[:, None] > number_S, seen_TT], 1)
        return self._joined(self._attend(self._turned(query, places_T), near, value, mask), x_BTD)

    def first_state(self, batch: int, device: torch.device) -> Any:
        """Return an open chunk without positions, and an empty memory."""
        none = torch.empty(batch, self.kv_heads, 0, self.size, device=device, dtype=self.query.weight.dtype)
        return {"key": none, "value": none, "far_key": none, "far_value": none}

    def step(self, x_BD: Tensor, state: Any, context: MixingContext) -> tuple[Tensor, Any]:
        """Return the output of the next position, and the state; a chunk that it finishes goes to memory."""
        x_B1D, here = x_BD[:, None], context.positions_T
        query, key, value = self._projected(x_B1D, context)
        key, value = torch.cat([state["key"], key], 2), torch.cat([state["value"], value], 2)
        length = key.shape[2]
        places = here[-1] - length + 1 + torch.arange(length, device=x_BD.device)
        near = self._turned(key, places)
        keys, values = torch.cat([state["far_key"], near], 2), torch.cat([state["far_value"], value], 2)
        mask = torch.ones(1, keys.shape[2], dtype=torch.bool, device=x_BD.device)
        mixed = self._attend(self._turned(query, here), keys, values, mask)
        state = {"key": key, "value": value, "far_key": state["far_key"], "far_value": state["far_value"]}
        if length == self.config.chunk:
            state |= self._remembered(state, near, places)
        return self._joined(mixed, x_B1D)[:, 0], state

    def _remembered(self, state: Any, near_BKCd: Tensor, places_C: Tensor) -> Any:
        """Return the memory with the open chunk, and an open chunk without positions."""
        key, value, far_key, far_value = (state[name] for name in ("key", "value", "far_key", "far_value"))
        opened = {"key": key[:, :, :0], "value": value[:, :, :0]}
        if self.config.pooling != "reservoir":
            more_key, more_value = (part.flatten(2, 3) for part in self._summaries(key[:, :, None], value[:, :, None]))
            middle = self._middles(1, more_key.shape[2], key.device) + places_C[0]
            far_key = torch.cat([far_key, self._turned(more_key, middle)], 2)
            return opened | {"far_key": far_key, "far_value": torch.cat([far_value, more_value], 2)}
        far_key, far_value = far_key.clone(), far_value.clone()
        for at, place in enumerate(places_C.tolist()):
            slot = drawn_slot(place, self.config.reservoir)
            taken = near_BKCd[:, :, at : at + 1], value[:, :, at : at + 1]
            if slot == far_key.shape[2]:
                far_key, far_value = (torch.cat(pair, 2) for pair in zip((far_key, far_value), taken, strict=True))
            elif slot is not None:
                far_key[:, :, slot], far_value[:, :, slot] = (part[:, :, 0] for part in taken)
        return opened | {"far_key": far_key, "far_value": far_value}

    def _summaries(self, key_BKnCd: Tensor, value_BKnCd: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values of every chunk's summaries, ``[B, K, chunks, summaries, d]``, not turned."""
        if self.config.pooling == "mean":
            return key_BKnCd.mean(-2, keepdim=True), value_BKnCd.mean(-2, keepdim=True)
        if self.config.pooling == "max":
            return key_BKnCd.amax(-2, keepdim=True), value_BKnCd.amax(-2, keepdim=True)
        scores = torch.einsum("bkncd,kmd->bknmc", key_BKnCd, self.latent_KMd.to(key_BKnCd.dtype)) * self.size**-0.5
        shares = scores.float().softmax(-1).to(value_BKnCd.dtype)
        return shares @ key_BKnCd, shares @ value_BKnCd

    def _middles(self, chunks: int, each: int, device: torch.device) -> Tensor:
        """Return the positions of summaries, counted from the first chunk's begin."""
        starts = torch.arange(chunks, device=device) * self.config.chunk
        return (starts + (self.config.chunk - 1) / 2).repeat_interleave(each)


def drawn_slot(position: int, size: int) -> int | None:
    """Return the slot of a reservoir that a position takes, None for none: the draw of Vitter's algorithm R.

    The first ``size`` positions take a slot each; a later one takes any with probability ``size / (position + 1)``.
    """
    if position < size:
        return position
    mixed = (position + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF  # the finalizer of splitmix64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    slot = (mixed ^ mixed >> 31) % (position + 1)
    return slot if slot < size else None


@lru_cache(maxsize=8)
def kept_until(length: int, chunk: int, size: int) -> tuple[int, ...]:
    """Return the number of the last chunk whose queries find each position in the reservoir; the own one for none.

    A chunk's positions are offered when it is finished, so that its own queries find what was there before.
    """
    last, holds = [], dict[int, int]()
    for position in range(length):
        number = position // chunk
        slot = drawn_slot(position, size)
        last.append(number if slot is None else _NEVER)
        if slot is not None:
            if slot in holds:
                last[holds[slot]] = number
            holds[slot] = position
    return tuple(last)
