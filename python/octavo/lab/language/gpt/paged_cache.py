"""A paged cache of keys and values: sequences take pages as they grow, share those of a common beginning, and give
them back when they end.

Source: Kwon et al. 2023.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from octavo.errors import ModelError, RangeError
from octavo.lab.language.gpt.attention_mixer import AttentionMixer
from octavo.lab.language.gpt.gpt_decoding import DecodingState, first_state, step
from octavo.lab.language.gpt.gpt_network import GPT, check_ids
from octavo.lab.language.gpt.growing_rows import GrowingRows

PAGE = 64
"""Positions of a page."""


class PagedCache:
    """Keys and values of many sequences in ``pages`` pages of ``page`` positions, of which each sequence has a table.

    ``layers``: heads of keys and values, and the size of each, of every layer. A sequence holds less than a page more
    than it needs. A page that is full may be in the tables of several sequences; it is never written again.
    """

    def __init__(
        self,
        layers: Sequence[tuple[int, int]],
        pages: int,
        *,
        page: int = PAGE,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        """Make the pool, all pages free."""
        if pages < 1 or page < 1:
            raise RangeError(f"{pages} pages of {page} positions; accepted is 1 and more of both")
        self.page = page
        self._pools = [torch.zeros(2, pages, heads, page, size, dtype=dtype, device=device) for heads, size in layers]
        self._uses = [0] * pages
        self._free = list(range(pages))[::-1]
        self._tables: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}
        self._next = 0

    @property
    def free_pages(self) -> int:
        """Pages of no sequence."""
        return len(self._free)

    def length(self, sequence: int) -> int:
        """Return the positions of a sequence. Raises RangeError for one that is not there."""
        if sequence not in self._lengths:
            raise RangeError(f"sequence {sequence} is not in the cache: it never joined, or it left")
        return self._lengths[sequence]

    def join(self, like: int | None = None) -> int:
        """Return the number of a new sequence: empty, or with all positions of another one.

        Full pages are shared; the last one, which both would write on, is copied. Raises RangeError without a page.
        """
        length = 0 if like is None else self.length(like)
        shared = [] if like is None else self._tables[like]
        full = length // self.page
        if full < len(shared) and not self._free:
            raise RangeError("no page is free for the copy of a sequence's last one")
        table = shared[:full]
        for page in table:
            self._uses[page] += 1
        if full < len(shared):
            table = [*table, copy := self._taken()]
            for pool in self._pools:
                pool[:, copy] = pool[:, shared[full]]
        sequence, self._next = self._next, self._next + 1
        self._tables[sequence], self._lengths[sequence] = table, length
        return sequence

    def grow(self, sequence: int, more: int = 1) -> None:
        """Make room for ``more`` positions. Raises RangeError where pages are short; nothing is taken then."""
        length = self.length(sequence) + more
        table = self._tables[sequence]
        missing = -(-length // self.page) - len(table)
        if missing > len(self._free):
            raise RangeError(
                f"sequence {sequence} needs {missing} pages for {length} positions and {len(self._free)} are free; end "
                "a sequence, or make the cache larger"
            )
        table += [self._taken() for _ in range(missing)]
        self._lengths[sequence] = length

    def write(self, sequence: int, layer: int, first: int, key_KSd: Tensor, value_KSd: Tensor) -> None:
        """Write keys and values of the positions from ``first`` on; the sequence has grown to hold them."""
        pool = self._pools[layer]
        places_S = torch.arange(first, first + key_KSd.shape[1], device=pool.device)
        pages_S = torch.tensor(self._tables[sequence], device=pool.device)[places_S // self.page]
        for part, given_KSd in zip(pool, (key_KSd, value_KSd), strict=True):
            part[pages_S, :, places_S % self.page] = given_KSd.transpose(0, 1)

    def rows(self, sequences: Sequence[int], layer: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of sequences of one length in order, ``[B, K, S, d]``, gathered from their pages."""
        length = self.length(sequences[0])
        if any(self.length(one) != length for one in sequences):
            raise RangeError(
                f"sequences have lengths {[self.length(one) for one in sequences]}; accepted is one length"
            )
        tables = torch.tensor([self._tables[one] for one in sequences], dtype=torch.int64)
        key, value = (
            part[tables.to(part.device)].transpose(1, 2).flatten(2, 3)[:, :, :length] for part in self._pools[layer]
        )
        return key, value

    def leave(self, sequence: int) -> None:
        """End a sequence; pages that no other one holds are free. Raises RangeError for one that is not there."""
        self.length(sequence)
        del self._lengths[sequence]
        for page in self._tables.pop(sequence):
            self._uses[page] -= 1
            if not self._uses[page]:
                self._free.append(page)

    def _taken(self) -> int:
        page = self._free.pop()
        self._uses[page] = 1
        return page


class PagedDecoding:
    """Sequences of a model that join, grow and end on their own, their keys and values in one :class:`PagedCache`.

    Each decodes as it would alone, bit for bit. Mixers are those of attention. Raises ModelError for another one.
    """

    def __init__(self, model: GPT, pages: int, *, page: int = PAGE) -> None:
        """Make the cache."""
        layers = []
        block: Any
        for layer, block in enumerate(model.blocks):
            if type(block.mixer).step is not AttentionMixer.step:
                raise ModelError(f"block {layer}: {type(block.mixer).__name__} keeps no keys and values to be paged")
            layers.append((block.mixer.kv_heads, block.mixer.size))
        some = next(model.parameters())
        self.model, self.cache = model, PagedCache(layers, pages, page=page, dtype=some.dtype, device=some.device)
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

    def _step(self, sequence: int, given: int) -> Tensor:
        state, length = self._states[sequence], self.cache.length(sequence)
        for layer, held in enumerate(state.mixers):
            if length:
                key, value = self.cache.rows([sequence], layer)
                held = {**held, "key": GrowingRows(key, 2), "value": GrowingRows(value, 2)}
            state.mixers[layer] = held
        id_1 = torch.tensor([given], device=next(self.model.parameters()).device)
        found_1V, state = step(self.model, id_1, state)
        self.cache.grow(sequence)
        for layer, held in enumerate(state.mixers):
            self.cache.write(sequence, layer, length, *(held[name].rows[0, :, -1:] for name in ("key", "value")))
            # Pages hold them; a state keeps the documents of its positions alone.
            state.mixers[layer] = {**held, "key": None, "value": None}
        self._states[sequence] = state
        return found_1V[0]
