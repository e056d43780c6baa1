"""Sequences of a model that decode on their own, with a paged cache in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from octavo.errors import ModelError, RangeError
from octavo.lab.language.gpt.attention_mixer import AttentionMixer
from octavo.lab.language.gpt.gpt_decoding import DecodingState, first_state, step
from octavo.lab.language.gpt.gpt_network import GPT, check_ids
from octavo.lab.language.gpt.growing_rows import GrowingRows
from octavo.lab.language.gpt.latent_attention import LatentMixer
from octavo.lab.language.gpt.paged_attention import PAGE
from octavo.lab.language.gpt.paged_cache import PagedCache, SequencePages


class PagedDecoding:
    """Sequences of a model that join, grow and end on their own, their keys and values in one :class:`PagedCache`.

    Mixers are those of attention and of latent attention. ``format``: the block format that pages are packed in, None
    for the model's dtype. ``in_place``: whether queries attend to pages where they lie
    (:func:`octavo.lab.language.gpt.paged_attention.paged_attention`), with documents and biases of distances never;
    None for where a kernel does so: on a GPU, in float16 and bfloat16, with pages of 64. Elsewhere rows are gathered,
    and without a format each sequence decodes as it would alone, bit for bit. Raises ModelError for another mixer.
    """

    def __init__(
        self, model: GPT, pages: int, *, page: int = PAGE, format: str | None = None, in_place: bool | None = None
    ) -> None:
        """Make the cache."""
        some, layers = next(model.parameters()), []
        blocks: list[Any] = list(model.blocks)
        for layer, block in enumerate(blocks):
            if type(block.mixer).step not in (AttentionMixer.step, LatentMixer.step):
                raise ModelError(f"block {layer}: {type(block.mixer).__name__} keeps no keys and values to be paged")
            layers.append(_rows_of(block.mixer))
        if in_place is None:
            in_place = some.is_cuda and page == PAGE and some.dtype in (torch.float16, torch.bfloat16)
        takes = in_place and not model.config.keep_documents
        self._in_place = [takes and block.mixer.attends_to_pages for block in blocks]
        self.model = model
        self.cache = PagedCache(layers, pages, page=page, dtype=some.dtype, device=some.device, format=format)
        self._states: dict[int, DecodingState] = {}

    def join(self, like: int | None = None) -> int:
        """Return the number of a new sequence, empty or at the state of another one, whose full pages it shares."""
        sequence = self.cache.join(like)
        state = first_state(self.model, 1) if like is None else self._states[like]
        self._states[sequence] = replace(state, mixers=list(state.mixers), ffns=list(state.ffns))
        return sequence

    @torch.no_grad()
    def step(self, ids: Mapping[int, int]) -> dict[int, Tensor]:
        """Return the log-probabilities ``[V]`` after the next id of each sequence that is named.

        Raises RangeError for an id outside the vocabulary, and where pages are short, before any sequence has moved.
        """
        if not ids:
            return {}
        check_ids(torch.tensor([list(ids.values())], dtype=torch.int64), self.model.config.vocabulary)
        needed = sum(self.cache.length(sequence) % self.cache.page == 0 for sequence in ids)
        if needed > self.cache.free_pages:
            raise RangeError(f"{len(ids)} sequences need {needed} pages; {self.cache.free_pages} are free")
        return {sequence: self._step(sequence, given) for sequence, given in ids.items()}

    def leave(self, sequence: int) -> None:
        """End a sequence and free its pages."""
        self.cache.leave(sequence)
        del self._states[sequence]

    def _step(self, sequence: int, token: int) -> Tensor:
        state, length = self._states[sequence], self.cache.length(sequence)
        gathered = [self._gathered(sequence, layer) if length else {} for layer in range(len(state.mixers))]
        self.cache.grow(sequence)
        places = self.cache.tables([sequence]) if any(self._in_place) else None
        for layer, parts in enumerate(gathered):
            pages = SequencePages(self.cache, sequence, layer, *places) if places and self._in_place[layer] else None
            state.mixers[layer] = {**state.mixers[layer], **parts, "pages": pages}
        id_1 = torch.tensor([token], device=next(self.model.parameters()).device)
        result_1V, state = step(self.model, id_1, state)
        for layer, parts in enumerate(state.mixers):
            names = [name for name in ("key", "value", "cached") if name in parts]
            if not self._in_place[layer]:
                rows = [parts[name].rows for name in names]
                self.cache.write(sequence, layer, length, *(part.view(-1, *part.shape[-2:])[:, -1:] for part in rows))
            # Pages hold them; a state keeps the documents of its positions alone.
            state.mixers[layer] = {**parts, **dict.fromkeys(names)}
        self._states[sequence] = state
        return result_1V[0]

    def _gathered(self, sequence: int, layer: int) -> dict[str, GrowingRows]:
        """Return the rows of a layer in order, as its mixer keeps them; none where it reads pages itself."""
        if self._in_place[layer]:
            return {}
        key, value = self.cache.rows([sequence], layer)
        block: Any = self.model.blocks[layer]
        if isinstance(block.mixer, LatentMixer):
            return {"cached": GrowingRows(key[:, 0], 1)}
        return {"key": GrowingRows(key, 2), "value": GrowingRows(value, 2)}


def _rows_of(mixer: Any) -> tuple[int, ...]:
    """Return heads and size of what a mixer keeps a position, and for latents the numbers that are values."""
    if isinstance(mixer, LatentMixer):
        return 1, mixer.cached_values, mixer.config.rank
    return mixer.kv_heads, mixer.size
