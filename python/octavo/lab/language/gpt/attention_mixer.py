"""Causal self-attention: multi-head or grouped, with rotary positions, a window, and the switches of modern blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from octavo.errors import SettingError
from octavo.lab.language.gpt.attention_masks import causal_product, step_product, visible
from octavo.lab.language.gpt.growing_rows import GrowingRows
from octavo.lab.language.gpt.mixing_context import MixingContext, smaller
from octavo.lab.language.gpt.rotary_positions import apply_rotary, frequencies
from octavo.lab.language.techniques import choice, number, register, whole

EPS = 1e-6


@dataclass(frozen=True, kw_only=True)
class Attention:
    """Causal self-attention.

    ``heads`` of queries; ``kv_heads`` of keys and values, 0 for as many (grouped-query attention where fewer).
    ``rotary``: ``full``, ``half`` of the pairs, or ``none``; ``base`` of its angles. ``qk_norm``: queries and keys are
    divided by their root mean square, head by head, before they are turned. ``scale`` of the scores, 0 for
    ``1 / sqrt(head size)``. ``window``: positions that are seen, the own one included, 0 for all. ``gate``: first
    values of ``x`` from which each head's gate is computed, 0 for no gates. ``value_gate``: the same for values of
    tokens. ``bias``: of the four projections.

    Raises SettingError with the field, its value and what is accepted.
    """

    heads: int = 12
    kv_heads: int = 0
    rotary: str = "full"
    base: float = 10000.0
    qk_norm: bool = False
    scale: float = 0.0
    window: int = 0
    gate: int = 0
    value_gate: int = 12
    bias: bool = False

    def __post_init__(self) -> None:
        """Check every field."""
        whole(self, "heads", least=1)
        for name in ("kv_heads", "window", "gate"):
            whole(self, name, least=0)
        whole(self, "value_gate", least=1)
        choice(self, "rotary", ("full", "half", "none"))
        number(self, "base", least=1, most=1e12)
        number(self, "scale", least=0, most=1e6)
        choice(self, "qk_norm", (True, False))
        choice(self, "bias", (True, False))
        if self.kv_heads and self.heads % self.kv_heads:
            raise SettingError(f"kv_heads is {self.kv_heads}; accepted are divisors of heads, {self.heads}")


@register(
    "mixer",
    "attention",
    Attention,
    examples=(
        Attention(heads=4),
        Attention(heads=4, kv_heads=2, window=5, qk_norm=True, rotary="half", gate=12, scale=0.12, bias=True),
    ),
    off=(
        (Attention(heads=4, kv_heads=4), Attention(heads=4)),
        (Attention(heads=4, window=1 << 20), Attention(heads=4)),
    ),
    lags=(0, 1, 3),
)
class AttentionMixer(nn.Module):
    """:class:`Attention` as a mixer. Its cache holds ``2 * kv_heads * head size`` values a position."""

    keeps_documents = True
    takes_values = True
    reads_positions = True
    reads_on = True
    attends_to_pages = True

    def __init__(self, config: Attention, width: int) -> None:
        """Make the projections. Raises SettingError if the heads do not divide the width into even parts."""
        super().__init__()
        if width % config.heads or width // config.heads % 2:
            raise SettingError(f"heads is {config.heads}; accepted is what cuts the width, {width}, into even sizes")
        self.config = config
        self.size = width // config.heads
        self.kv_heads = config.kv_heads or config.heads
        self.query = nn.Linear(width, width, bias=config.bias)
        self.key = nn.Linear(width, self.kv_heads * self.size, bias=config.bias)
        self.value = nn.Linear(width, self.kv_heads * self.size, bias=config.bias)
        self.out = nn.Linear(width, width, bias=config.bias)
        self.gate = nn.Linear(min(config.gate, width), config.heads, bias=False) if config.gate else None
        self.value_gate: nn.Linear | None = None
        self.rules = {"query.weight": "matrix", "key.weight": "matrix", "value.weight": "matrix"}
        self.rules |= {"out.weight": "output", "gate.weight": "zero", "value_gate.weight": "zero"}
        self.rules |= {f"{name}.bias": "zero" for name in ("query", "key", "value", "out")}

    def admit_values(self) -> None:
        """Make the gate by which values of tokens are let in."""
        channels = min(self.config.value_gate, self.query.in_features)
        self.value_gate = nn.Linear(channels, self.kv_heads, bias=False)

    @property
    def cached_values(self) -> int:
        """Numbers that decoding keeps a position."""
        return 2 * self.kv_heads * self.size

    def forward(self, x_BTD: Tensor, context: MixingContext) -> Tensor:
        """Return the mixed vectors ``[B, T, D]``."""
        query, key, value = self._projected(x_BTD, context)
        query, key = (self._turned(part, context.positions_T) for part in (query, key))
        return self._joined(self._product(query, key, value, context), x_BTD)

    def first_state(self, batch: int, device: torch.device) -> Any:
        """Return an empty cache."""
        none = torch.empty(batch, self.kv_heads, 0, self.size, device=device, dtype=self.query.weight.dtype)
        documents = torch.empty(batch, 0, dtype=torch.int64, device=device)
        return {"key": GrowingRows(none, 2), "value": GrowingRows(none, 2), "documents": GrowingRows(documents, 1)}

    def step(self, x_BD: Tensor, state: Any, context: MixingContext) -> tuple[Tensor, Any]:
        """Return the output of the next position and the cache with its key and value."""
        x_B1D = x_BD[:, None]
        query, key, value = self._projected(x_B1D, context)
        here, told = context.positions_T, context.documents_BT
        query, key = (self._turned(part, here) for part in (query, key))
        if state.get("pages") is not None:
            scale, window = self.config.scale or self.size**-0.5, smaller(self.config.window or None, context.window)
            mixed_1Hd = state["pages"].attend(query[:, :, 0], key, value, scale=scale, window=window)
            return self._joined(mixed_1Hd[:, :, None], x_B1D)[:, 0], state
        state = {**state, "key": state["key"].followed_by(key), "value": state["value"].followed_by(value)}
        if told is not None:
            state["documents"] = state["documents"].followed_by(told)
        key, value = state["key"].rows, state["value"].rows
        length = key.shape[2]
        places = here[-1] - length + 1 + torch.arange(length, device=x_BD.device)
        mask = self._mask(here, places, context, state["documents"].rows)
        mixed = self._attend(query, key, value, mask)
        return self._joined(mixed, x_B1D)[:, 0], state

    def read_on(self, x_BSD: Tensor, rows: Any, context: MixingContext, most: int, back: int) -> tuple[Tensor, Any]:
        """Return the output of the next positions, ``[B, S, D]``, and the rows of the last ``most`` positions.

        ``rows``: of the positions before, None at the start. ``back``: by so much less positions count from here on, so
        that angles do not grow with the text.
        """
        query, key, value = self._projected(x_BSD, context)
        query, key = (self._turned(part, context.positions_T) for part in (query, key))
        numbers = context.documents_BT
        if rows is not None:
            before = self._turned(rows["key"], context.positions_T.new_tensor([-back])) if back else rows["key"]
            key, value = torch.cat([before, key], 2), torch.cat([rows["value"], value], 2)
            numbers = None if numbers is None else torch.cat([rows["documents"], numbers], 1)
        mask = context.seen_TS
        if mask is None or not self.masks_alike:
            order_K = torch.arange(key.shape[2], device=x_BSD.device)
            mask = self._mask(order_K[-x_BSD.shape[1] :], order_K, context, numbers)
        mixed_BHSd = self._attend(query, key, value, mask)
        begin = max(0, key.shape[2] - most)
        after = {"key": key[:, :, begin:], "value": value[:, :, begin:]}
        return self._joined(mixed_BHSd, x_BSD), {**after, "documents": None if numbers is None else numbers[:, begin:]}

    @property
    def masks_alike(self) -> bool:
        """Whether all it hides is what the context hides, so that a mask of the context serves every such mixer."""
        return not self.config.window

    def _product(self, query: Tensor, key: Tensor, value: Tensor, context: MixingContext) -> Tensor:
        """Return attention over the earlier positions of a whole sequence, ``[B, H, T, d]``."""
        window = smaller(self.config.window or None, context.window)
        return causal_product(query, key, value, context, window=window, scale=self.config.scale or None)

    def _mask(self, queries_T: Tensor, keys_S: Tensor, context: MixingContext, documents_BS: Tensor | None) -> Tensor:
        """Return which keys are seen, bool, or what is added to scores, float32: ``[..., T, S]``."""
        window, told = smaller(self.config.window or None, context.window), context.documents_BT
        return visible(
            queries_T, keys_S, window=window, query_documents_BT=told,
            key_documents_BS=None if told is None else documents_BS,
        )  # fmt: skip

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Return attention under a mask, ``[B, H, T, d]``."""
        mask = mask if mask.dtype == torch.bool else mask.to(query.dtype)
        if query.shape[2] == 1:
            return step_product(query, key, value, mask, scale=self.config.scale or None)
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=self.config.scale or None,
            enable_gqa=self.kv_heads != self.config.heads,
        )  # fmt: skip

    def _projected(self, x_BTD: Tensor, context: MixingContext) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, ``[B, heads, T, d]``, normed; queries and keys are to be turned yet."""
        query, key, value = (
            project(x_BTD).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        if self.value_gate is not None and context.values_BTD is not None:
            told = context.values_BTD.unflatten(-1, (-1, self.size)).transpose(1, 2)[:, : self.kv_heads]
            gate = torch.sigmoid(self.value_gate(x_BTD[..., : self.value_gate.in_features]))
            value = value + gate.transpose(1, 2)[..., None] * told.to(value.dtype)
        if self.config.qk_norm:
            query, key = (functional.rms_norm(part, (self.size,), eps=EPS).to(value.dtype) for part in (query, key))
        return query, key, value

    def _turned(self, part_BHTd: Tensor, positions_T: Tensor) -> Tensor:
        """Return queries or keys with their positions."""
        if self.config.rotary == "none":
            return part_BHTd
        turns = frequencies(self.size, self.config.rotary, self.config.base, part_BHTd.device)
        return apply_rotary(part_BHTd, positions_T, turns)

    def _joined(self, mixed_BHTd: Tensor, x_BTD: Tensor) -> Tensor:
        if self.gate is not None:
            gate_BTH = torch.sigmoid(self.gate(x_BTD[..., : self.gate.in_features]))
            mixed_BHTd = mixed_BHTd * gate_BTH.transpose(1, 2)[..., None]
        return self.out(mixed_BHTd.transpose(1, 2).flatten(2))
