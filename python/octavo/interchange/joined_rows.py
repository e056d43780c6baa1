"""Packed matrices whose rows follow each other, as one packed matrix."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from octavo.tensors.packed_tensor import PackedTensor


def joined_rows(tensors: Sequence[PackedTensor]) -> PackedTensor | str:
    """Return the rows of packed matrices behind each other, or why they are not one packed matrix."""
    first = tensors[0]
    if len(tensors) == 1:
        return first
    fmt = first.format
    if any(one.format != fmt or one.shape[1] != first.shape[1] for one in tensors):
        return "the model joins weights of different formats to one"
    if fmt.granularity == "tensor" or any(not torch.equal(one.levels, first.levels) for one in tensors):
        return "the model joins weights with scales of their own to one"
    codes = torch.cat([one.codes for one in tensors])
    scales = first.scales if fmt.granularity == "none" else torch.cat([one.scales for one in tensors])
    zeros = torch.cat([one.zeros for one in tensors]) if fmt.core.has_zeros else first.zeros
    shape = (len(codes), first.shape[1])
    return PackedTensor(fmt, codes, scales, zeros, first.levels, shape=shape, dtype=first.dtype)
