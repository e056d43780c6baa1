"""Attention that also reads neighbours: chunks of other documents like the one before, found in a store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from octavo.errors import SettingError
from octavo.lab.language.gpt.attention_mixer import Attention, AttentionMixer
from octavo.lab.language.gpt.chunk_store import SIZE, ChunkStore
from octavo.lab.language.gpt.mixing_context import MixingContext
from octavo.lab.language.techniques import choice, register, whole

_SHARP = 8.0  # of the scores of neighbours, cosines between -1 and 1


@dataclass(frozen=True, kw_only=True)
class Retrieval:
    """Causal attention of ``heads``, and chunked cross-attention to ``neighbours`` of the chunk before.

    Chunks have ``chunk`` tokens. From the last token of a chunk on, and up to the last but one of the next, positions
    read the chunk's neighbours with what follows them in their documents. ``entries`` of the store, 0 for plain
    attention; ``overlap``: tokens in a row by which the sequence's own documents are known, and left out. ``joint``:
    the search has a learned query, whose gradient comes through the scores of neighbours, which weigh them.
    Neighbours are read by the model's own embedding, without an encoder of their own.

    Source: Borgeaud et al. 2022 (RETRO); ``joint`` after Izacard et al. 2022 (Atlas, training of the query alone).
    """

    heads: int = 12
    chunk: int = 64
    neighbours: int = 2
    entries: int = 1 << 16
    overlap: int = 8
    joint: bool = False

    def __post_init__(self) -> None:
        """Check every field."""
        for name, least in (("heads", 1), ("chunk", 2), ("neighbours", 1), ("entries", 0), ("overlap", 2)):
            whole(self, name, least=least)
        choice(self, "joint", (True, False))
        if self.overlap > self.chunk:
            raise SettingError(f"overlap is {self.overlap}; accepted are up to {self.chunk}, the chunk")


@register(
    "mixer",
    "retrieval",
    Retrieval,
    examples=(
        Retrieval(heads=4, chunk=4, entries=128, overlap=3),
        Retrieval(heads=4, chunk=5, neighbours=3, entries=128, overlap=3, joint=True),
    ),
    off=((Retrieval(heads=4, entries=0), Attention(heads=4)),),
    lags=(0, 1, 3),
)
class RetrievalMixer(nn.Module):
    """:class:`Retrieval` as a mixer; its store is filled by the model's ``count``."""

    keeps_documents = takes_values = False

    def __init__(self, config: Retrieval, width: int) -> None:
        """Make the weights and an empty store."""
        super().__init__()
        self.config, self.size = config, width // config.heads
        self.attention = AttentionMixer(Attention(heads=config.heads), width)
        self.rules: dict[str, str] = {}
        self.store: ChunkStore | None = None
        if config.entries:
            self.store = ChunkStore(config.entries, config.chunk, config.overlap)
            self.cross_query, self.cross_key, self.cross_value, self.cross_out = (
                nn.Linear(width, width, bias=False) for _ in range(4)
            )
            self.rules |= {f"cross_{name}.weight": "matrix" for name in ("query", "key", "value")}
            self.rules["cross_out.weight"] = "output"
            self.place = nn.Parameter(torch.empty(2 * config.chunk, width))
            self.rules["place"] = "zero"
            self.search = nn.Linear(SIZE, SIZE, bias=False) if config.joint else None
            self.rules["search.weight"] = "zero"

    @property
    def cached_values(self) -> int:
        """Numbers that decoding keeps a position, without the neighbours of one chunk."""
        return self.attention.cached_values

    def forward(self, x_BTD: Tensor, context: MixingContext) -> Tensor:
        """Return the mixed vectors ``[B, T, D]``."""
        mixed_BTD: Tensor = self.attention(x_BTD, context)
        length, chunk = x_BTD.shape[1], self.config.chunk
        if self.store is None or context.ids_BT is None or self.store.is_empty or length < chunk:
            return mixed_BTD
        read = self._read(context.ids_BT, context)
        chunks = length // chunk
        late_BTD = functional.pad(x_BTD[:, chunk - 1 :], (0, 0, 0, chunks * chunk - (length - chunk + 1)))
        told_BTD = self._crossed(late_BTD.unflatten(1, (chunks, chunk)), *read).flatten(1, 2)
        told_BTD = functional.pad(told_BTD[:, : length - chunk + 1], (0, 0, chunk - 1, 0))
        return mixed_BTD + told_BTD

    def first_state(self, batch: int, device: torch.device) -> Any:
        """Return an empty cache, and no ids."""
        none = torch.zeros(batch, 0, dtype=torch.long, device=device)
        return {"attention": self.attention.first_state(batch, device), "ids": none, "read": None}

    def step(self, x_BD: Tensor, state: Any, context: MixingContext) -> tuple[Tensor, Any]:
        """Return the output of the next position, and the state; at the end of a chunk its neighbours are searched."""
        mixed_BD, attention = self.attention.step(x_BD, state["attention"], context)
        state = {**state, "attention": attention}
        if self.store is None or context.ids_BT is None or self.store.is_empty:
            return mixed_BD, state
        ids_BT = torch.cat([state["ids"], context.ids_BT], 1)
        read = state["read"]
        if ids_BT.shape[1] % self.config.chunk == 0:
            read = tuple(part[:, -1:] for part in self._read(ids_BT, context))
        if read is not None:
            mixed_BD = mixed_BD + self._crossed(x_BD[:, None, None], *read)[:, 0, 0]
        return mixed_BD, {**state, "ids": ids_BT, "read": read}

    def _read(self, ids_BT: Tensor, context: MixingContext) -> tuple[Tensor, Tensor]:
        """Return vectors of the tokens of every chunk's neighbours, ``[B, U, kC, D]``, and what is added to scores."""
        assert self.store is not None
        tokens_BUkC, scores_BUk = self.store.neighbours(ids_BT, self.config.neighbours, self.search)
        flat = tokens_BUkC.flatten(0, 2)
        vectors = context.embed(flat.clamp_min(0), None).unflatten(0, tokens_BUkC.shape[:3]) + self.place
        told = functional.rms_norm(vectors, (vectors.shape[-1],), eps=1e-6).flatten(2, 3)
        added = torch.zeros_like(tokens_BUkC, dtype=told.dtype)
        if self.search is not None:
            found = (tokens_BUkC >= 0).any(-1)
            weights = (_SHARP * scores_BUk).masked_fill(~found, -1e4).log_softmax(-1)
            added = added + weights[..., None]
        return told, added.masked_fill(tokens_BUkC < 0, -torch.inf).flatten(2, 3)

    def _crossed(self, x_BUQD: Tensor, told_BUSD: Tensor, added_BUS: Tensor) -> Tensor:
        """Return what positions read in the neighbours of their chunk; nothing where there are none."""
        query, key, value = (
            layer(part).unflatten(-1, (-1, self.size)).transpose(2, 3)
            for layer, part in (
                (self.cross_query, x_BUQD), (self.cross_key, told_BUSD), (self.cross_value, told_BUSD)
            )
        )  # fmt: skip
        # A key and a value of zeros beside: what a position attends to where no neighbour helps, or none is there.
        key, value = (functional.pad(part, (0, 0, 0, 1)) for part in (key, value))
        added = functional.pad(added_BUS, (0, 1))[:, :, None, None]
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=added.to(query.dtype))
        crossed: Tensor = self.cross_out(mixed.transpose(2, 3).flatten(3))
        return crossed
