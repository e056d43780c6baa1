"""Attention of one query of each sequence over keys and values in pages, where they lie: none is put in order first.

``octavo_lab::paged_attention`` runs as one launch on a GPU, or two where several blocks share a sequence. Pages have 64
positions in float16, bfloat16 or codes of a block format. :func:`plain_paged_attention` is its definition in operations
of torch, and computes what the kernel does not take. Source: flash-decoding (Dao et al. 2023), over pages (Kwon et al.
2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import torch
from torch import Tensor
from torch import library as registry

from octavo import _core
from octavo.errors import DTypeError, ShapeError
from octavo.ops import decode
from octavo.ops.codec_cuda import place
from octavo.tensors.formats import Format, core
from octavo.tensors.packed_tensor import FLOATS, PackedTensor

PAGE = 64
"""Positions of a page that the kernel takes."""
Shape: TypeAlias = tuple[int, int, int, int, int, bool, int, int, int]
"""Sequences, query heads, key heads, numbers of a key and of a value, values are part of keys, pages, window, dtype."""


@dataclass(frozen=True)
class Pages:
    """Rows of ``size`` numbers in pages.

    ``rows``: the numbers, ``[pages, heads, page, size]``, or codes of ``format``, whose ``scales`` are beside them.
    """

    rows: Tensor
    size: int
    format: str | None = None
    scales: Tensor | None = None

    def numbers(self, pages: Tensor, dtype: torch.dtype) -> Tensor:
        """Return what some pages hold, decoded, in a dtype: ``[..., heads, page, size]``."""
        rows = self.rows[pages]
        if self.format is None or self.scales is None:
            return rows.to(dtype)
        none = rows.new_empty(0)
        shape = (*rows.shape[:-1], self.size)
        packed = PackedTensor(
            Format(self.format), rows, self.scales[pages], none, none.float(), shape=shape, dtype=dtype
        )
        return decode(packed)


def paged_attention(
    query_BHd: Tensor, keys: Pages, values: Pages | int, tables_BP: Tensor, lengths_B: Tensor, *, scale: float,
    window: int = 0,
) -> Tensor:  # fmt: skip
    """Return the mixed values of one query of each sequence, ``[B, H, v]``, of the queries' dtype.

    ``keys``, ``values``: pages of ``K`` heads, which serve ``H / K`` query heads each, neighbours together; ``values``
    may be the count of first numbers of a key that are its value, as those of latents are. ``tables_BP``: the pages of
    each sequence in order, int32; ``lengths_B``: its positions, int32; one without any gives zeros. ``scale``: of the
    scores. ``window``: last positions that are seen, 0 for all. Scores, maxima and sums are float32; on a GPU weights
    are rounded to the queries' dtype, as keys and values of packed pages are. No gradients. Raises ShapeError and
    DTypeError for operands that do not fit.
    """
    _check(query_BHd, keys, values, tables_BP, lengths_B)
    own = None if isinstance(values, int) else values
    mixed_BHv: Tensor = torch.ops.octavo_lab.paged_attention(
        query_BHd, keys.rows, keys.scales, None if own is None else own.rows, None if own is None else own.scales,
        tables_BP, lengths_B, keys.format or "", _columns(values), scale, window,
    )  # fmt: skip
    return mixed_BHv


def plain_paged_attention(
    query_BHd: Tensor, keys: Pages, values: Pages | int, tables_BP: Tensor, lengths_B: Tensor, *, scale: float,
    window: int = 0,
) -> Tensor:  # fmt: skip
    """Return what :func:`paged_attention` does, by torch's operations: pages in order, scores, softmax, mixture."""
    wide = torch.float64 if query_BHd.dtype == torch.float64 else torch.float32
    tables_BP = tables_BP.long()
    key_BKSd = keys.numbers(tables_BP, wide).transpose(1, 2).flatten(2, 3)
    if isinstance(values, int):
        value_BKSv = key_BKSd[..., :values]
    else:
        value_BKSv = values.numbers(tables_BP, wide).transpose(1, 2).flatten(2, 3)
    query_BKGd = query_BHd.to(wide).unflatten(1, (key_BKSd.shape[1], -1))
    score_BKGS = torch.einsum("bkgd,bksd->bkgs", query_BKGd, key_BKSd) * scale
    place_S = torch.arange(key_BKSd.shape[2], device=query_BHd.device)
    seen_BS = place_S < lengths_B[:, None]
    if window:
        seen_BS &= place_S >= lengths_B[:, None] - window
    hidden_B11S = ~seen_BS[:, None, None]
    weight_BKGS = score_BKGS.masked_fill(hidden_B11S, float("-inf")).softmax(-1).masked_fill(hidden_B11S, 0)
    value_BKSv = value_BKSv.masked_fill(~seen_BS[:, None, :, None], 0)  # rows that were never written may hold NaN
    return torch.einsum("bkgs,bksv->bkgv", weight_BKGS, value_BKSv).flatten(1, 2).to(query_BHd.dtype)


def _columns(values: Pages | int) -> int:
    return values if isinstance(values, int) else values.size


def _check(query: Tensor, keys: Pages, values: Pages | int, tables: Tensor, lengths: Tensor) -> None:
    """Refuse operands that do not belong together."""
    if query.ndim != 3 or keys.rows.ndim != 4 or query.shape[-1] != keys.size or query.shape[1] % keys.rows.shape[1]:
        shapes = f"{tuple(query.shape)} and keys {tuple(keys.rows.shape)} of {keys.size} numbers"
        raise ShapeError(
            f"paged_attention: query {shapes}; accepted are [B, H, d] and [pages, K, page, d] with K a divisor of H"
        )
    if tables.ndim != 2 or lengths.shape != tables.shape[:1] or len(query) != len(tables) or not tables.shape[1]:
        shapes = f"{tuple(tables.shape)} and {tuple(lengths.shape)}"
        raise ShapeError(
            f"paged_attention: tables and lengths are {shapes} for {len(query)} sequences; accepted are [B, P] and [B]"
        )
    if isinstance(values, int):
        if not 0 < values <= keys.size:
            raise ShapeError(f"paged_attention: values are {values} numbers of {keys.size}; accepted are 1 to all")
    elif values.rows.shape[:-1] != keys.rows.shape[:-1] or values.format != keys.format:
        shapes = f"{tuple(values.rows.shape)} in {values.format}, keys {tuple(keys.rows.shape)} in {keys.format}"
        raise ShapeError(f"paged_attention: values are {shapes}; accepted are equal pages, heads and formats")
    for name, part in (("tables", tables), ("lengths", lengths)):
        if part.dtype != torch.int32:
            raise DTypeError(f"paged_attention: {name} are {part.dtype}; accepted is int32")
    if query.dtype not in (torch.float64, *FLOATS) or (keys.format is None and keys.rows.dtype != query.dtype):
        raise DTypeError(
            f"paged_attention: query is {query.dtype}, pages hold {keys.rows.dtype}; accepted is one float dtype"
        )


# --- the operation ----------------------------------------------------------------------------------------------------

_library = registry.Library("octavo_lab", "FRAGMENT")
_library.define(
    "paged_attention(Tensor query, Tensor keys, Tensor? key_scales, Tensor? values, Tensor? value_scales, "
    "Tensor tables, Tensor lengths, str format, int columns, float scale, int window) -> Tensor"
)


def _plain(
    query: Tensor, keys: Tensor, key_scales: Tensor | None, values: Tensor | None, value_scales: Tensor | None,
    tables: Tensor, lengths: Tensor, format: str, columns: int, scale: float, window: int,
) -> Tensor:  # fmt: skip
    pages = Pages(keys, query.shape[-1], format or None, key_scales)
    own = columns if values is None else Pages(values, columns, format or None, value_scales)
    return plain_paged_attention(query, pages, own, tables, lengths, scale=scale, window=window)


def _address(part: Tensor | None) -> int:
    return 0 if part is None else part.data_ptr()


@lru_cache(maxsize=4096)
def _scratch(device: int, shape: Shape, format: _core.Format | None) -> int | None:
    return _core._cuda_attention_scratch(device, shape, format)


def _cuda(
    query: Tensor, keys: Tensor, key_scales: Tensor | None, values: Tensor | None, value_scales: Tensor | None,
    tables: Tensor, lengths: Tensor, format: str, columns: int, scale: float, window: int,
) -> Tensor:  # fmt: skip
    on, fmt = place(query.device), core(format) if format else None
    sequences, heads, depth = query.shape
    longest, code = tables.shape[1], FLOATS.get(query.dtype, 0)
    shape = (sequences, heads, keys.shape[1], depth, columns, values is None, longest, window, code)
    fits = keys.shape[2] == PAGE and all(part is None or part.is_contiguous() for part in (keys, values))
    nbytes = _scratch(on[0], shape, fmt) if fits else None
    if nbytes is None:
        return _plain(
            query, keys, key_scales, values, value_scales, tables, lengths, format, columns, scale, window
        )  # fmt: skip
    query, tables, lengths = query.contiguous(), tables.contiguous(), lengths.contiguous()
    out = query.new_empty(*query.shape[:2], columns)
    scratch = torch.empty(nbytes, dtype=torch.uint8, device=query.device)
    addresses = (keys.data_ptr(), _address(key_scales), _address(values), _address(value_scales))
    _core._cuda_attention(
        on, shape, fmt, query.data_ptr(), addresses, (tables.data_ptr(), lengths.data_ptr()), out.data_ptr(), scale,
        scratch.data_ptr() if nbytes else 0,
    )  # fmt: skip
    return out


def _fake(
    query: Tensor, keys: Tensor, key_scales: Tensor | None, values: Tensor | None, value_scales: Tensor | None,
    tables: Tensor, lengths: Tensor, format: str, columns: int, scale: float, window: int,
) -> Tensor:  # fmt: skip
    return query.new_empty(*query.shape[:2], columns)


_library.impl("paged_attention", _plain, "CPU")
_library.impl("paged_attention", _cuda, "CUDA")
registry.register_fake("octavo_lab::paged_attention", _fake, lib=_library)
