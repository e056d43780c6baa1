"""The codec ops for CUDA tensors: torch allocates and moves axes, kernels of ``rust/cuda`` compute, to the CPU's bits.

Work goes to the current stream of the tensor's device, read at every call. Nothing waits for the device but
``encode(nonfinite="error")``, which reads back what it found; the other policies can be captured into a CUDA graph once
their kernels are loaded (``octavo.cuda.device.warmup``). Given scales are not looked at: a NaN among them gives NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from octavo import _core
from octavo.errors import CudaError, NonFiniteError
from octavo.ops._checks import (
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
from octavo.tensors.packed_tensor import Parts, part_specs
from octavo.tensors.tensor_memory import check_held

Memory: TypeAlias = tuple[int, int]
"""Address and bytes of a tensor."""

FIRST_NONE = 2**63 - 1
"""What the word for the first value that is not finite holds where there is none."""


class Rows(NamedTuple):
    """A tensor as kernels take it: its values as rows along the last dimension, and how long those are."""

    values: Tensor
    code: int
    number: int
    k: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Dtype code, number and length of the rows."""
        return self.code, self.number, self.k


def memory(tensor: Tensor) -> Memory:
    """Return address and bytes of a contiguous tensor."""
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()


def _memories(parts: Sequence[Tensor]) -> tuple[Memory, Memory, Memory, Memory]:
    codes, scales, zeros, levels = parts
    return memory(codes), memory(scales), memory(zeros), memory(levels)


def place(device: torch.device) -> tuple[int, int]:
    """Return the number of a device and the handle of its current stream."""
    return device.index, torch._C._cuda_getCurrentRawStream(device.index)


def _rows(x: Tensor, axis: int, what: str) -> Rows:
    """Return ``x`` with the axis moved last. Raises DTypeError."""
    check_held(x, what)
    moved = x.movedim(axis, -1) if x.ndim > 1 else x
    values, code = readable(moved, what)
    k = moved.shape[-1] if moved.ndim else 1
    return Rows(values, code, math.prod(moved.shape[:-1]), k)


def _back(rows: Tensor, axis: int) -> Tensor:
    """Return rows as a contiguous tensor with the axis where it was."""
    return rows.movedim(-1, axis).contiguous() if rows.ndim > 1 else rows


@lru_cache(maxsize=4096)
def _scratch_size(format: _core.Format, rows: int, k: int) -> tuple[int, bool]:
    return _core._cuda_scratch(format, rows, k)


def _scratch(format: _core.Format, x: Rows) -> Tensor:
    """Return memory for choosing scales; kept alive by the stream's order once the call is made."""
    nbytes, zero = _scratch_size(format, x.number, x.k)
    make = torch.zeros if zero else torch.empty
    return make(nbytes, dtype=torch.uint8, device=x.values.device)


def _given(
    format: _core.Format, x: Tensor, axis: int, scales: Tensor | None, zeros: Tensor | None, levels: Tensor | None
) -> tuple[tuple[Memory, Memory, Memory, Memory] | None, Sequence[Tensor]]:
    """Given parts as the boundary takes them, and the tensors that keep them alive."""
    _, keep = given_parts(format, tuple(x.shape), axis, scales, zeros, levels, x.device)
    if not keep:
        return None, ()
    none = (0, 0)
    zero_part = memory(keep[1]) if format.has_zeros else none
    return (none, memory(keep[0]), zero_part, memory(keep[-1]) if format.has_levels else none), keep


def _quantize(
    x: Tensor, format: str, axis: int = -1, rule: str = "floor", scales: Tensor | None = None,
    zeros: Tensor | None = None, levels: Tensor | None = None, ste: str = "clipped",
) -> Tensor:  # fmt: skip
    check_ste(ste)
    if forward_ad._current_level >= 0:  # quantize has them in its derivative
        refuse_tangents("quantize_plain", "call quantize", x, scales)
    fmt = core(format)
    part_specs(fmt, tuple(x.shape), axis)
    rows = _rows(x, axis, f"quantize to '{format}': x")
    out = torch.empty_like(rows.values)
    _quantize_rows(fmt, x, rows, out, axis, rule, scales, zeros, levels)
    return _back(out, axis)


def _quantize_rows(
    fmt: _core.Format, x: Tensor, rows: Rows, out: Tensor, axis: int, rule: str, scales: Tensor | None,
    zeros: Tensor | None, levels: Tensor | None,
) -> None:  # fmt: skip
    given, _keep = _given(fmt, x, axis, scales, zeros, levels)
    scratch = _scratch(fmt, rows)
    _core._cuda_quantize(
        fmt, place(x.device), rows.shape, memory(rows.values), memory(out), given, memory(scratch), rule
    )


def _quantize_out(
    x: Tensor, format: str, axis: int = -1, rule: str = "floor", scales: Tensor | None = None,
    zeros: Tensor | None = None, levels: Tensor | None = None, *, out: Tensor,
) -> None:  # fmt: skip
    check_quantize_out(x, scales, zeros, levels, out)
    fmt = core(format)
    part_specs(fmt, tuple(x.shape), axis)
    rows = _rows(x, axis, f"quantize to '{format}': x")
    last = x.ndim <= 1 or axis % x.ndim == x.ndim - 1
    target = out if last else torch.empty_like(rows.values)
    _quantize_rows(fmt, x, rows, target, axis, rule, scales, zeros, levels)
    if not last:
        out.copy_(target.movedim(-1, axis))
    increment_version(out)  # written behind autograd's back


def _quantize_backward(
    grad: Tensor, x: Tensor, format: str, axis: int = -1, rule: str = "floor", scales: Tensor | None = None,
    zeros: Tensor | None = None, levels: Tensor | None = None, learn: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    fmt = core(format)
    check_gradient(grad, x, format, scales, learn)
    check_held(grad, f"gradient of quantize to '{format}': grad")
    part_specs(fmt, tuple(x.shape), axis)
    rows = _rows(x, axis, f"gradient of quantize to '{format}': x")
    grads = _rows(grad.to(x.dtype), axis, "grad").values
    out = torch.empty_like(rows.values)
    given, keep = _given(fmt, x, axis, scales, zeros, levels)
    scale_grad = torch.zeros(keep[0].shape if learn else 0, dtype=torch.float32, device=x.device)
    scratch = _scratch(fmt, rows)
    _core._cuda_quantize_backward(
        fmt, place(x.device), rows.shape, memory(grads), memory(rows.values), memory(out), given, memory(scratch), rule,
        memory(scale_grad) if learn else (0, 0),
    )  # fmt: skip
    if learn and scales is not None:
        scale_grad = scale_grad.view(scales.shape).to(scales.dtype)
    return _back(out, axis), scale_grad


def _encode(
    x: Tensor, format: str, axis: int = -1, rule: str = "floor", scales: Tensor | None = None,
    zeros: Tensor | None = None, levels: Tensor | None = None, nonfinite: str = "error",
) -> Parts:  # fmt: skip
    specs = part_specs(core(format), tuple(x.shape), axis)
    made = [torch.empty(shape, dtype=dtype, device=x.device) for _, dtype, shape in specs]
    parts = (made[0], made[1], made[2], made[3])
    _encode_into(x, format, axis, rule, scales, zeros, levels, nonfinite, parts)
    return parts


def _encode_out(
    x: Tensor, format: str, axis: int = -1, rule: str = "floor", scales: Tensor | None = None,
    zeros: Tensor | None = None, levels: Tensor | None = None, nonfinite: str = "error", *, codes_out: Tensor,
    scales_out: Tensor, zeros_out: Tensor, levels_out: Tensor,
) -> None:  # fmt: skip
    parts = (codes_out, scales_out, zeros_out, levels_out)
    scales, zeros, levels = check_encode_out(x, core(format), axis, (scales, zeros, levels), parts)
    _encode_into(x, format, axis, rule, scales, zeros, levels, nonfinite, parts)
    increment_version(parts)


def _encode_into(
    x: Tensor, format: str, axis: int, rule: str, scales: Tensor | None, zeros: Tensor | None, levels: Tensor | None,
    nonfinite: str, parts: Parts,
) -> None:  # fmt: skip
    if forward_ad._current_level >= 0:
        refuse_tangents("encode", "codes have none; call quantize", x, scales)
    fmt = core(format)
    rows = _rows(x, axis, f"encode to '{format}': x")
    given, keep = _given(fmt, x, axis, scales, zeros, levels)
    if given is not None:
        names = [1] + [2] * fmt.has_zeros + [3] * fmt.has_levels
        for index, value in zip(names, keep, strict=True):
            parts[index].copy_(value.view(parts[index].shape))
    if x.numel() == 0:
        for part in parts if given is None else ():
            part.zero_()
        return
    first = None
    if nonfinite == "error":
        if torch.cuda.is_current_stream_capturing():
            raise CudaError(
                f"encode to '{format}': nonfinite='error' reads back what it found, which a stream that is captured "
                "into a graph does not allow; pass nonfinite='saturate' or 'nan'"
            )
        first = torch.full((1,), FIRST_NONE, dtype=torch.int64, device=x.device)
    _core._cuda_encode(
        fmt, place(x.device), rows.shape, memory(rows.values), _memories(parts),
        memory(_scratch(fmt, rows)), rule, nonfinite, given is not None, 0 if first is None else first.data_ptr(),
    )  # fmt: skip
    if first is not None and int(first) != FIRST_NONE:
        _refuse(x, format)


def _refuse(x: Tensor, format: str) -> None:
    """Raise NonFiniteError with the first value that is not finite, counted in the caller's order."""
    flat = x.flatten()
    position = int((~torch.isfinite(flat)).nonzero()[0])
    value = {"nan": "NaN"}.get(text := str(float(flat[position])), text)
    raise NonFiniteError(
        f"'{core(format)}': value {value} at flat position {position}; encode takes finite values only "
        '(nonfinite="saturate" maps inf to the largest value and NaN to 0)'
    )


def _decode(
    codes: Tensor, scales: Tensor, zeros: Tensor, levels: Tensor, format: str, shape: Sequence[int], axis: int,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    return _back(_decode_rows(codes, scales, zeros, levels, format, shape, axis, dtype, None), axis)


def _decode_out(
    codes: Tensor, scales: Tensor, zeros: Tensor, levels: Tensor, format: str, shape: Sequence[int], axis: int, *,
    out: Tensor,
) -> None:  # fmt: skip
    check_decode_out((codes, scales, zeros, levels), tuple(shape), out)
    last = len(shape) <= 1 or axis % len(shape) == len(shape) - 1
    rows = _decode_rows(codes, scales, zeros, levels, format, shape, axis, out.dtype, out if last else None)
    if not last:
        out.copy_(rows.movedim(-1, axis))
    increment_version(out)


def _decode_rows(
    codes: Tensor, scales: Tensor, zeros: Tensor, levels: Tensor, format: str, shape: Sequence[int], axis: int,
    dtype: torch.dtype, out: Tensor | None,
) -> Tensor:  # fmt: skip
    if forward_ad._current_level >= 0:
        refuse_tangents("decode", "parts of packed tensors are constants", scales, levels)
    fmt = core(format)
    code = float_code(dtype, format)
    wanted = part_specs(fmt, tuple(shape), axis)
    parts = [
        stored(part, dtype_of, part_shape, f"'{format}': {name}", codes.device)
        for part, (name, dtype_of, part_shape) in zip((codes, scales, zeros, levels), wanted, strict=True)
    ]
    lead = list(shape)
    k = lead.pop(axis) if lead else 1
    if out is None:
        out = torch.empty([*lead, k] if shape else [], dtype=dtype, device=codes.device)
    where, sizes = place(codes.device), (code, math.prod(lead), k)
    _core._cuda_decode(fmt, where, sizes, _memories(parts), memory(out))
    return out


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
"""Kernels of the codec ops for the dispatch key CUDA."""
