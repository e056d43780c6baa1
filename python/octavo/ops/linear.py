"""torch.library ops that read packed weights: ``packed_linear``, ``rounded_linear``, ``integer_linear`` and
``packed_embedding``.

Weights are the parts of a PackedTensor of shape ``(out_features, in_features)`` encoded along its rows; they are
decoded a panel of rows at a time, in the cache. Source: FORMATS.md, sections 5 and 6.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from octavo import _core
from octavo.errors import DTypeError, ShapeError
from octavo.ops import _fakes, linear_cuda
from octavo.ops._checks import NONE_GIVEN, float_code, given_parts, register
from octavo.ops._derivatives import (
    IntegerProduct,
    Product,
    ProductBackward,
    RoundedProduct,
    constant,
    differentiate,
    refuse_tangents,
)
from octavo.ops._operands import (
    INTEGER_BIASES,
    addresses,
    check_grouped,
    check_lookup,
    checked_bias,
    checked_scales,
    inputs,
    weight_specs,
    wrong_gradient,
)
from octavo.tensors.formats import Format, core
from octavo.tensors.packed_tensor import FLOATS, PackedTensor
from octavo.tensors.tensor_memory import check_held

PANEL = 512
"""Rows of weights that a backward pass decodes at a time: a few megabytes, which the second cache holds."""

_library = torch.library.Library("octavo", "FRAGMENT")
_PARTS = "Tensor codes, Tensor scales, Tensor zeros, Tensor levels"
_SIZES = "str format, SymInt out_features, SymInt in_features"
# The plain forms have no gradient: dispatch through autograd takes longer than a small product.
for _name in ("packed_linear", "packed_linear_plain"):
    _library.define(f"{_name}(Tensor x, {_PARTS}, Tensor? bias, {_SIZES}) -> Tensor")
for _name in ("rounded_linear", "rounded_linear_plain"):
    _library.define(
        f"{_name}(Tensor x, {_PARTS}, Tensor? bias, Tensor? input_scales, Tensor? input_zeros, Tensor? input_levels, "
        f"{_SIZES}, str input_format, str rule) -> Tensor"
    )
_library.define(f"packed_linear_backward(Tensor grad, {_PARTS}, {_SIZES}) -> Tensor")
for _name in ("integer_linear", "integer_linear_plain"):
    _library.define(
        f"{_name}(Tensor x, Tensor codes, Tensor scales, Tensor? bias, Tensor? input_scales, str format, "
        "str input_format, SymInt out_features, SymInt in_features) -> Tensor"
    )
_library.define(
    f"packed_embedding(Tensor ids, {_PARTS}, str format, SymInt rows, SymInt width, ScalarType dtype) -> Tensor"
)


# --- CPU ------------------------------------------------------------------------------------------------------------


def _packed_linear(
    x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor, levels: Tensor, bias: Tensor | None, format: str,
    out_features: int, in_features: int,
) -> Tensor:  # fmt: skip
    if forward_ad._current_level >= 0:  # packed_linear has them in its derivative
        refuse_tangents("packed_linear_plain", "call packed_linear", x, scales, bias)
    fmt, specs = weight_specs(format, out_features, in_features)
    x, code, shape = inputs(x, format, out_features, in_features, "packed_linear")
    parts = addresses((codes, scales, zeros, levels), specs, format, out_features, in_features)
    added = None
    if bias is not None:
        bias, bias_code = checked_bias(bias, out_features, FLOATS, "packed_linear")
        added = (bias.data_ptr(), bias_code)
    out = x.new_empty(*shape)  # a list would take longer
    m = math.prod(shape[:-1])
    _core._packed_linear(fmt, code, m, out_features, in_features, x.data_ptr(), parts, added, out.data_ptr())
    return out


def _rounded_linear(
    x: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor, levels: Tensor, bias: Tensor | None,
    input_scales: Tensor | None, input_zeros: Tensor | None, input_levels: Tensor | None, format: str,
    out_features: int, in_features: int, input_format: str, rule: str,
) -> Tensor:  # fmt: skip
    if forward_ad._current_level >= 0:  # rounded_linear has them in its derivative
        refuse_tangents("rounded_linear_plain", "call rounded_linear", x, scales, bias, input_scales)
    fmt, specs = weight_specs(format, out_features, in_features)
    x, code, shape = inputs(x, format, out_features, in_features, "rounded_linear")
    parts = addresses((codes, scales, zeros, levels), specs, format, out_features, in_features)
    input_fmt = core(input_format)
    given, _keep = NONE_GIVEN
    if input_scales is not None or input_zeros is not None or input_levels is not None:
        given, _keep = given_parts(input_fmt, tuple(x.shape), -1, input_scales, input_zeros, input_levels)
    added = None
    if bias is not None:
        bias, bias_code = checked_bias(bias, out_features, FLOATS, "rounded_linear")
        added = (bias.data_ptr(), bias_code)
    out = x.new_empty(shape)
    sizes = (code, math.prod(shape[:-1]), out_features, in_features)
    _core._rounded_linear(fmt, input_fmt, rule, *sizes, x.data_ptr(), parts, given, added, out.data_ptr())
    return out


def _packed_linear_backward(
    grad: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor, levels: Tensor, format: str, out_features: int,
    in_features: int,
) -> Tensor:  # fmt: skip
    linear_cuda.same_device(grad, (codes, scales, zeros, levels), "packed_linear_backward")
    fmt, specs = weight_specs(format, out_features, in_features)
    addresses((codes, scales, zeros, levels), specs, format, out_features, in_features)
    if grad.ndim == 0 or grad.shape[-1] != out_features:
        raise wrong_gradient(grad, format, out_features)
    float_code(grad.dtype, format)
    check_held(grad, "packed_linear_backward: grad")
    rows = grad.reshape(math.prod(grad.shape[:-1]), out_features)
    out = grad.new_zeros(rows.shape[0], in_features)
    each = linear_cuda.PANEL // max(in_features, 1) if grad.is_cuda else PANEL
    for first in range(0, out_features, max(each, PANEL)):
        panel = slice(first, min(first + max(each, PANEL), out_features))
        weight = linear_cuda.decoded_panel((codes, scales, zeros, levels), fmt, format, panel, in_features, grad.dtype)
        out.addmm_(rows[:, panel], weight)
    return out.view(*grad.shape[:-1], in_features)


def _integer_linear(
    x: Tensor, codes: Tensor, scales: Tensor, bias: Tensor | None, input_scales: Tensor | None, format: str,
    input_format: str, out_features: int, in_features: int,
) -> Tensor:  # fmt: skip
    if forward_ad._current_level >= 0:  # integer_linear has them in its derivative
        refuse_tangents("integer_linear_plain", "call integer_linear", x, scales, bias, input_scales)
    fmt, specs = weight_specs(format, out_features, in_features)
    x, code, shape = inputs(x, format, out_features, in_features, "integer_linear")
    parts = addresses((codes, scales), specs[:2], format, out_features, in_features)
    added, given = None, None
    if bias is not None:
        bias, bias_code = checked_bias(bias, out_features, INTEGER_BIASES, "integer_linear")
        added = (bias.data_ptr(), bias_code)
    m, input_fmt = math.prod(shape[:-1]), core(input_format)
    if input_fmt.granularity == "block":
        check_grouped(bias, input_scales, format, input_format)
    if input_scales is not None:
        count = m if input_fmt.granularity == "channel" else 1
        input_scales = checked_scales(input_scales, count, input_format)
        given = (input_scales.data_ptr(), count)
    out = x.new_empty(*shape)
    sizes = (code, m, out_features, in_features)
    _core._integer_linear(fmt, input_fmt, *sizes, x.data_ptr(), parts, given, added, out.data_ptr())
    return out


def _packed_embedding(
    ids: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor, levels: Tensor, format: str, rows: int, width: int,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    if forward_ad._current_level >= 0:
        refuse_tangents("packed_embedding", EMBEDDING_ADVICE, scales, levels)
    fmt, specs = weight_specs(format, rows, width)
    check_lookup(ids, dtype)
    check_held(ids, "packed_embedding: ids")
    parts = addresses((codes, scales, zeros, levels), specs, format, rows, width)
    out = torch.empty((*ids.shape, width), dtype=dtype)
    flat = ids.to(torch.int64).contiguous()
    _core._packed_embedding(fmt, FLOATS[dtype], (flat.data_ptr(), flat.numel()), rows, width, parts, out.data_ptr())
    return out


EMBEDDING_ADVICE = "packed tables are constants"

_KERNELS: dict[str, Callable[..., Any]] = {
    "packed_linear": _packed_linear,
    "packed_linear_plain": _packed_linear,
    "packed_linear_backward": _packed_linear_backward,
    "rounded_linear": _rounded_linear,
    "rounded_linear_plain": _rounded_linear,
    "integer_linear": _integer_linear,
    "integer_linear_plain": _integer_linear,
    "packed_embedding": _packed_embedding,
}
register(_library, _KERNELS, "CPU")
register(_library, {**linear_cuda.OPS, "packed_linear_backward": _packed_linear_backward}, "CUDA")

_fakes.register_products(_library)
differentiate(_library, ("packed_linear", "packed_linear_plain"), Product, free=(0, 5))
differentiate(_library, ("packed_linear_backward",), ProductBackward, free=(0,))
differentiate(_library, ("rounded_linear", "rounded_linear_plain"), RoundedProduct, free=(0, 5))
differentiate(_library, ("integer_linear", "integer_linear_plain"), IntegerProduct, free=(0, 3))
constant(_library, "packed_embedding", EMBEDDING_ADVICE)


class Operator:
    """A product as an operator of torch, with derivatives and without: the plain form takes half the time to call."""

    def __init__(self, name: str) -> None:
        """Look both forms of ``octavo::name`` up."""
        self._graded = getattr(torch.ops.octavo, name).default
        self._plain = getattr(torch.ops.octavo, f"{name}_plain").default

    def for_operands(self, x: Tensor, bias: Tensor | None) -> Callable[..., Tensor]:
        """Return the form with derivatives where one of inputs or bias is wanted, else the plain one."""
        graded: Callable[..., Tensor] = self._graded
        if forward_ad._current_level >= 0:  # the plain ops refuse tangents
            return graded
        wanted = torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad))
        return graded if wanted else self._plain


PACKED, ROUNDED, INTEGER = Operator("packed_linear"), Operator("rounded_linear"), Operator("integer_linear")


# --- public functions -----------------------------------------------------------------------------------------------


def _matrix(x: Tensor, weight: PackedTensor, what: str) -> tuple[int, int]:
    if not isinstance(x, Tensor) or not isinstance(weight, PackedTensor):
        raise DTypeError(
            f"{what} takes a tensor and a PackedTensor, got {type(x).__name__} and {type(weight).__name__}; "
            "octavo.encode packs a weight"
        )
    if weight.ndim != 2 or weight.axis != 1:
        raise ShapeError(f"{what}: the weight is {weight!r}; expected 2 dimensions, encoded along the last")
    return weight.shape[0], weight.shape[1]


def packed_linear(x: Tensor, weight: PackedTensor, bias: Tensor | None = None) -> Tensor:
    """Multiply with a packed weight: ``x @ weight.decode().T + bias``.

    Rounded once from sums as exact as float32 ones; kernels in fixed point ("int8 limbs") err by at most ``2**-22`` of
    the largest input of 256 columns times the magnitudes of their weights. A row's result does not depend on the number
    of threads, nor on the other rows except for their number: above four rows large weights have another kernel, as
    they have for other dtypes and on other machines (:func:`kernel` names it). On CUDA devices float16 and bfloat16
    inputs may count to 2^-14 of the largest of their block, and above 64 rows weights are rounded to the dtype of
    ``x``; an error of either is less than that of the rounded result. Gradients and forward-mode derivatives reach
    ``x`` and ``bias``; the transforms of ``torch.func`` apply. Source: FORMATS.md section 6.

    Args:
        x: ``[..., K]``, float32, float16 or bfloat16, on the CPU or a CUDA device.
        weight: shape ``(N, K)``, any format, encoded along its last axis, on the same device.
        bias: ``[N]``, a float dtype.

    Returns:
        ``[..., N]`` in the dtype of ``x``.

    Raises:
        ShapeError: where sizes do not fit.
        DTypeError: for another dtype, device or kind of object.

    Example:
        >>> x, weight = torch.randn(2, 64), octavo.encode(torch.randn(8, 64), "mxfp4")
        >>> torch.allclose(octavo.linear.packed_linear(x, weight), x @ weight.decode().T, atol=1e-4)
        True
    """
    rows, columns = _matrix(x, weight, "packed_linear")
    op = PACKED.for_operands(x, bias)
    return op(x, *weight.parts, bias, weight.format.text, rows, columns)


def rounded_linear(
    x: Tensor,
    weight: PackedTensor,
    input_format: Format | str,
    bias: Tensor | None = None,
    *,
    scale: str = "floor",
) -> Tensor:
    """Round ``x`` to a format and multiply with a packed weight: ``quantize(x) @ weight.decode().T + bias``.

    With the error bound of :func:`packed_linear`. Rounded inputs are float32 on the CPU, on CUDA in the dtype of ``x``.
    Where codes of ``x`` are small integers under a scale (``int8:g32``, ``mxint8``, ``mxfp4``) and there are few rows,
    codes are multiplied: sums of a group are exact in int32. Gradients pass straight through the rounding, but to
    values that saturated. Source: FORMATS.md section 6.

    Args:
        x: ``[..., K]``, float32, float16 or bfloat16, on the CPU or a CUDA device.
        weight: shape ``(N, K)``, any format, encoded along its last axis.
        input_format: any format; groups and rows run along K.
        bias: ``[N]``, a float dtype.
        scale: rule of the block scale, as in :func:`octavo.quantize`.

    Returns:
        ``[..., N]`` in the dtype of ``x``.

    Raises:
        FormatError: for an unknown format or rule.
        ShapeError: where sizes do not fit.
        DTypeError: for another dtype, device or kind of object.

    Example:
        >>> x, weight = torch.randn(2, 64), octavo.encode(torch.randn(8, 64), "mxint8")
        >>> product = octavo.linear.rounded_linear(x, weight, "mxint8")
        >>> torch.allclose(product, octavo.quantize(x, "mxint8") @ weight.decode().T, atol=1e-4)
        True
    """
    rows, columns = _matrix(x, weight, "rounded_linear")
    op = ROUNDED.for_operands(x, bias)
    text = input_format.text if isinstance(input_format, Format) else input_format
    sizes = (weight.format.text, rows, columns)
    return op(x, *weight.parts, bias, None, None, None, *sizes, text, scale)


def integer_linear(
    x: Tensor,
    weight: PackedTensor,
    input_format: Format | str,
    bias: Tensor | None = None,
    *,
    input_scales: Tensor | None = None,
) -> Tensor:
    """Quantize ``x`` to integers and multiply with packed integers, exactly, in int32.

    With the exact sum ``s`` and ``t = s_x * s_w``, the result is ``s * t + bias``, or ``(s + bias) * t`` for int32;
    every operation rounds to float32. Integers by groups (``int2:g32`` to ``int8:g32``, ``mxint2`` to ``mxint8``, any
    length of groups) are multiplied with one another as well, as :func:`rounded_linear` does: sums of a group are
    exact, those of groups float32. Their scales are chosen from ``x`` and their bias is of floats. Gradients pass
    straight through the rounding, but those of inputs that ``input_scales`` saturate, which are 0. Source: FORMATS.md
    section 6.

    Args:
        x: ``[..., K]``, finite float32, float16 or bfloat16, K up to 131,071. On a CUDA device a row that is not finite
            becomes NaN instead of an error.
        weight: shape ``(N, K)``, ``int2`` to ``int8`` with ``:tensor`` or ``:channel`` scales.
        input_format: the same formats; ``:channel`` is a scale for each row of ``x``.
        bias: ``[N]``, floats, or int32 in units of both scales' product.
        input_scales: float32 scales; default: chosen from ``x``.

    Returns:
        ``[..., N]`` in the dtype of ``x``.

    Raises:
        FormatError: for other formats.
        NonFiniteError: for NaN and infinity on the CPU.
        ShapeError: where sizes do not fit.
        DTypeError: for another dtype, device or kind of object.

    Example:
        >>> x, weight = torch.eye(4), octavo.encode(torch.arange(16.0).view(4, 4), "int8:channel")
        >>> octavo.linear.integer_linear(x, weight, "int8:channel")[0]
        tensor([ 0.0000,  4.0236,  7.9685, 12.0472])
    """
    rows, columns = _matrix(x, weight, "integer_linear")
    op = INTEGER.for_operands(x, bias)
    text = input_format.text if isinstance(input_format, Format) else input_format
    return op(x, weight.codes, weight.scales, bias, input_scales, weight.format.text, text, rows, columns)


def packed_embedding(ids: Tensor, table: PackedTensor, dtype: torch.dtype | None = None) -> Tensor:
    """Look rows of a packed table up: ``table.decode(dtype)[ids]``.

    Args:
        ids: int64 or int32, any shape; they do not count from the end.
        table: shape ``(rows, width)``, any format, encoded along its last axis.
        dtype: float32, float16 or bfloat16; default: the table's logical dtype.

    Returns:
        ``[*ids.shape, width]``.

    Raises:
        RangeError: for an id outside the table.
        ShapeError: where sizes do not fit.
        DTypeError: for another dtype, device or kind of object.

    Example:
        >>> table = octavo.encode(torch.arange(8.0).view(4, 2), "fp16")
        >>> octavo.linear.packed_embedding(torch.tensor([3, 0]), table)
        tensor([[6., 7.],
                [0., 1.]])
    """
    rows, width = _matrix(ids, table, "packed_embedding")
    kind = table.dtype if dtype is None else dtype
    found: Tensor = torch.ops.octavo.packed_embedding.default(ids, *table.parts, table.format.text, rows, width, kind)
    return found


def kernel(
    format: Format | str,
    m: int,
    n: int,
    k: int,
    dtype: torch.dtype,
    input_format: Format | str | None = None,
    device: torch.device | str = "cpu",
    *,
    rounded: bool = False,
) -> str:
    """Name the kernel that multiplies ``m`` rows of ``dtype`` with an ``(n, k)`` weight on a device.

    Args:
        format: format of the weight.
        m: rows of the input.
        n: rows of the weight, outputs.
        k: columns of both.
        dtype: of the input, float32, float16 or bfloat16.
        input_format: format of the input, for :func:`integer_linear`, or with ``rounded`` for :func:`rounded_linear`.
        device: the CPU of this machine, or CUDA: its first GPU, or where there is none, any.
        rounded: name the kernel of :func:`rounded_linear`.

    Returns:
        The name.

    Raises:
        FormatError: as the product.
        DTypeError: as the product.

    Example:
        >>> octavo.linear.kernel("int8:channel", 1, 4096, 4096, torch.float32, "int8:channel")  # of this processor
        '...'
    """
    if dtype not in FLOATS:
        raise DTypeError(f"kernel for {dtype}; accepted are float32, float16, bfloat16")
    if not 0 <= m < 2**63:
        raise ShapeError(f"kernel for {m} rows of x; accepted are at least 0, below 2^63")
    fmt, _ = weight_specs(str(format), n, k)
    given = None if input_format is None else core(str(input_format))
    on_cuda = torch.device(device).type == "cuda"
    if rounded and given is not None:
        if not on_cuda:
            return _core._rounded_kernel(fmt, given, m, n, k)
        given = None
    if on_cuda:
        return linear_cuda.kernel(fmt, given, (m, n, k), FLOATS[dtype])
    return _core._linear_kernel(fmt, given, m, n, k, FLOATS[dtype])
