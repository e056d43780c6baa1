"""Products with packed weights on CUDA tensors: torch allocates, kernels of ``rust/cuda`` compute.

Up to 64 rows of inputs meet the packed weights themselves: up to 16 rows as int8 limbs where weights are small
integers times scales, else as bfloat16 limbs. More rows are multiplied with weights decoded a panel of rows
at a time, by torch. No dense copy of a weight outlives its panel.

Work goes to the current stream of the tensors' device, read at every call; nothing waits for the device. Hence an input
that is not finite is no error here: it makes its row NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from octavo import _core
from octavo.errors import DTypeError
from octavo.ops._derivatives import refuse_tangents
from octavo.ops._operands import (
    INTEGER_BIASES,
    addresses,
    check_grouped,
    check_lookup,
    checked_bias,
    checked_scales,
    inputs,
    weight_specs,
)
from octavo.ops.codec_cuda import place
from octavo.tensors.formats import core
from octavo.tensors.packed_tensor import FLOATS, Parts
from octavo.tensors.tensor_memory import check_held

PANEL = 1 << 24
"""Weights of a panel that is decoded for torch: 32 MB of bfloat16, which the second cache holds for the product."""


def same_device(x: Tensor, others: tuple[Tensor | None, ...], what: str) -> None:
    """Refuse operands that lie on several devices. Raises DTypeError."""
    for other in others:
        if other is not None and other.numel() and other.device != x.device:
            raise DTypeError(f"{what}: operands are on {x.device} and {other.device}; they must share one device")


def scratch_memory(nbytes: int, device: torch.device) -> tuple[Tensor | None, int]:
    """Return memory for a call, and its address; the order of the stream keeps it until the call is done."""
    if nbytes == 0:
        return None, 0
    memory = torch.empty(nbytes, dtype=torch.uint8, device=device)
    return memory, memory.data_ptr()


@lru_cache(maxsize=4096)
def _packed_scratch(
    fmt: _core.Format, device: int, sizes: tuple[int, int, int], code: int, bias_code: int | None, offset: int
) -> int | None:
    return _core._cuda_packed_linear_scratch(fmt, device, sizes, code, bias_code, offset)


@lru_cache(maxsize=4096)
def _integer_scratch(
    fmt: _core.Format, input_fmt: _core.Format, device: int, sizes: tuple[int, int, int], code: int,
    bias_code: int | None, offset: int,
) -> int:  # fmt: skip
    return _core._cuda_integer_linear_scratch(fmt, input_fmt, device, sizes, code, bias_code, offset)


@lru_cache(maxsize=4096)
def _check_formats(fmt: _core.Format, input_fmt: _core.Format) -> None:
    """Refuse formats that have no integer product. Raises FormatError."""
    _core._linear_kernel(fmt, input_fmt, 1, 1, 1)


def _packed_linear(
    x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor, levels: Tensor, bias: Tensor | None, format: str,
    out_features: int, in_features: int,
) -> Tensor:  # fmt: skip
    if forward_ad._current_level >= 0:  # packed_linear has them in its derivative
        refuse_tangents("packed_linear_plain", "call packed_linear", x, scales, bias)
    parts = (codes, scales, zeros, levels)
    same_device(x, (*parts, bias), "packed_linear")
    fmt, specs = weight_specs(format, out_features, in_features)
    x, code, shape = inputs(x, format, out_features, in_features, "packed_linear")
    where = addresses(parts, specs, format, out_features, in_features)
    added = None
    if bias is not None:
        bias, bias_code = checked_bias(bias, out_features, FLOATS, "packed_linear")
        added = (bias.data_ptr(), bias_code)
    m = math.prod(shape[:-1])
    sizes = (m, out_features, in_features)
    if 0 in sizes:
        empty = x.new_zeros(shape)
        return empty if bias is None else empty + bias.to(x.dtype)
    on = place(x.device)
    nbytes = _packed_scratch(fmt, on[0], sizes, code, None if added is None else added[1], where[0] % 16)
    if nbytes is None:
        return _decoded_linear(x, parts, bias, fmt, format, shape)
    out = x.new_empty(shape)
    _memory, scratch = scratch_memory(nbytes, x.device)
    _core._cuda_packed_linear(fmt, on, sizes, (x.data_ptr(), code), where, added, out.data_ptr(), scratch)
    return out


def _decoded_linear(
    x: Tensor, parts: Parts, bias: Tensor | None, fmt: _core.Format, format: str, shape: list[int]
) -> Tensor:
    """Multiply with decoded weights, a panel of rows at a time."""
    out_features, in_features = shape[-1], x.shape[-1]
    each = max(PANEL // in_features, 128)
    rows, added = x.reshape(-1, in_features), None if bias is None else bias.to(x.dtype)
    out = rows.new_empty(rows.shape[0], out_features)
    for first in range(0, out_features, each):
        panel = slice(first, min(first + each, out_features))
        weight = decoded_panel(parts, fmt, format, panel, in_features, x.dtype)
        product = torch.nn.functional.linear(rows, weight, None if added is None else added[panel])
        if each >= out_features:
            return product.view(shape)
        out[:, panel] = product
    return out.view(shape)


def decoded_panel(
    parts: tuple[Tensor, ...], fmt: _core.Format, format: str, panel: slice, columns: int, dtype: torch.dtype
) -> Tensor:
    """Return decoded rows of a packed matrix."""
    codes, scales, zeros, levels = parts
    own = fmt.granularity in ("channel", "block")  # else all rows share the scales
    pieces = (codes[panel], scales[panel] if own else scales, zeros[panel] if own and fmt.has_zeros else zeros, levels)
    rows: Tensor = torch.ops.octavo.decode.default(*pieces, format, [panel.stop - panel.start, columns], -1, dtype)
    return rows


def _rounded_linear(
    x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor, levels: Tensor, bias: Tensor | None,
    input_scales: Tensor | None, input_zeros: Tensor | None, input_levels: Tensor | None, format: str,
    out_features: int, in_features: int, input_format: str, rule: str,
) -> Tensor:  # fmt: skip
    given = (input_scales, input_zeros, input_levels)
    rounded = torch.ops.octavo.quantize_plain.default(x, input_format, -1, rule, *given)
    return _packed_linear(rounded, codes, scales, zeros, levels, bias, format, out_features, in_features)


def _integer_linear(
    x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None, input_scales: Tensor | None, format: str,
    input_format: str, out_features: int, in_features: int,
) -> Tensor:  # fmt: skip
    if forward_ad._current_level >= 0:  # integer_linear has them in its derivative
        refuse_tangents("integer_linear_plain", "call integer_linear", x, scales, bias, input_scales)
    same_device(x, (codes, scales, bias, input_scales), "integer_linear")
    fmt, specs = weight_specs(format, out_features, in_features)
    x, code, shape = inputs(x, format, out_features, in_features, "integer_linear")
    m = math.prod(shape[:-1])
    sizes, input_fmt = (m, out_features, in_features), core(input_format)
    _check_formats(fmt, input_fmt)
    if input_fmt.granularity == "block":
        check_grouped(bias, input_scales, format, input_format)
        return _rounded_linear(
            x, codes, scales, codes.new_empty(0), scales.new_empty(0), bias, None, None, None, format, out_features,
            in_features, input_format, "floor",
        )  # fmt: skip
    where = addresses((codes, scales), specs[:2], format, out_features, in_features)[:2]
    added, given = None, 0
    if bias is not None:
        bias, bias_code = checked_bias(bias, out_features, INTEGER_BIASES, "integer_linear")
        added = (bias.data_ptr(), bias_code)
    if input_scales is not None:
        input_scales = checked_scales(input_scales, m if input_fmt.granularity == "channel" else 1, input_format)
        given = input_scales.data_ptr()
    if 0 in sizes:
        return _empty_product(x, scales, bias, input_scales, shape)
    on = place(x.device)
    added_code = None if added is None else added[1]
    nbytes = _integer_scratch(fmt, input_fmt, on[0], sizes, code, added_code, where[0] % 16)
    out = x.new_empty(shape)
    _memory, scratch = scratch_memory(nbytes, x.device)
    _core._cuda_integer_linear(
        fmt, input_fmt, on, sizes, (x.data_ptr(), code), where, given, added, out.data_ptr(), scratch
    )
    return out


def _empty_product(
    x: Tensor, scales: Tensor, bias: Tensor | None, input_scales: Tensor | None, shape: list[int]
) -> Tensor:
    """The bias alone: without columns, an integer one times both scales, of which chosen ones are 0."""
    out = torch.zeros(shape, dtype=torch.float32, device=x.device)
    if bias is not None and bias.dtype == torch.int32 and input_scales is not None and out.numel():
        out = bias.to(torch.float32) * (input_scales.view(-1, 1) * scales.view(1, -1)) + out.view(-1, shape[-1])
    elif bias is not None and bias.dtype != torch.int32:
        out = out + bias.to(torch.float32)
    return out.to(x.dtype).view(shape)


def _packed_embedding(
    ids: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor, levels: Tensor, format: str, rows: int, width: int,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    if forward_ad._current_level >= 0:
        refuse_tangents("packed_embedding", "packed tables are constants", scales, levels)
    parts = (codes, scales, zeros, levels)
    same_device(ids, parts, "packed_embedding")
    fmt, specs = weight_specs(format, rows, width)
    check_lookup(ids, dtype)
    check_held(ids, "packed_embedding: ids")
    addresses(parts, specs, format, rows, width)
    flat = ids.reshape(-1)
    if flat.numel() == 0 or width == 0:
        return torch.empty((*ids.shape, width), dtype=dtype, device=ids.device)
    own = fmt.granularity in ("channel", "block")

    def found(part: Tensor) -> Tensor:
        return part.view(torch.uint8).index_select(0, flat).view(part.dtype) if part.ndim > 1 else part

    pieces = (found(codes), found(scales) if own else scales, found(zeros) if own and fmt.has_zeros else zeros, levels)
    found_rows: Tensor = torch.ops.octavo.decode.default(*pieces, format, [flat.numel(), width], -1, dtype)
    return found_rows.view(*ids.shape, width)


OPS: dict[str, Callable[..., Any]] = {
    "packed_linear": _packed_linear,
    "packed_linear_plain": _packed_linear,
    "rounded_linear": _rounded_linear,
    "rounded_linear_plain": _rounded_linear,
    "integer_linear": _integer_linear,
    "integer_linear_plain": _integer_linear,
    "packed_embedding": _packed_embedding,
}
"""Kernels of the ops of ``linear.py`` for the dispatch key CUDA."""


def kernel(fmt: _core.Format, input_fmt: _core.Format | None, sizes: tuple[int, int, int], code: int) -> str:
    """Name the kernel of a product of ``sizes`` (rows of x, rows and columns of W) on a GPU."""
    if 0 in sizes:
        return "none"
    if input_fmt is not None and input_fmt.granularity == "block":
        _check_formats(fmt, input_fmt)
        input_fmt = None
    return _core._cuda_linear_kernel(fmt, input_fmt, sizes, code) or "decode + torch"
