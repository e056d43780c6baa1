"""Unsigned integers with a scale and a zero point for each group of a row, of GPTQ and AWQ, in our formats."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.errors import FormatError
from octavo.interchange.packed_words import pack_codes, unpack_codes
from octavo.interchange.stored_weights import NotHeldError
from octavo.tensors.formats import Format
from octavo.tensors.packed_tensor import PackedTensor

_CHUNK = 1 << 20  # elements that are decoded at once


@dataclass(frozen=True)
class IntegerGroups:
    """A matrix ``(q - z) * scale``.

    ``stream``: code streams of its rows. ``zeros``: int16 ``[rows, groups]``, up to ``2**bits``. ``scales``: floats
    beside them. ``group``: columns of a group; None for a scale of each row. ``order``: groups of the columns where
    they are not those beside each other.
    """

    stream: Tensor
    bits: int
    shape: tuple[int, int]
    scales: Tensor
    zeros: Tensor
    group: int | None
    order: Tensor | None = None

    def packed(self, dtype: torch.dtype) -> PackedTensor:
        """Return the matrix in a format of ours, with the same codes, scales and zero points.

        Where a zero point is ``2**bits``, which no code of it is, the codes are those less their zero points, with a
        bit more. Raises NotHeldError.
        """
        if self.order is not None:
            raise NotHeldError("g_idx has groups of other columns than those beside each other")
        scales = self._held_scales(dtype)
        size = ":channel" if self.group is None else f":g{self.group}"
        is_wide = bool((self.zeros >> self.bits).any())
        text = f"int{self.bits + 1}{size}" if is_wide else f"uint{self.bits}{size}"
        try:
            fmt = Format(text)
        except FormatError as error:
            raise NotHeldError(f"no format has its groups: {error}") from None
        if fmt.scale_type == "float16":
            halves = scales.half()
            if not torch.equal(halves.float(), scales.float()):
                raise NotHeldError(f"scales of groups are float16 here, and among these are others ({scales.dtype})")
            scales = halves
        else:
            scales = scales.float()
        nothing = torch.empty(0, dtype=torch.float32)
        if is_wide:
            mask = (2 << self.bits) - 1
            stream = torch.cat([pack_codes(self._numbers(rows) & mask, self.bits + 1) for rows in self._chunks()])
            zeros = torch.empty(0, dtype=torch.uint8)
        else:
            stream, zeros = self.stream, pack_codes(self.zeros, self.bits)
        return PackedTensor(
            fmt, stream.contiguous(), scales.contiguous(), zeros, nothing, shape=self.shape, dtype=dtype
        )

    def decoded(self) -> Tensor:
        """Return the values in the dtype of the scales."""
        out = torch.empty(self.shape, dtype=self.scales.dtype)
        for rows in self._chunks():
            out[rows] = self._numbers(rows).to(out.dtype) * self._along(self.scales[rows])
        return out

    def _held_scales(self, dtype: torch.dtype) -> Tensor:
        for wrong, sign in ((~self.scales.isfinite(), ""), (self.scales.signbit(), ", which has a sign")):
            if wrong.any():
                row, group = (int(one) for one in wrong.nonzero()[0])
                raise NotHeldError(f"row {row}, group {group}: scale {self.scales[row, group].item()}{sign}")
        most = float(self.scales.max()) * (1 << self.bits) if self.scales.numel() else 0.0
        if dtype == torch.float16 and most > torch.finfo(dtype).max:
            raise NotHeldError("values beyond those of float16")
        return self.scales

    def _numbers(self, rows: slice) -> Tensor:
        """Return codes less their zero points, int16."""
        codes = unpack_codes(self.stream[rows], self.shape[1], self.bits)
        return codes.to(torch.int16) - self._along(self.zeros[rows])

    def _along(self, values: Tensor) -> Tensor:
        """Return what groups have as what columns have."""
        if self.order is not None:
            return values[:, self.order]
        return values if self.group is None else values.repeat_interleave(self.group, 1)[:, : self.shape[1]]

    def _chunks(self) -> list[slice]:
        step = max(_CHUNK // max(self.shape[1], 1), 1)
        return [slice(first, first + step) for first in range(0, max(self.shape[0], 1), step)]
