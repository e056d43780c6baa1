"""Multi-head latent attention: keys and values are made from one short vector a position; that alone is cached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from octavo.errors import SettingError
from octavo.lab.language.gpt.attention_masks import causal_product, step_product, visible
from octavo.lab.language.gpt.growing_rows import GrowingRows
from octavo.lab.language.gpt.mixing_context import MixingContext, smaller
from octavo.lab.language.gpt.rotary_positions import apply_rotary, frequencies
from octavo.lab.language.techniques import number, register, whole
from octavo.nn import rounded_weights

EPS = 1e-6


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """Latent attention of ``heads`` heads with ``head_size`` values each, and ``rotary_size`` more for positions.

    ``rank``: of the latent ``c = norm(down x)``, from which keys and values are widened. One rotary key, made from x,
    serves all heads. ``window``: positions that are seen, 0 for all. Source: DeepSeek-V2, section 2.1.
    """

    heads: int = 12
    head_size: int = 64
    rotary_size: int = 32
    rank: int = 128
    base: float = 10000.0
    window: int = 0

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("heads", "head_size", "rank"):
            whole(self, name, least=1)
        for name in ("rotary_size", "window"):
            whole(self, name, least=0)
        number(self, "base", least=1, most=1e12)
        if self.rotary_size % 2:
            raise SettingError(f"rotary_size is {self.rotary_size}; accepted are even numbers: values turn in pairs")


@register(
    "mixer",
    "latent_attention",
    LatentAttention,
    examples=(
        LatentAttention(heads=2, head_size=8, rotary_size=4, rank=12),
        LatentAttention(heads=4, head_size=6, rotary_size=0, rank=5, window=6),
    ),
    lags=(0, 1, 5),
)
class LatentMixer(nn.Module):
    """:class:`LatentAttention` as a mixer. Its cache holds ``rank + rotary_size`` values a position."""

    keeps_documents = True
    reads_positions = True
    reads_on = True
    takes_values = False
    attends_to_pages = True

    def __init__(self, config: LatentAttention, width: int) -> None:
        """Make the projections."""
        super().__init__()
        self.config = config
        heads, size, turns = config.heads, config.head_size, config.rotary_size
        self.query = nn.Linear(width, heads * (size + turns), bias=False)
        self.latent = nn.Linear(width, config.rank, bias=False)
        self.rotary_key = nn.Linear(width, turns, bias=False) if turns else None
        self.widen_key = nn.Linear(config.rank, heads * size, bias=False)
        self.widen_value = nn.Linear(config.rank, heads * size, bias=False)
        self.out = nn.Linear(heads * size, width, bias=False)
        matrices = ("query", "latent", "rotary_key", "widen_key", "widen_value")
        self.rules = {f"{name}.weight": "matrix" for name in matrices} | {"out.weight": "output"}
        self.scale = (size + turns) ** -0.5

    @property
    def cached_values(self) -> int:
        """Numbers that decoding keeps a position."""
        return self.config.rank + self.config.rotary_size

    def forward(self, x_BTD: Tensor, context: MixingContext) -> Tensor:
        """Return the mixed vectors ``[B, T, D]``, in the naive form."""
        query_BHTd, turned_BHTp = self._queries(x_BTD, context)
        mixed_BHTd = self.naive(query_BHTd, turned_BHTp, self._cached(x_BTD, context), context)
        return self.out(mixed_BHTd.transpose(1, 2).flatten(2))

    def naive(
        self, query_BHTd: Tensor, turned_BHTp: Tensor, cached_BSc: Tensor, context: MixingContext | None
    ) -> Tensor:
        """Return attention, ``[B, H, T, d]``, by the keys and values of all heads, which are made from what is cached.

        ``cached_BSc``: latents and turned keys beside each other. ``context``: of a whole sequence, as many queries as
        cached rows; None: queries see all rows.
        """
        latent_BSr, rotary_BSp = cached_BSc.split([self.config.rank, self.config.rotary_size], -1)
        heads = self.config.heads
        key = self.widen_key(latent_BSr).unflatten(-1, (heads, -1)).transpose(1, 2)
        value = self.widen_value(latent_BSr).unflatten(-1, (heads, -1)).transpose(1, 2)
        # Fused kernels take keys and values of one size alone; without one all scores would be in memory at once.
        value = functional.pad(value, (0, self.config.rotary_size))
        key = torch.cat([key, rotary_BSp[:, None].expand(-1, heads, -1, -1).to(key.dtype)], -1)
        query = torch.cat([query_BHTd, turned_BHTp], -1)
        if context is None:
            mixed = functional.scaled_dot_product_attention(query, key, value, scale=self.scale)
        else:
            window = smaller(self.config.window or None, context.window)
            mixed = causal_product(query, key, value, context, window=window, scale=self.scale)
        return mixed[..., : self.config.head_size]

    def absorbed(
        self, query_BHTd: Tensor, turned_BHTp: Tensor, cached_BSc: Tensor, seen: Tensor | None, *, causal: bool = False
    ) -> Tensor:
        """Return attention, ``[B, H, T, d]``, on what is cached as it is: no key or value of a head is ever made.

        A query is widened to the latents' space, and the mixed latent narrowed to the head's values. ``seen``: mask of
        rows, None for all; ``causal``: of a whole sequence instead.
        """

        def product(query_BHTc: Tensor) -> Tensor:
            # Rows are keys and values at once, so that they are read once; of the mixture only latents are used.
            rows_B1Sc = cached_BSc[:, None].to(query_BHTc.dtype)
            if query_BHTc.shape[2] == 1:
                return step_product(query_BHTc, rows_B1Sc, rows_B1Sc, seen, scale=self.scale)
            return functional.scaled_dot_product_attention(
                query_BHTc, rows_B1Sc, rows_B1Sc, attn_mask=seen, is_causal=causal, scale=self.scale, enable_gqa=True
            )

        return self.absorbed_into(query_BHTd, turned_BHTp, product)

    def absorbed_into(self, query_BHTd: Tensor, turned_BHTp: Tensor, product: Callable[[Tensor], Tensor]) -> Tensor:
        """Return attention, ``[B, H, T, d]``, by a product of queries ``[B, H, T, rank + rotary]`` and cached rows.

        ``product`` returns the mixed rows, of which the first ``rank`` numbers are used.
        """
        heads, rank = self.config.heads, self.config.rank
        with rounded_weights():  # of quantized and packed layers what they multiply
            key_Hdr, value_Hdr = (part.weight.view(heads, -1, rank) for part in (self.widen_key, self.widen_value))
        mixed = product(torch.cat([torch.einsum("bhtd,hdr->bhtr", query_BHTd, key_Hdr), turned_BHTp], -1))
        return torch.einsum("bhtr,hdr->bhtd", mixed[..., :rank], value_Hdr)

    def first_state(self, batch: int, device: torch.device) -> Any:
        """Return an empty cache."""
        documents = torch.empty(batch, 0, dtype=torch.int64, device=device)
        cached = torch.empty(batch, 0, self.cached_values, device=device)
        return {"cached": GrowingRows(cached, 1), "documents": GrowingRows(documents, 1)}

    def step(self, x_BD: Tensor, state: Any, context: MixingContext) -> tuple[Tensor, Any]:
        """Return the output of the next position and the cache, in the absorbed form."""
        x_B1D = x_BD[:, None]
        query_BH1d, turned_BH1p = self._queries(x_B1D, context)
        window = smaller(self.config.window or None, context.window)
        if (pages := state.get("pages")) is not None:
            row_B11c = self._cached(x_B1D, context)[:, None]
            mixed_BH1d = self.absorbed_into(
                query_BH1d, turned_BH1p,
                lambda query: pages.attend(query[:, :, 0], row_B11c, None, scale=self.scale, window=window)[:, :, None],
            )  # fmt: skip
            return self.out(mixed_BH1d.transpose(1, 2).flatten(2))[:, 0], state
        state = {**state, "cached": state["cached"].followed_by(self._cached(x_B1D, context))}
        told = context.documents_BT
        if told is not None:
            state["documents"] = state["documents"].followed_by(told)
        cached_BSc = state["cached"].rows
        length = cached_BSc.shape[1]
        places = context.positions_T[-1] - length + 1 + torch.arange(length, device=x_BD.device)
        seen = visible(
            context.positions_T, places, window=window, query_documents_BT=told,
            key_documents_BS=None if told is None else state["documents"].rows,
        )  # fmt: skip
        mixed_BH1d = self.absorbed(query_BH1d, turned_BH1p, cached_BSc, seen)
        return self.out(mixed_BH1d.transpose(1, 2).flatten(2))[:, 0], state

    def read_on(self, x_BSD: Tensor, rows: Any, context: MixingContext, most: int, back: int) -> tuple[Tensor, Any]:
        """Return the output of the next positions, ``[B, S, D]``, and the rows of the last ``most`` positions.

        As attention of all heads does; kept are latents and turned keys beside each other.
        """
        query_BHSd, turned_BHSp = self._queries(x_BSD, context)
        cached, numbers = self._cached(x_BSD, context), context.documents_BT
        if rows is not None:
            before = rows["cached"]
            if back and self.rotary_key is not None:
                latent, key = before.split([self.config.rank, self.config.rotary_size], -1)
                moved = MixingContext(context.positions_T.new_tensor([-back]))
                before = torch.cat([latent, self._turned(key[:, None], moved)[:, 0]], -1)
            cached = torch.cat([before, cached], 1)
            numbers = None if numbers is None else torch.cat([rows["documents"], numbers], 1)
        seen = context.seen_TS
        if seen is None or self.config.window:
            order_K = torch.arange(cached.shape[1], device=x_BSD.device)
            seen = visible(
                order_K[-x_BSD.shape[1] :], order_K, window=smaller(self.config.window or None, context.window),
                query_documents_BT=context.documents_BT, key_documents_BS=numbers,
            )  # fmt: skip
        mixed_BHSd = self.naive(query_BHSd, turned_BHSp, cached, replace(context, seen_TS=seen))
        begin = max(0, cached.shape[1] - most)
        after = {"cached": cached[:, begin:], "documents": None if numbers is None else numbers[:, begin:]}
        return self.out(mixed_BHSd.transpose(1, 2).flatten(2)), after

    def _queries(self, x_BTD: Tensor, context: MixingContext) -> tuple[Tensor, Tensor]:
        """Return the parts of queries without and with positions, ``[B, H, T, .]``."""
        size = self.config.head_size
        query = self.query(x_BTD).unflatten(-1, (self.config.heads, -1)).transpose(1, 2)
        return query[..., :size], self._turned(query[..., size:], context)

    def _cached(self, x_BTD: Tensor, context: MixingContext) -> Tensor:
        """Return what decoding keeps: the normed latent, and beside it the turned key, which is not normed."""
        latent = self.latent(x_BTD)
        latent = functional.rms_norm(latent, (self.config.rank,), eps=EPS).to(latent.dtype)
        if self.rotary_key is None:
            return latent
        return torch.cat([latent, self._turned(self.rotary_key(x_BTD)[:, None], context)[:, 0]], -1)

    def _turned(self, part_BHTp: Tensor, context: MixingContext) -> Tensor:
        if not self.config.rotary_size:
            return part_BHTp
        turns = frequencies(self.config.rotary_size, "full", self.config.base, part_BHTp.device)
        return apply_rotary(part_BHTp, context.positions_T, turns)
