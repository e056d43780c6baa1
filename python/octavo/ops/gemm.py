"""``octavo::int8_gemm``: exact products of int8 matrices, with scaling and requantization in the same pass."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch import library as registry
from torch.autograd import forward_ad

from octavo import _core
from octavo.errors import DTypeError, ShapeError
from octavo.ops._checks import register, together, without_none
from octavo.ops._derivatives import constant, refuse_tangents
from octavo.ops.codec_cuda import place
from octavo.ops.linear_cuda import same_device, scratch_memory
from octavo.tensors.packed_tensor import FLOATS
from octavo.tensors.tensor_memory import check_held

MOST_COLUMNS = 131_071
"""Columns whose products int32 can sum: 131,071 * 128 * 128 < 2^31."""
OUTPUTS = {**FLOATS, torch.int32: 3, torch.int8: 4}
"""Dtype codes of outputs."""

_library = torch.library.Library("octavo", "FRAGMENT")
_library.define(
    "int8_gemm(Tensor a, Tensor b, Tensor? bias, Tensor? row_scales, Tensor? column_scales, ScalarType dtype, "
    "int zero=0) -> Tensor"
)


ADVICE = "products of int8 are constants"


def _check(
    a: Tensor, b: Tensor, bias: Tensor | None, row_scales: Tensor | None, column_scales: Tensor | None,
    dtype: torch.dtype, zero: int,
) -> tuple[int, int, int]:  # fmt: skip
    for name, matrix in (("a", a), ("b", b)):
        if matrix.dtype != torch.int8 or matrix.ndim != 2:
            raise DTypeError(
                f"int8_gemm: {name} is {matrix.dtype} of shape {tuple(matrix.shape)}; expected int8 [rows, K]"
            )
    (m, k), (n, other) = a.shape, b.shape
    if k != other:
        raise ShapeError(f"int8_gemm: a has {k} columns, b {other}; both are [rows, K] with the same K")
    if k > MOST_COLUMNS:
        raise ShapeError(f"int8_gemm: {k} columns; int32 holds the sums of up to {MOST_COLUMNS}, cut K in parts")
    if dtype not in OUTPUTS:
        raise DTypeError(f"int8_gemm to {dtype}; accepted are int32, int8, float32, float16, bfloat16")
    if dtype == torch.int32 and (row_scales is not None or column_scales is not None):
        raise DTypeError("int8_gemm to int32 returns the sums themselves; scales are for int8 and float outputs")
    if bias is not None:
        accepted = (torch.int32, *FLOATS) if dtype.is_floating_point else (torch.int32,)
        if bias.shape != (n,) or bias.dtype not in accepted:
            raise ShapeError(
                f"int8_gemm to {dtype}: bias is {bias.dtype} of shape {tuple(bias.shape)}; expected ({n},) of "
                f"{', '.join(str(kind) for kind in accepted)}"
            )
    for name, scales, count in (("row_scales", row_scales, m), ("column_scales", column_scales, n)):
        if scales is not None and (scales.dtype != torch.float32 or scales.numel() not in (1, count)):
            raise ShapeError(
                f"int8_gemm: {name} are {scales.dtype} with {scales.numel()} values; expected float32, 1 or {count}"
            )
    if not -128 <= zero <= 127 or (zero and dtype != torch.int8):
        raise ShapeError(f"int8_gemm to {dtype}: zero is {zero}; accepted are -128 to 127 for int8, else 0")
    same_device(a, (b, bias, row_scales, column_scales), "int8_gemm")
    if not a.is_meta:
        names = ("a", "b", "bias", "row_scales", "column_scales")
        for name, part in zip(names, (a, b, bias, row_scales, column_scales), strict=True):
            if part is not None:
                check_held(part, f"int8_gemm: {name}")
    if forward_ad._current_level >= 0:
        refuse_tangents("int8_gemm", ADVICE, bias, row_scales, column_scales)
    return m, n, k


def _int8_gemm(
    a: Tensor, b: Tensor, bias: Tensor | None, row_scales: Tensor | None, column_scales: Tensor | None,
    dtype: torch.dtype, zero: int = 0,
) -> Tensor:  # fmt: skip
    """Products of float64 are exact, as the sums of those of int8 are."""
    _check(a, b, bias, row_scales, column_scales, dtype, zero)
    sums = a.to(torch.float64) @ b.to(torch.float64).t()
    if bias is not None and bias.dtype == torch.int32:
        sums = sums + bias
    if dtype == torch.int32:
        return sums.clamp(-(2**31), 2**31 - 1).to(torch.int32)
    one = torch.ones(1, dtype=torch.float32)
    rows = one if row_scales is None else row_scales.reshape(-1, 1)
    columns = one if column_scales is None else column_scales.reshape(1, -1)
    y = sums.to(torch.float32) * (rows * columns)
    if bias is not None and bias.dtype != torch.int32:
        y = y + bias.to(torch.float32)
    if dtype == torch.int8:
        return (y.round() + zero).nan_to_num(0.0).clamp(-128, 127).to(torch.int8)
    return y.to(dtype)


@lru_cache(maxsize=4096)
def _scratch(device: int, sizes: tuple[int, int, int], offsets: tuple[int, int]) -> int:
    return _core._cuda_int8_gemm_scratch(device, sizes, offsets)


def _int8_gemm_cuda(
    a: Tensor, b: Tensor, bias: Tensor | None, row_scales: Tensor | None, column_scales: Tensor | None,
    dtype: torch.dtype, zero: int = 0,
) -> Tensor:  # fmt: skip
    sizes = _check(a, b, bias, row_scales, column_scales, dtype, zero)
    if 0 in sizes:
        given = [None if part is None else part.cpu() for part in (bias, row_scales, column_scales)]
        return _int8_gemm(a.cpu(), b.cpu(), given[0], given[1], given[2], dtype, zero).to(a.device)
    a, b = a.contiguous(), b.contiguous()
    bias, row_scales, column_scales = (
        None if part is None else part.contiguous() for part in (bias, row_scales, column_scales)
    )
    added = None if bias is None else (bias.data_ptr(), OUTPUTS[bias.dtype])
    rows, columns = (
        (0, False) if scales is None else (scales.data_ptr(), scales.numel() > 1)
        for scales in (row_scales, column_scales)
    )
    out = torch.empty(sizes[:2], dtype=dtype, device=a.device)
    on = place(a.device)
    nbytes = _scratch(on[0], sizes, (a.data_ptr() % 16, b.data_ptr() % 16))
    _memory, scratch = scratch_memory(nbytes, a.device)
    _core._cuda_int8_gemm(
        on, sizes, a.data_ptr(), b.data_ptr(), added, rows, columns, (out.data_ptr(), OUTPUTS[dtype]), zero, scratch
    )
    return out


register(_library, {"int8_gemm": _int8_gemm}, "CPU")
register(_library, {"int8_gemm": _int8_gemm_cuda}, "CUDA")


def _fake(
    a: Tensor, b: Tensor, bias: Tensor | None, row_scales: Tensor | None, column_scales: Tensor | None,
    dtype: torch.dtype, zero: int = 0,
) -> Tensor:  # fmt: skip
    together("int8_gemm", a, b, bias, row_scales, column_scales)
    _check(a, b, bias, row_scales, column_scales, dtype, zero)
    return a.new_empty((a.shape[0], b.shape[0]), dtype=dtype)


registry.register_fake("octavo::int8_gemm", without_none("int8_gemm", _fake), lib=_library)
constant(_library, "int8_gemm", ADVICE)


def int8_gemm(
    a: Tensor,
    b: Tensor,
    bias: Tensor | None = None,
    *,
    row_scales: Tensor | None = None,
    column_scales: Tensor | None = None,
    dtype: torch.dtype = torch.int32,
    zero: int = 0,
) -> Tensor:
    """Multiply int8 matrices exactly: ``a @ b.T``, on the CPU or a CUDA device, with the same bits.

    For int32 the sums with their bias, clipped. Else with ``t = row scale * column scale``, ``s * t`` (plus a float
    bias), every operation rounded to float32: as it is for float dtypes; for int8 rounded to even, plus ``zero``,
    clipped to -128..127, and NaN is 0. One kernel does it all. No gradients. The op is ``torch.ops.octavo.int8_gemm``.

    Args:
        a: int8 ``[M, K]``.
        b: int8 ``[N, K]``, K up to 131,071.
        bias: ``[N]``; int32 is added to the sums, floats to the scaled sums of float outputs.
        row_scales: float32 ``[M]`` or ``[1]``.
        column_scales: float32 ``[N]`` or ``[1]``.
        dtype: of the result, int32, int8, float32, float16 or bfloat16.
        zero: zero point of an int8 result.

    Returns:
        ``[M, N]``.

    Raises:
        ShapeError: before any work.
        DTypeError: before any work.

    Example:
        >>> a, b = torch.tensor([[100, -128]], dtype=torch.int8), torch.tensor([[100, 127]], dtype=torch.int8)
        >>> octavo.gemm.int8_gemm(a, b)
        tensor([[-6256]], dtype=torch.int32)
    """
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        raise DTypeError(f"int8_gemm takes int8 tensors, got {type(a).__name__} and {type(b).__name__}")
    product: Tensor = torch.ops.octavo.int8_gemm.default(a, b, bias, row_scales, column_scales, dtype, zero)
    return product
