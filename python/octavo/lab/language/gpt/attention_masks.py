"""Which positions may see which: causal order, windows, documents; dense masks, and the product that uses them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from octavo.lab.language.gpt.mixing_context import MixingContext


def visible(
    queries_T: Tensor,
    keys_S: Tensor,
    *,
    window: int | None = None,
    query_documents_BT: Tensor | None = None,
    key_documents_BS: Tensor | None = None,
) -> Tensor:
    """Return whether a query at each position may see each key, bool ``[T, S]`` or ``[B, 1, T, S]`` with documents.

    A key is seen if it is not later, fewer than ``window`` positions back, and of the same document. Every query sees
    itself, so that no row is empty.
    """
    back_TS = queries_T[:, None] - keys_S
    seen = back_TS >= 0
    if window is not None:
        seen &= back_TS < window
    if query_documents_BT is None or key_documents_BS is None:
        return seen
    return (seen & (query_documents_BT[:, :, None] == key_documents_BS[:, None, :]))[:, None]


def causal_product(
    query_BHTd: Tensor,
    key_BKTd: Tensor,
    value_BKTd: Tensor,
    context: MixingContext,
    *,
    window: int | None,
    scale: float | None = None,
) -> Tensor:
    """Return attention over the earlier positions of one sequence: ``[B, H, T, d]``.

    One fused call in every case; with neither window nor documents it is told that it is causal, and no mask is built.
    ``K`` heads of keys and values serve ``H / K`` heads of queries each, neighbours together.
    """
    grouped = key_BKTd.shape[1] != query_BHTd.shape[1]
    if context.seen_TS is not None:
        return functional.scaled_dot_product_attention(
            query_BHTd, key_BKTd, value_BKTd, attn_mask=context.seen_TS, scale=scale, enable_gqa=grouped
        )
    length = query_BHTd.shape[2]
    if context.documents_BT is None and (window is None or (context.in_a_row and window >= length)):
        return functional.scaled_dot_product_attention(
            query_BHTd, key_BKTd, value_BKTd, is_causal=True, scale=scale, enable_gqa=grouped
        )
    places = torch.arange(length, device=query_BHTd.device) if context.in_a_row else context.positions_T
    mask = visible(
        places,
        places,
        window=window,
        query_documents_BT=context.documents_BT,
        key_documents_BS=context.documents_BT,
    )
    return functional.scaled_dot_product_attention(
        query_BHTd, key_BKTd, value_BKTd, attn_mask=mask, scale=scale, enable_gqa=grouped
    )


def step_product(
    query_BH1d: Tensor, key_BKSd: Tensor, value_BKSd: Tensor, mask: Tensor | None, *, scale: float | None = None
) -> Tensor:
    """Return attention of one position to cached rows: ``[B, H, 1, d]``.

    Queries that share keys become rows of one product, so that a cached row is read once for all of them. ``mask``:
    ``[1, S]``, or with a head's axis ``[..., H or 1, 1, S]``; bool or added to scores; None for all rows.
    """
    heads, groups = query_BH1d.shape[1], key_BKSd.shape[1]
    rows_BKGd = query_BH1d[:, :, 0].unflatten(1, (groups, heads // groups))
    if mask is not None and mask.ndim > 2 and mask.shape[-3] == heads:
        mask = mask[..., 0, :].unflatten(-2, (groups, heads // groups))
    mixed_BKGd = functional.scaled_dot_product_attention(rows_BKGd, key_BKSd, value_BKSd, attn_mask=mask, scale=scale)
    return mixed_BKGd.flatten(1, 2)[:, :, None]
