"""What the ops check before any work, on every device."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from octavo import _core
from octavo.errors import DTypeError, NonFiniteError, ShapeError
from octavo.tensor import FLOATS, SCALE_DTYPES, part_specs

CPU = torch.device("cpu")
# Where codecs run; meta tensors have no values.
DEVICES = ("cpu", "cuda")


def readable(x: Tensor, what: str) -> tuple[Tensor, int]:
    """Return ``x`` contiguous and aligned, and its dtype code."""
    code = FLOATS.get(x.dtype)
    if code is None:
        raise DTypeError(f"{what} has dtype {x.dtype}; accepted are float32, float16, bfloat16")
    if not x.is_contiguous():
        x = x.contiguous()
    return (x.clone() if x.data_ptr() % x.element_size() else x), code


def check_out(
    out: Tensor, shape: torch.Size | tuple[int, ...], dtype: torch.dtype, what: str, device: torch.device = CPU
) -> None:
    """Refuse an ``out`` that does not fit or lies elsewhere. Raises ShapeError."""
    if out.dtype == dtype and out.shape == shape and out.is_contiguous() and out.device == device:
        return
    if out.dtype != dtype or tuple(out.shape) != tuple(shape):
        raise ShapeError(
            f"{what} has dtype {out.dtype} and shape {tuple(out.shape)}, expected {dtype} and {tuple(shape)}"
        )
    if not out.is_contiguous() or out.device != device:
        place = "the CPU" if device == CPU else str(device)
        raise ShapeError(f"{what} must be contiguous and on {place}")


def given_parts(
    format: _core.Format, shape: tuple[int, ...], axis: int, scales, zeros, levels, device: torch.device = CPU
):
    """Addresses of given scales in their storage form, and the tensors that keep them alive."""
    if scales is None:
        if zeros is not None or levels is not None:
            raise ShapeError(f"'{format}': zeros and levels are given with scales, not alone")
        return None, ()
    _, (_, _, scale_shape), (_, _, zero_shape), _ = part_specs(format, shape, axis)
    keep = [stored(scales, SCALE_DTYPES[format.scale_type], scale_shape, f"'{format}': scales", device)]
    for tensor, dtype, wanted, there, name in (
        (zeros, torch.uint8, zero_shape, format.has_zeros, "zeros"),
        (levels, torch.float32, [1], format.has_levels, "levels"),
    ):
        if there and tensor is None:
            raise ShapeError(f"'{format}': given scales need {name} too")
        if there:
            keep.append(stored(tensor, dtype, wanted, f"'{format}': {name}", device))
        elif tensor is not None and tensor.numel():
            raise ShapeError(f"'{format}' has no {name}, but {name} were given")
    addresses = [0, keep[0].data_ptr(), 0, 0]
    if format.has_zeros:
        addresses[2] = keep[1].data_ptr()
    if format.has_levels:
        addresses[3] = keep[-1].data_ptr()
    return tuple(addresses), keep


def together(what: str, *tensors: object) -> None:
    """Check that all tensors are on the device of the first, as fakes must: they compute nothing. Raises DTypeError."""
    first, *others = (tensor for tensor in tensors if isinstance(tensor, Tensor))
    for other in others:
        if other.device != first.device:
            raise DTypeError(f"{what}: one operand is on {first.device}, another on {other.device}; move them together")


def stored(tensor: Tensor, dtype: torch.dtype, shape: list[int], what: str, device: torch.device = CPU) -> Tensor:
    """Return a part in its storage form. Raises ShapeError, DTypeError, NonFiniteError."""
    if tensor.device != device:
        raise DTypeError(f"{what} are on {tensor.device}, x is on {device}")
    if tensor.dtype == dtype and tensor.numel() == math.prod(shape) and tensor.is_contiguous():
        return tensor
    if tensor.numel() != math.prod(shape):
        raise ShapeError(f"{what} have shape {tuple(tensor.shape)}, expected {tuple(shape)}")
    if tensor.dtype != dtype:
        if dtype == torch.int8:  # fraction bits may be learned as floats
            if not torch.isfinite(tensor).all():
                raise NonFiniteError(f"{what} are fraction bits and must be finite")
            tensor = tensor.round().clamp(-128, 127)
        elif not dtype.is_floating_point:
            raise DTypeError(f"{what} have dtype {tensor.dtype}, expected {dtype} codes")
    return tensor.detach().to(dtype).contiguous()


def refuse_overlap(x: Tensor, out: Tensor) -> None:
    """Refuse an ``out`` that shares a part of ``x``. Raises ShapeError."""
    start, end = x.data_ptr(), x.data_ptr() + x.numel() * x.element_size()
    if start < out.data_ptr() + out.numel() * out.element_size() and out.data_ptr() < end:
        raise ShapeError("out overlaps x; it may be x itself or lie apart from it")
