"""Blocks of small floats with E8M0 or E4M3 scales, as packages store them, in our formats and decoded."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.interchange.packed_words import unpack_codes
from octavo.interchange.stored_weights import NotHeldError
from octavo.tensors.formats import Format
from octavo.tensors.packed_tensor import PackedTensor

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_LARGEST = {"mxfp4": 6.0, "mxfp8e4m3": 448.0, "mxfp8e5m2": 57344.0}
_NAN_E4M3, _NAN_E8M0 = 0x7F, 255
_CHUNK = 1 << 20  # elements that are decoded at once


def nvfp4_packed(codes: Tensor, scales: Tensor, factor: Tensor | None, dtype: torch.dtype) -> PackedTensor:
    """Return a matrix of E2M1 codes, the first of two in the low bits, with E4M3 scales of 16 columns, in ``nvfp4``.

    ``factor``: that the package multiplies with; None for 1. Raises NotHeldError.
    """
    steps = scales.contiguous().view(torch.uint8)
    wrong = steps >= _NAN_E4M3
    if wrong.any():
        row, block = (int(one) for one in wrong.nonzero()[0])
        raise NotHeldError(
            f"row {row}, block {block}: scale code {int(steps[row, block])}; without a sign they end at 126"
        )
    level = torch.ones(1) if factor is None else factor.reshape(1).float()
    if not (level.isfinite() and level > 0):
        raise NotHeldError(f"a factor of {level.item()}; accepted are those above 0")
    if steps.numel() and float(steps.view(torch.float8_e4m3fn).float().max() * level) * 6 > torch.finfo(dtype).max:
        raise NotHeldError(f"values beyond those of {str(dtype).removeprefix('torch.')}")
    nothing = torch.empty(0, dtype=torch.uint8)
    shape = (codes.shape[0], 2 * codes.shape[1])
    return PackedTensor(Format("nvfp4"), codes.contiguous(), steps, nothing, level.clone(), shape=shape, dtype=dtype)


def nvfp4_values(codes: Tensor, scales: Tensor, factor: Tensor | None) -> Tensor:
    """Return the values in float32: elements times the products of scales and factor."""
    steps = scales.float() if factor is None else scales.float() * factor.reshape(1).float()
    out = torch.empty(codes.shape[0], 2 * codes.shape[1])
    for rows in chunks(out.shape):
        out[rows] = e2m1_values(codes[rows]) * steps[rows].repeat_interleave(16, 1)
    return out


def mx_packed(text: str, codes: Tensor, scales: Tensor, dtype: torch.dtype, *, columns: int) -> PackedTensor:
    """Return rows of code streams with E8M0 scales of 32 columns in an ``mx`` format. Raises NotHeldError."""
    exponents = scales.contiguous().view(torch.uint8)
    wrong = exponents > _most(text, dtype)
    if wrong.any():
        row, block = (int(one) for one in wrong.nonzero()[0])
        code, kind = int(exponents[row, block]), str(dtype).removeprefix("torch.")
        reason = "NaN" if code == _NAN_E8M0 else f"by which values leave {kind}"
        raise NotHeldError(f"row {row}, block {block}: scale code {code}, {reason}")
    nothing, level = torch.empty(0, dtype=torch.uint8), torch.empty(0, dtype=torch.float32)
    stream = codes.contiguous().view(torch.uint8)
    return PackedTensor(Format(text), stream, exponents, nothing, level, shape=(len(codes), columns), dtype=dtype)


def _most(text: str, dtype: torch.dtype) -> int:
    """Return the largest scale code by which every element is a finite number of a dtype."""
    return min(_NAN_E8M0 - 1, 127 + math.floor(math.log2(torch.finfo(dtype).max / _LARGEST[text])))


def e2m1_values(codes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the values of rows of E2M1 codes, the first of two in the low bits."""
    table = torch.tensor([*_E2M1, *(-one for one in _E2M1)], dtype=dtype)
    return table[unpack_codes(codes.contiguous().view(torch.uint8), 2 * codes.shape[1], 4).int()]


def chunks(shape: Sequence[int]) -> list[slice]:
    """Return slices of the rows of a matrix, of about a million elements each."""
    step = max(_CHUNK // max(shape[1], 1), 1)
    return [slice(first, first + step) for first in range(0, max(shape[0], 1), step)]
