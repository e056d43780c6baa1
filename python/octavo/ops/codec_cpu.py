"""The codec ops for CPU tensors: Python checks and allocates, Rust computes on addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from octavo import _core
from octavo.ops._checks import (
    NONE_GIVEN,
    check_decode_out,
    check_encode_out,
    check_gradient,
    check_quantize_out,
    check_ste,
    float_code,
    given_parts,
    readable,
    stored,
)
from octavo.ops._derivatives import refuse_tangents
from octavo.tensors.formats import core
from octavo.tensors.fresh import empty
from octavo.tensors.packed_tensor import Parts, part_specs

ENCODE_ADVICE = "codes have none; octavo.quantize has the same values and passes derivatives through"
DECODE_ADVICE = "parts of packed tensors are constants"


def _quantize(
    x: Tensor, format: str, axis: int = -1, rule: str = "floor", scales: Tensor | None = None,
    zeros: Tensor | None = None, levels: Tensor | None = None, ste: str = "clipped",
) -> Tensor:  # fmt: skip
    if ste != "clipped":
        check_ste(ste)
    if forward_ad._current_level >= 0:  # quantize has them in its derivative
        refuse_tangents("quantize_plain", "call quantize", x, scales)
    x, code = readable(x, f"quantize to '{format}': x")
    out = empty(x.shape, x.dtype)
    _quantize_into(x, code, format, axis, rule, scales, zeros, levels, out)
    return out


def quantized(x: Tensor, format: str, axis: int, rule: str, look: bool) -> tuple[Tensor, bool]:
    """``quantize``, and whether a value is NaN; False where nobody wants to know (``look``)."""
    x, code = readable(x, f"quantize to '{format}': x")
    out = empty(x.shape, x.dtype)
    return out, _core._quantize(core(format), code, x.shape, axis, x.data_ptr(), out.data_ptr(), rule, None, look)


def quantized_with_marks(
    x: Tensor, format: str, axis: int, rule: str, given: tuple[Tensor | None, Tensor | None, Tensor | None], marks: int
) -> tuple[Tensor, Tensor]:
    """``quantize``, and one bit a value, ``marks`` bytes: whether it lies inside the range of its group."""
    x, code = readable(x, f"quantize to '{format}': x")
    fmt, out, bits = core(format), empty(x.shape, x.dtype), torch.empty(marks, dtype=torch.uint8)
    scales, zeros, levels = given
    parts, _keep = given_parts(fmt, tuple(x.shape), axis, scales, zeros, levels)
    _core._quantize(fmt, code, x.shape, axis, x.data_ptr(), out.data_ptr(), rule, parts, False, bits.data_ptr())
    return out, bits


def _quantize_out(
    x: Tensor, format: str, axis: int = -1, rule: str = "floor", scales: Tensor | None = None,
    zeros: Tensor | None = None, levels: Tensor | None = None, *, out: Tensor,
) -> None:  # fmt: skip
    check_quantize_out(x, scales, zeros, levels, out)
    x, code = readable(x, f"quantize to '{format}': x")
    _quantize_into(x, code, format, axis, rule, scales, zeros, levels, out)
    increment_version(out)  # written behind autograd's back


def _quantize_into(
    x: Tensor, code: int, format: str, axis: int, rule: str, scales: Tensor | None, zeros: Tensor | None,
    levels: Tensor | None, out: Tensor,
) -> None:  # fmt: skip
    fmt = core(format)
    given, _keep = NONE_GIVEN
    if scales is not None or zeros is not None or levels is not None:
        given, _keep = given_parts(fmt, tuple(x.shape), axis, scales, zeros, levels)
    _core._quantize(fmt, code, x.shape, axis, x.data_ptr(), out.data_ptr(), rule, given)


def _quantize_backward(
    grad: Tensor, x: Tensor, format: str, axis: int = -1, rule: str = "floor", scales: Tensor | None = None,
    zeros: Tensor | None = None, levels: Tensor | None = None, learn: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    fmt = core(format)
    check_gradient(grad, x, format, scales, learn)
    x, code = readable(x, f"gradient of quantize to '{format}': x")
    grad, _ = readable(grad, f"gradient of quantize to '{format}': grad")
    grad, _ = readable(grad.to(x.dtype), "grad")
    out = empty(x.shape, x.dtype)
    given, keep = given_parts(fmt, tuple(x.shape), axis, scales, zeros, levels)
    scale_grad = torch.zeros(keep[0].shape if learn else 0, dtype=torch.float32)
    address = scale_grad.data_ptr() if learn else 0
    _core._quantize_backward(
        fmt, code, x.shape, axis, grad.data_ptr(), x.data_ptr(), out.data_ptr(), rule, given, address
    )
    if learn and scales is not None:
        scale_grad = scale_grad.view(scales.shape).to(scales.dtype)
    return out, scale_grad


def _encode(
    x: Tensor, format: str, axis: int = -1, rule: str = "floor", scales: Tensor | None = None,
    zeros: Tensor | None = None, levels: Tensor | None = None, nonfinite: str = "error",
) -> Parts:  # fmt: skip
    x, code = readable(x, f"encode to '{format}': x")
    fmt = core(format)
    made = [empty(shape, dtype) for _, dtype, shape in part_specs(fmt, tuple(x.shape), axis)]
    parts = (made[0], made[1], made[2], made[3])
    _encode_into(x, code, fmt, axis, rule, scales, zeros, levels, nonfinite, parts)
    return parts


def _encode_out(
    x: Tensor, format: str, axis: int = -1, rule: str = "floor", scales: Tensor | None = None,
    zeros: Tensor | None = None, levels: Tensor | None = None, nonfinite: str = "error", *, codes_out: Tensor,
    scales_out: Tensor, zeros_out: Tensor, levels_out: Tensor,
) -> None:  # fmt: skip
    parts = (codes_out, scales_out, zeros_out, levels_out)
    x, code = readable(x, f"encode to '{format}': x")
    fmt = core(format)
    scales, zeros, levels = check_encode_out(x, fmt, axis, (scales, zeros, levels), parts)
    _encode_into(x, code, fmt, axis, rule, scales, zeros, levels, nonfinite, parts)
    increment_version(parts)


def _encode_into(
    x: Tensor, code: int, fmt: _core.Format, axis: int, rule: str, scales: Tensor | None, zeros: Tensor | None,
    levels: Tensor | None, nonfinite: str, parts: Parts,
) -> None:  # fmt: skip
    if forward_ad._current_level >= 0:
        refuse_tangents("encode", ENCODE_ADVICE, x, scales)
    given, _keep = NONE_GIVEN
    if scales is not None or zeros is not None or levels is not None:
        given, _keep = given_parts(fmt, tuple(x.shape), axis, scales, zeros, levels)
    codes_at, scales_at, zeros_at, levels_at = [part.data_ptr() for part in parts]
    addresses = (codes_at, scales_at, zeros_at, levels_at)
    _core._encode(fmt, code, x.shape, axis, x.data_ptr(), addresses, rule, nonfinite, given)


def _decode(
    codes: Tensor, scales: Tensor, zeros: Tensor, levels: Tensor, format: str, shape: Sequence[int], axis: int,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    fmt = core(format)
    code = float_code(dtype, format)
    addresses, _keep = _encoded_parts((codes, scales, zeros, levels), fmt, tuple(shape), axis)
    out = empty(shape, dtype)
    _core._decode(fmt, code, shape, axis, addresses, out.data_ptr())
    return out


def _decode_out(
    codes: Tensor, scales: Tensor, zeros: Tensor, levels: Tensor, format: str, shape: Sequence[int], axis: int, *,
    out: Tensor,
) -> None:  # fmt: skip
    fmt = core(format)
    code = float_code(out.dtype, format)
    check_decode_out((codes, scales, zeros, levels), tuple(shape), out)
    addresses, _keep = _encoded_parts((codes, scales, zeros, levels), fmt, tuple(shape), axis)
    _core._decode(fmt, code, shape, axis, addresses, out.data_ptr())
    increment_version(out)


def _encoded_parts(
    parts: Parts, fmt: _core.Format, shape: tuple[int, ...], axis: int
) -> tuple[tuple[int, int, int, int], list[Tensor]]:
    """Addresses of the parts, and the tensors that keep them alive."""
    if forward_ad._current_level >= 0:
        refuse_tangents("decode", DECODE_ADVICE, *parts)
    kept = [
        part
        if part.dtype == dtype
        and part.shape == part_shape
        and part.is_contiguous()
        and part.untyped_storage().nbytes() >= part.storage_offset() * dtype.itemsize + part.nbytes
        else stored(part, dtype, part_shape, f"'{fmt}': {name}")
        for part, (name, dtype, part_shape) in zip(parts, part_specs(fmt, shape, axis), strict=True)
    ]
    return (kept[0].data_ptr(), kept[1].data_ptr(), kept[2].data_ptr(), kept[3].data_ptr()), kept


OPS: dict[str, Callable[..., Any]] = {
    "quantize": _quantize,
    "quantize_plain": _quantize,
    "quantize_out": _quantize_out,
    "quantize_backward": _quantize_backward,
    "encode": _encode,
    "encode_out": _encode_out,
    "decode": _decode,
    "decode_out": _decode_out,
}
"""Kernels of the ops of ``codec.py`` for the dispatch key CPU."""
