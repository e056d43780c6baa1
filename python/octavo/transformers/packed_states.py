"""Keys or values of one layer of attention in memory: packed tokens, and behind them the newest ones in float."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from octavo.ops.codec import decode, encode, quantize
from octavo.tensors.formats import Format
from octavo.tensors.packed_tensor import PackedTensor, Parts


class PackedStates:
    """States ``[batch, heads, tokens, width]``; every vector of ``width`` elements is encoded by itself.

    So a token can be added, taken away or moved to another row of the batch, and no other token's codes change. Where
    ``residual`` is above 0, so many of the newest tokens stay as they were given until others follow them.
    """

    def __init__(self, like: Tensor, format: Format, scale: str, residual: int) -> None:
        """Hold no token yet, of the batch, heads, width, dtype and device of ``like``."""
        self.format, self.scale, self.residual = format, scale, residual
        self.dtype, self.width = like.dtype, like.shape[-1]
        self.parts: Parts = self._encoded(like[:, :, :0])
        self.tail = like[:, :, :0].detach().clone()

    def _encoded(self, states: Tensor) -> Parts:
        return encode(states, self.format, scale=self.scale).parts

    @property
    def packed_tokens(self) -> int:
        """Number of tokens that are packed."""
        return self.parts[0].shape[2]

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return self.packed_tokens + self.tail.shape[2]

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(part.nbytes for part in (*self.parts, self.tail))

    @property
    def float_nbytes(self) -> int:
        """Bytes of the same states in the dtype in which they came."""
        batch, heads = self.tail.shape[:2]
        return batch * heads * self.tokens * self.width * self.dtype.itemsize

    def extended(self, states: Tensor) -> Tensor:
        """Add tokens; return all of them as attention sees them.

        Gradients pass through the rounding of the tokens that are added, as through :func:`octavo.quantize`.
        """
        states = torch.cat([self.tail, states], dim=2) if self.tail.shape[2] else states
        leaving = max(states.shape[2] - self.residual, 0)
        older, newest = states[:, :, :leaving], states[:, :, leaving:]
        before = self.parts
        if leaving:
            pairs = zip(before, self._encoded(older), strict=True)
            self.parts = _of_four([torch.cat(pair, dim=2) if pair[0].ndim > 1 else pair[0] for pair in pairs])
        self.tail = newest.detach().clone()
        if torch.is_grad_enabled() and states.requires_grad:
            rounded = quantize(older, self.format, scale=self.scale)
            return torch.cat([self._decoded(before), rounded, newest], dim=2)
        return self._all()

    def decoded(self) -> Tensor:
        """Return all tokens as attention sees them."""
        return self._all()

    def _all(self) -> Tensor:
        packed = self._decoded(self.parts)
        return torch.cat([packed, self.tail], dim=2) if self.tail.shape[2] else packed

    def _decoded(self, parts: Parts) -> Tensor:
        shape = (*parts[0].shape[:3], self.width)
        return decode(PackedTensor(self.format, *parts, shape=shape, dtype=self.dtype, scale=self.scale))

    def keep(self, first: int, last: int) -> None:
        """Keep the tokens from ``first`` up to ``last``, and release the memory of the others."""
        packed = self.packed_tokens
        if first > 0 or last < packed:
            self._each(lambda part: part[:, :, first:last].clone(), tail=False)
        if first > packed or last < packed + self.tail.shape[2]:
            self.tail = self.tail[:, :, max(first - packed, 0) : max(last - packed, 0)].clone()

    def select(self, rows: Tensor) -> None:
        """Put the rows of the batch in another order; a row may come more than once, or not at all."""
        self._each(lambda part: part[rows.to(part.device)])

    def repeat(self, times: int) -> None:
        """Repeat every row of the batch."""
        self._each(lambda part: part.repeat_interleave(times, dim=0))

    def move(self, device: torch.device | str) -> None:
        """Move to another device."""
        self.parts = _of_four([part.to(device, non_blocking=True) for part in self.parts])
        self.tail = self.tail.to(device, non_blocking=True)

    def _each(self, change: Callable[[Tensor], Tensor], tail: bool = True) -> None:
        self.parts = _of_four([change(part) if part.ndim > 1 else part for part in self.parts])
        if tail:
            self.tail = change(self.tail)


def _of_four(parts: list[Tensor]) -> Parts:
    codes, scales, zeros, levels = parts
    return codes, scales, zeros, levels
