"""Fake kernels: the ops on tensors without values, such as meta tensors and those that torch.compile traces with.

They give the shapes, dtypes and errors of the kernels, as far as values do not decide. Symbolic sizes are compared
where that is known without a guard; the kernels check the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch import library as registry

from octavo import _core
from octavo.errors import DTypeError, FormatError, ShapeError
from octavo.ops._checks import NONFINITE, RULES, check_gradient, check_ste, float_code, together, without_none
from octavo.ops._operands import (
    INTEGER_BIASES,
    check_bias,
    check_grouped,
    check_lookup,
    check_scales,
    misfit,
    wrong_gradient,
    wrong_width,
)
from octavo.tensors.formats import core
from octavo.tensors.packed_tensor import FLOATS, part_specs, symbolic_specs

Specs: TypeAlias = Sequence[tuple[str, torch.dtype, Sequence[int]]]
"""Name, dtype and shape of each part."""


def _differ(a: Any, b: Any) -> bool:
    """Whether two sizes are known to differ."""
    if isinstance(a, int) and isinstance(b, int):
        return a != b
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(a != b)


def _fits(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    return len(shape) == len(wanted) and not any(_differ(a, b) for a, b in zip(shape, wanted, strict=True))


def _specs(fmt: _core.Format, shape: Sequence[int], axis: int) -> Specs:
    """Specs of the parts, checked as far as sizes are numbers. Raises ShapeError."""
    if all(isinstance(n, int) for n in shape):
        return part_specs(fmt, tuple(shape), axis)
    part_specs(fmt, (1,) * len(shape), axis)  # the axis
    return symbolic_specs(fmt, tuple(shape), axis)


def _check_options(fmt: _core.Format, x: Tensor, what: str, rule: str, nonfinite: str = "error") -> None:
    if x.dtype not in FLOATS:
        raise DTypeError(f"{what}: x has dtype {x.dtype}; accepted are float32, float16, bfloat16")
    for name, text, accepted in (("scale", rule, RULES), ("nonfinite", nonfinite, NONFINITE)):
        if text not in accepted:
            raise FormatError(f"unknown {name} {text!r}; accepted are {', '.join(accepted)}")
    if rule != "floor" and not fmt.is_block:
        raise FormatError(f"'{fmt}' has no block scale, so scale='{rule}' does not apply")
    if nonfinite == "nan" and not fmt.has_nan:
        raise FormatError(f"'{fmt}' cannot store NaN; nonfinite=\"saturate\" maps it to 0")


def _check_given(
    fmt: _core.Format, specs: Specs, scales: Tensor | None, zeros: Tensor | None, levels: Tensor | None, what: str
) -> None:
    """Check given scales as ``given_parts`` does."""
    if scales is None:
        if zeros is not None or levels is not None:
            raise ShapeError(f"'{fmt}': zeros and levels are given with scales, not alone")
        return
    for part, (name, dtype, shape), there in zip(
        (scales, zeros, levels), specs[1:], (True, fmt.has_zeros, fmt.has_levels), strict=True
    ):
        if not there:
            if part is not None and _differ(part.numel(), 0):
                raise ShapeError(f"'{fmt}' has no {name}, but {name} were given")
            continue
        if part is None:
            raise ShapeError(f"'{fmt}': given scales need {name} too")
        if _differ(part.numel(), math.prod(shape)):
            raise ShapeError(f"'{fmt}': {name} have shape {tuple(part.shape)}, expected {tuple(shape)}")
        codes = not dtype.is_floating_point and dtype != torch.int8
        if codes and part.dtype != dtype:
            raise DTypeError(f"'{fmt}': {name} have dtype {part.dtype}, expected {dtype} codes")
    if fmt.scale_type is None:
        raise FormatError(f"'{fmt}' has no scales, but scales were given")


def _check_quantize(
    x: Tensor, format: str, axis: int, rule: str, scales: Tensor | None, zeros: Tensor | None, levels: Tensor | None,
    nonfinite: str = "error", what: str = "quantize",
) -> Specs:  # fmt: skip
    fmt = core(format)
    together(what, x, scales, zeros, levels)
    _check_options(fmt, x, f"{what} to '{format}'", rule, nonfinite)
    specs = _specs(fmt, x.shape, axis)
    _check_given(fmt, specs, scales, zeros, levels, what)
    return specs


def _check_target(out: Tensor, shape: Sequence[int], dtype: torch.dtype, name: str, device: torch.device) -> None:
    if out.dtype != dtype or not _fits(out.shape, shape):
        raise ShapeError(
            f"{name} has dtype {out.dtype} and shape {tuple(out.shape)}, expected {dtype} and {tuple(shape)}"
        )
    if out.device != device or not out.is_contiguous():
        layout = "contiguous" if out.is_contiguous() else "not contiguous"
        raise ShapeError(f"{name} must be contiguous and on {device}; it is {layout}, on {out.device}")


# --- codecs ---------------------------------------------------------------------------------------------------------


def _quantize(
    x: Tensor, format: str, axis: int = -1, rule: str = "floor", scales: Tensor | None = None,
    zeros: Tensor | None = None, levels: Tensor | None = None, ste: str = "clipped",
) -> Tensor:  # fmt: skip
    check_ste(ste)
    _check_quantize(x, format, axis, rule, scales, zeros, levels)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _quantize_plain(
    x: Tensor, format: str, axis: int = -1, rule: str = "floor", scales: Tensor | None = None,
    zeros: Tensor | None = None, levels: Tensor | None = None,
) -> Tensor:  # fmt: skip
    return _quantize(x, format, axis, rule, scales, zeros, levels)


def _quantize_out(
    x: Tensor, format: str, axis: int = -1, rule: str = "floor", scales: Tensor | None = None,
    zeros: Tensor | None = None, levels: Tensor | None = None, *, out: Tensor,
) -> None:  # fmt: skip
    _check_target(out, x.shape, x.dtype, "out", x.device)
    _check_quantize(x, format, axis, rule, scales, zeros, levels)


def _quantize_backward(
    grad: Tensor, x: Tensor, format: str, axis: int = -1, rule: str = "floor", scales: Tensor | None = None,
    zeros: Tensor | None = None, levels: Tensor | None = None, learn: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    if _fits(grad.shape, x.shape):
        check_gradient(x.new_empty(x.shape, dtype=grad.dtype, device=grad.device), x, format, scales, learn)
    else:
        check_gradient(grad, x, format, scales, learn)
    _check_quantize(x, format, axis, rule, scales, zeros, levels, what="gradient of quantize")
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if learn and scales is not None:
        if core(format).family not in ("int", "fixed"):
            raise FormatError(f"'{format}': only given scales of intW and fixedW can learn")
        return out, torch.empty_like(scales, memory_format=torch.contiguous_format)
    return out, x.new_empty(0, dtype=torch.float32)


def _encode(
    x: Tensor, format: str, axis: int = -1, rule: str = "floor", scales: Tensor | None = None,
    zeros: Tensor | None = None, levels: Tensor | None = None, nonfinite: str = "error",
) -> tuple[Tensor, ...]:  # fmt: skip
    specs = _check_quantize(x, format, axis, rule, scales, zeros, levels, nonfinite, "encode")
    return tuple(x.new_empty(shape, dtype=dtype) for _, dtype, shape in specs)


def _encode_out(
    x: Tensor, format: str, axis: int = -1, rule: str = "floor", scales: Tensor | None = None,
    zeros: Tensor | None = None, levels: Tensor | None = None, nonfinite: str = "error", *, codes_out: Tensor,
    scales_out: Tensor, zeros_out: Tensor, levels_out: Tensor,
) -> None:  # fmt: skip
    specs = _check_quantize(x, format, axis, rule, scales, zeros, levels, nonfinite, "encode")
    parts = (codes_out, scales_out, zeros_out, levels_out)
    for part, (name, dtype, shape) in zip(parts, specs, strict=True):
        _check_target(part, shape, dtype, name, x.device)


def _check_decode(
    codes: Tensor, scales: Tensor, zeros: Tensor, levels: Tensor, format: str, shape: Sequence[int], axis: int,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    fmt = core(format)
    float_code(dtype, format)
    together("decode", codes, scales, zeros, levels)
    parts = (codes, scales, zeros, levels)
    for part, (name, kind, part_shape) in zip(parts, _specs(fmt, shape, axis), strict=True):
        if _differ(part.numel(), math.prod(part_shape)):
            raise ShapeError(f"'{fmt}': {name} have shape {tuple(part.shape)}, expected {tuple(part_shape)}")
        if part.dtype != kind and not kind.is_floating_point and kind != torch.int8:
            raise DTypeError(f"'{fmt}': {name} have dtype {part.dtype}, expected {kind} codes")


def _decode(
    codes: Tensor, scales: Tensor, zeros: Tensor, levels: Tensor, format: str, shape: Sequence[int], axis: int,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    _check_decode(codes, scales, zeros, levels, format, shape, axis, dtype)
    return codes.new_empty(shape, dtype=dtype)


def _decode_out(
    codes: Tensor, scales: Tensor, zeros: Tensor, levels: Tensor, format: str, shape: Sequence[int], axis: int, *,
    out: Tensor,
) -> None:  # fmt: skip
    _check_decode(codes, scales, zeros, levels, format, shape, axis, out.dtype)
    _check_target(out, shape, out.dtype, "out", codes.device)


def register_codecs(library: registry.Library) -> None:
    """Register the fakes of the codec ops."""
    for name, fake in (
        ("quantize", _quantize),
        ("quantize_plain", _quantize_plain),
        ("quantize_out", _quantize_out),
        ("quantize_backward", _quantize_backward),
        ("encode", _encode),
        ("encode_out", _encode_out),
        ("decode", _decode),
        ("decode_out", _decode_out),
    ):
        registry.register_fake(f"octavo::{name}", without_none(name, fake), lib=library)


# --- products -------------------------------------------------------------------------------------------------------


def _check_weight(parts: tuple[Tensor, ...], format: str, rows: int, columns: int, what: str) -> _core.Format:
    fmt = core(format)
    there = (True, True, fmt.has_zeros, fmt.has_levels)
    for part, (name, dtype, shape), read in zip(parts, _specs(fmt, (rows, columns), -1), there, strict=False):
        if read and (part.dtype != dtype or not _fits(part.shape, shape) or not part.is_contiguous()):
            raise misfit(part, name, dtype, shape, f"'{format}' weight of shape ({rows}, {columns})")
    return fmt


def _check_product(
    x: Tensor, parts: tuple[Tensor, ...], bias: Tensor | None, biases: dict[torch.dtype, int], format: str, rows: int,
    columns: int, what: str,
) -> _core.Format:  # fmt: skip
    together(what, x, *parts, bias)
    fmt = _check_weight(parts, format, rows, columns, what)
    if x.ndim == 0 or _differ(x.shape[-1], columns):
        raise wrong_width(x.shape, format, rows, columns, what)
    if x.dtype not in FLOATS:
        raise DTypeError(
            f"{what} with a '{format}' weight: x has dtype {x.dtype}; accepted are float32, float16, bfloat16"
        )
    if bias is not None and isinstance(rows, int):
        check_bias(bias, rows, biases, what)
    return fmt


def _packed_linear(
    x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor, levels: Tensor, bias: Tensor | None, format: str,
    out_features: int, in_features: int,
) -> Tensor:  # fmt: skip
    parts = (codes, scales, zeros, levels)
    _check_product(x, parts, bias, FLOATS, format, out_features, in_features, "packed_linear")
    return x.new_empty((*x.shape[:-1], out_features))


def _rounded_linear(
    x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor, levels: Tensor, bias: Tensor | None,
    input_scales: Tensor | None, input_zeros: Tensor | None, input_levels: Tensor | None, format: str,
    out_features: int, in_features: int, input_format: str, rule: str,
) -> Tensor:  # fmt: skip
    parts = (codes, scales, zeros, levels)
    together("rounded_linear", x, input_scales, input_zeros, input_levels)
    _check_product(x, parts, bias, FLOATS, format, out_features, in_features, "rounded_linear")
    _quantize_plain(x, input_format, -1, rule, input_scales, input_zeros, input_levels)
    return x.new_empty((*x.shape[:-1], out_features))


def _packed_linear_backward(
    grad: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor, levels: Tensor, format: str, out_features: int,
    in_features: int,
) -> Tensor:  # fmt: skip
    parts = (codes, scales, zeros, levels)
    together("packed_linear_backward", grad, *parts)
    _check_weight(parts, format, out_features, in_features, "packed_linear_backward")
    if grad.ndim == 0 or _differ(grad.shape[-1], out_features):
        raise wrong_gradient(grad, format, out_features)
    float_code(grad.dtype, format)
    return grad.new_empty((*grad.shape[:-1], in_features))


def _integer_linear(
    x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None, input_scales: Tensor | None, format: str,
    input_format: str, out_features: int, in_features: int,
) -> Tensor:  # fmt: skip
    together("integer_linear", x, input_scales)
    fmt = _check_product(x, (codes, scales), bias, INTEGER_BIASES, format, out_features, in_features, "integer_linear")
    _core._linear_kernel(fmt, core(input_format), 1, 1, 1)
    if core(input_format).granularity == "block":
        check_grouped(bias, input_scales, format, input_format)
    if input_scales is not None:
        count = math.prod(x.shape[:-1]) if core(input_format).granularity == "channel" else 1
        known = _differ(input_scales.numel(), count)
        check_scales(input_scales, count if known else input_scales.numel(), input_format)
    return x.new_empty((*x.shape[:-1], out_features))


def _packed_embedding(
    ids: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor, levels: Tensor, format: str, rows: int, width: int,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    together("packed_embedding", ids, codes, scales, zeros, levels)
    check_lookup(ids, dtype)
    _check_weight((codes, scales, zeros, levels), format, rows, width, "packed_embedding")
    return codes.new_empty((*ids.shape, width), dtype=dtype)


def register_products(library: registry.Library) -> None:
    """Register the fakes of the products."""
    for name, fake in (
        ("packed_linear", _packed_linear),
        ("packed_linear_plain", _packed_linear),
        ("packed_linear_backward", _packed_linear_backward),
        ("rounded_linear", _rounded_linear),
        ("rounded_linear_plain", _rounded_linear),
        ("integer_linear", _integer_linear),
        ("integer_linear_plain", _integer_linear),
        ("packed_embedding", _packed_embedding),
    ):
        registry.register_fake(f"octavo::{name}", without_none(name, fake), lib=library)
