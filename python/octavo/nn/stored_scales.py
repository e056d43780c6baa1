"""Scales and zero points in the form they are stored in, from the forms people give them in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from octavo import _core
from octavo.errors import DTypeError, ShapeError
from octavo.tensors.packed_tensor import SCALE_DTYPES


def format_bytes(text: str) -> Tensor:
    """Return the text of a format as state dicts hold it: bytes, uint8."""
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def format_text(found: Any) -> str:
    """Return the text of such bytes; of anything else a description, which is no format."""
    if not isinstance(found, Tensor):
        return f"a {type(found).__name__}"
    if found.dtype != torch.uint8 or found.ndim != 1:
        return f"a {found.dtype} tensor of shape {tuple(found.shape)}"
    return bytes(found.tolist()).decode(errors="replace")


def stored_scales(scales: Tensor, core: _core.Format, what: str) -> Tensor:
    """Return scales in their storage dtype, apart from the caller's; fraction bits are rounded to whole ones.

    Raises DTypeError where codes are given for a float scale, or a float for codes.
    """
    scales, dtype = scales.detach(), SCALE_DTYPES[core.scale_type]
    if scales.dtype.is_floating_point and dtype == torch.int8:
        scales = scales.round().clamp(-128, 127)
    elif scales.dtype.is_floating_point != dtype.is_floating_point:
        raise DTypeError(f"{what}: scales have dtype {scales.dtype}; accepted is {dtype}")
    return scales.to(dtype, copy=True).contiguous()


def packed_zeros(zeros: Tensor, scales: Tensor, core: _core.Format, what: str) -> Tensor:
    """Return zero points as the bytes that ops take, from integers shaped like ``scales`` or those bytes.

    Raises ShapeError for other shapes, dtypes and values.
    """
    *lead, per_row = scales.shape
    shape = [*lead, (per_row * core.width + 7) // 8]
    if zeros.dtype == torch.uint8 and list(zeros.shape) == shape:
        return zeros.detach().clone()
    if zeros.shape != scales.shape or zeros.is_floating_point():
        raise ShapeError(
            f"{what}: zeros are {zeros.dtype} of shape {tuple(zeros.shape)}; accepted are integers of shape "
            f"{tuple(scales.shape)}, or packed bytes of shape {tuple(shape)}"
        )
    top = 2**core.width - 1
    if zeros.numel() and not 0 <= int(zeros.min()) <= int(zeros.max()) <= top:
        raise ShapeError(f"{what}: zeros lie in {int(zeros.min())}..{int(zeros.max())}, accepted are 0..{top}")
    codes = zeros.detach().to("cpu", torch.int32).contiguous()
    out = torch.empty(shape, dtype=torch.uint8)
    _core._pack(core.width, scales.numel() // max(per_row, 1), per_row, codes.data_ptr(), out.data_ptr())
    return out.to(zeros.device)
