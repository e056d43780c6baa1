"""A paged cache of keys and values: sequences take pages as they grow, share those of a common beginning, and give
them back when they end.

Source: Kwon et al. 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.errors import FormatError, RangeError
from octavo.lab.language.gpt.paged_attention import PAGE, Pages, paged_attention
from octavo.ops import encode
from octavo.tensors.formats import core
from octavo.tensors.packed_tensor import part_specs


class PagedCache:
    """Keys and values of many sequences in ``pages`` pages of ``page`` positions, of which each sequence has a table.

    ``layers``: heads of keys and values, and the size of each, of every layer. A third number says how many first
    numbers of a key are its value, as of latents; values then have no rows of their own. ``format``: the block format
    that rows are packed in, None for numbers of ``dtype``. A sequence holds less than a page more than it needs. A page
    that is full may be in the tables of several sequences; it is never written again.
    """

    def __init__(
        self,
        layers: Sequence[tuple[int, ...]],
        pages: int,
        *,
        page: int = PAGE,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        format: str | None = None,
    ) -> None:
        """Make the pool, all pages free. Raises RangeError for counts and FormatError for formats without blocks."""
        if pages < 1 or page < 1:
            raise RangeError(f"{pages} pages of {page} positions; accepted is 1 and more of both")
        if format is not None:
            _check_rows_apart(format)
        self.page, self.format, self._dtype = page, format, dtype
        self._layers = [(*layer, 0)[:3] for layer in layers]
        self._pools = [self._pool(pages, heads, size, values, device) for heads, size, values in self._layers]
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
                for part in pool:
                    part[:, copy] = part[:, shared[full]]
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

    def write(self, sequence: int, layer: int, first: int, key_KSd: Tensor, value_KSd: Tensor | None = None) -> None:
        """Write keys and values of the positions from ``first`` on; the sequence has grown to hold them."""
        pool, count = self._pools[layer], key_KSd.shape[1]
        table, device = self._tables[sequence], pool[0].device
        places: tuple[Tensor, Tensor] | tuple[int, slice]
        if first // self.page == (first + count - 1) // self.page:  # nothing of a table goes to a device
            places = table[first // self.page], slice(first % self.page, first % self.page + count)
        else:
            at_S = torch.arange(first, first + count, device=device)
            places = torch.tensor(table, device=device)[at_S // self.page], at_S % self.page
        for number, rows_KSd in enumerate((key_KSd, value_KSd)[: len(pool[0])]):
            if rows_KSd is None:
                raise RangeError(f"layer {layer} has values of its own, and none are written")
            parts = (rows_KSd,) if self.format is None else _packed(rows_KSd, self.format)
            for part, rows in zip(pool, parts, strict=True):
                target = part[number]
                if isinstance(places[0], int):
                    target[places[0], :, places[1]] = rows
                else:
                    target[places[0], :, places[1]] = rows.transpose(0, 1)

    def rows(self, sequences: Sequence[int], layer: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of sequences of one length in order, ``[B, K, S, d]``, gathered from their pages."""
        length = self.length(sequences[0])
        if any(self.length(one) != length for one in sequences):
            raise RangeError(
                f"sequences have lengths {[self.length(one) for one in sequences]}; accepted is one length"
            )
        keys, values = self.pages(layer)
        tables = torch.tensor([self._tables[one] for one in sequences], dtype=torch.int64).to(keys.rows.device)
        key, value = (
            part.numbers(tables, self._dtype).transpose(1, 2).flatten(2, 3)[:, :, :length]
            for part in (keys, keys if isinstance(values, int) else values)
        )
        return key, value[..., :values] if isinstance(values, int) else value

    def pages(self, layer: int) -> tuple[Pages, Pages | int]:
        """Return the pages of keys and of values of all sequences; for the latter a count where keys have them."""
        (_, size, values), (rows, *scales) = self._layers[layer], self._pools[layer]
        kinds = [Pages(rows[kind], size, self.format, scales[0][kind] if scales else None) for kind in range(len(rows))]
        return kinds[0], values or kinds[1]

    def tables(self, sequences: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the pages of sequences in order, padded with 0, and their positions: int32 ``[B, P]`` and ``[B]``."""
        longest = max(1, *(len(self._tables[one]) for one in sequences))
        padded = [self._tables[one] + [0] * (longest - len(self._tables[one])) for one in sequences]
        lengths = [self.length(one) for one in sequences]
        # One copy to the device for both.
        both = torch.tensor([[*row, length] for row, length in zip(padded, lengths, strict=True)], dtype=torch.int32)
        both = both.to(self._pools[0][0].device)
        return both[:, :-1].contiguous(), both[:, -1].contiguous()

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

    def _pool(self, pages: int, heads: int, size: int, values: int, device: torch.device | str) -> list[Tensor]:
        """Return memory of the rows of a layer, or of their codes and scales: ``[1 or 2, pages, heads, page, ...]``."""
        shape = (1 if values else 2, pages, heads, self.page)
        if self.format is None:
            return [torch.zeros(*shape, size, dtype=self._dtype, device=device)]
        specs = part_specs(core(self.format), (*shape, size), -1)[:2]
        return [torch.zeros(part, dtype=dtype, device=device) for _, dtype, part in specs]


@dataclass(frozen=True)
class SequencePages:
    """The pages of one sequence that decodes, as a mixer of layer ``layer`` sees them.

    ``table_1P``, ``length_1``: its pages and its positions, that of the present token included.
    """

    cache: PagedCache
    sequence: int
    layer: int
    table_1P: Tensor
    length_1: Tensor

    def attend(
        self, query_1Hd: Tensor, key_1K1d: Tensor, value_1K1d: Tensor | None, *, scale: float, window: int | None
    ) -> Tensor:
        """Write the present key and value, and return the mixed values ``[1, H, v]`` of all positions so far."""
        last = self.cache.length(self.sequence) - 1
        own = None if value_1K1d is None else value_1K1d[0]
        self.cache.write(self.sequence, self.layer, last, key_1K1d[0], own)
        keys, values = self.cache.pages(self.layer)
        return paged_attention(
            query_1Hd, keys, values, self.table_1P, self.length_1, scale=scale, window=window or 0
        )  # fmt: skip


def _packed(rows_KSd: Tensor, format: str) -> tuple[Tensor, Tensor]:
    """Return codes and scales of rows."""
    packed = encode(rows_KSd.contiguous(), format)
    return packed.codes, packed.scales


def _check_rows_apart(format: str) -> None:
    """Refuse a format whose rows cannot be packed and read one by one."""
    fmt = core(format)
    if fmt.granularity != "block" or fmt.has_zeros or fmt.has_offsets or fmt.has_levels:
        raise FormatError(
            f"'{fmt}' packs no cache; accepted are formats with a scale for each block of a row and nothing else, such "
            "as mxint8, int8:g32 or mxfp4"
        )
