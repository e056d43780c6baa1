"""Rows that decoding keeps and adds to: keys, values, latents, numbers of documents."""

from __future__ import annotations

import torch
from torch import Tensor

_LEAST = 64


class GrowingRows:
    """Rows along an axis of a tensor, ``rows``, behind which there is room for more.

    Room is doubled when it is full, so that adding rows one by one copies each of them once or twice in all, not every
    time. What a holder sees never changes: the first to add rows takes the room behind, another gets a copy.
    """

    def __init__(self, rows: Tensor, axis: int) -> None:
        """Take rows without room behind them."""
        self.rows, self._axis = rows, axis
        self._room, self._taken = rows, [rows.shape[axis]]

    def followed_by(self, more: Tensor) -> GrowingRows:
        """Return these rows and ``more``, in the wider dtype of both."""
        axis, length, added = self._axis, self.rows.shape[self._axis], more.shape[self._axis]
        if torch.is_grad_enabled() and (more.requires_grad or self.rows.requires_grad):
            return GrowingRows(torch.cat([self.rows, more], axis), axis)  # a backward pass reads what was there before
        room, taken = self._room, self._taken
        dtype = torch.promote_types(room.dtype, more.dtype)
        frozen = room.is_inference() and not torch.is_inference_mode_enabled()  # PyTorch refuses to write there
        if frozen or room.dtype != dtype or taken[0] != length or room.shape[axis] < length + added:
            shape = list(room.shape)
            shape[axis] = max(2 * length, length + added, _LEAST)
            room, taken = room.new_empty(shape, dtype=dtype), [length]
            room.narrow(axis, 0, length).copy_(self.rows)
        room.narrow(axis, length, added).copy_(more)
        taken[0] = length + added
        found = GrowingRows(room.narrow(axis, 0, length + added), axis)
        found._room, found._taken = room, taken
        return found
