"""torch.library ops that read sparse codes: ``dense_codes`` and ``sparse_linear``, and products piece by piece.

Few rows of inputs have a kernel that expands codes in registers, where the machine has AVX-512 with VBMI2. Any other
product expands some rows of weights at a time, a few megabytes, and multiplies them as dense codes: its result is that
of dense codes, bit for bit. Source: FORMATS.md, sections 5 and 6.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch import library as registry
from torch.autograd import forward_ad

from octavo import _core
from octavo.errors import DTypeError, ShapeError
from octavo.ops import linear
from octavo.ops._checks import register
from octavo.ops._derivatives import constant
from octavo.ops._operands import addresses as part_addresses
from octavo.ops._operands import check_bias, checked_bias, inputs, misfit, weight_specs, wrong_width
from octavo.tensors.formats import core
from octavo.tensors.packed_tensor import FLOATS
from octavo.tensors.sparse_codes import SparseCodes, addresses, code_bytes, expand, pieces

_library = torch.library.Library("octavo", "FRAGMENT")
_SPARSE = "Tensor codes, Tensor bitmap, Tensor starts"
_library.define(
    f"dense_codes({_SPARSE}, str format, SymInt rows, SymInt columns, SymInt first, SymInt count) -> Tensor"
)
_library.define(
    f"sparse_linear(Tensor x, {_SPARSE}, Tensor scales, Tensor zeros, Tensor levels, Tensor? bias, str format, "
    "SymInt out_features, SymInt in_features) -> Tensor"
)


def _dense_codes(
    codes: Tensor, bitmap: Tensor, starts: Tensor, format: str, rows: int, columns: int, first: int, count: int
) -> Tensor:
    return expand(SparseCodes(codes, bitmap, starts), core(format), rows, columns, first, count)


def _sparse_linear(
    x: Tensor, codes: Tensor, bitmap: Tensor, starts: Tensor, scales: Tensor, zeros: Tensor, levels: Tensor,
    bias: Tensor | None, format: str, out_features: int, in_features: int,
) -> Tensor:  # fmt: skip
    sparse = SparseCodes(codes, bitmap, starts)
    x, code, shape = inputs(x, format, out_features, in_features, "sparse_linear")
    m = math.prod(shape[:-1])
    fmt, specs = weight_specs(format, out_features, in_features)
    if _core._sparse_kernel(fmt, m, out_features, in_features) is None:
        plain = torch.ops.octavo.packed_linear_plain.default

        def multiply(codes: Tensor, scales: Tensor, bias: Tensor | None, rows: int) -> Tensor:
            made: Tensor = plain(x, codes, scales, zeros, levels, bias, format, rows, in_features)
            return made

        return in_pieces(sparse, scales, bias, format, (out_features, in_features), multiply)
    at = addresses(sparse, fmt, out_features, in_features)
    # The codes are looked at above: their shape is not that of dense ones.
    _, scales_at, _, levels_at = part_addresses(
        (scales, scales, zeros, levels), [specs[1], *specs[1:]], format, out_features, in_features
    )
    added = None
    if bias is not None:
        bias, bias_code = checked_bias(bias, out_features, FLOATS, "sparse_linear")
        added = (bias.data_ptr(), bias_code)
    out = x.new_empty(*shape)
    sizes = (code, m, out_features, in_features)
    _core._sparse_linear(fmt, *sizes, x.data_ptr(), at, (0, scales_at, 0, levels_at), added, out.data_ptr())
    return out


def _fake_dense_codes(
    codes: Tensor, bitmap: Tensor, starts: Tensor, format: str, rows: int, columns: int, first: int, count: int
) -> Tensor:
    return codes.new_empty((count, code_bytes(columns, core(format).width)))


def _fake_sparse_linear(
    x: Tensor, codes: Tensor, bitmap: Tensor, starts: Tensor, scales: Tensor, zeros: Tensor, levels: Tensor,
    bias: Tensor | None, format: str, out_features: int, in_features: int,
) -> Tensor:  # fmt: skip
    if x.ndim == 0 or x.shape[-1] != in_features:
        raise wrong_width(x.shape, format, out_features, in_features, "sparse_linear")
    if x.dtype not in FLOATS:
        raise DTypeError(f"sparse_linear: x has dtype {x.dtype}; accepted are float32, float16, bfloat16")
    return x.new_empty((*x.shape[:-1], out_features))


register(_library, {"dense_codes": _dense_codes, "sparse_linear": _sparse_linear}, "CPU")
registry.register_fake("octavo::dense_codes", _fake_dense_codes, lib=_library)
registry.register_fake("octavo::sparse_linear", _fake_sparse_linear, lib=_library)
constant(_library, "dense_codes", "codes are constants")
constant(_library, "sparse_linear", "multiply calls packed_linear where a derivative is wanted")

Multiply = Callable[[Tensor, Tensor, Tensor | None, int], Tensor]
"""A product with some rows of weights: their dense codes, scales, biases and number."""


def in_pieces(
    sparse: SparseCodes, scales: Tensor, bias: Tensor | None, format: str, shape: tuple[int, int], multiply: Multiply
) -> Tensor:
    """Return the product with a weight of sparse codes, a few megabytes of whose rows are expanded at a time."""
    rows, columns = shape
    fmt, specs = weight_specs(format, rows, columns)
    name, dtype, wanted, *_ = specs[1]
    if scales.shape != wanted:  # they are sliced below; their dtype is looked at with each piece
        raise misfit(scales, name, dtype, wanted, f"'{format}' weight of shape ({rows}, {columns})")
    if bias is not None:
        check_bias(bias, rows, FLOATS, "sparse_linear")
    whole = fmt.granularity not in ("channel", "block")
    made = []
    for first, some in pieces(fmt, rows, columns):
        codes = torch.ops.octavo.dense_codes.default(*sparse, format, rows, columns, first, some)
        part = scales if whole else scales[first : first + some]
        made.append(multiply(codes, part, None if bias is None else bias[first : first + some], some))
    return made[0] if len(made) == 1 else torch.cat(made, -1)


def multiply(
    x: Tensor, sparse: SparseCodes, scales: Tensor, zeros: Tensor, levels: Tensor, bias: Tensor | None, format: str,
    rows: int, columns: int,
) -> Tensor:  # fmt: skip
    """Return ``x W^T + bias`` for sparse codes of W: within the bound of :func:`octavo.ops.linear.packed_linear`.

    Where a derivative is wanted, its pieces are those of ``packed_linear``, which keeps their dense codes for it.
    """
    graded = torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad))
    if not graded and forward_ad._current_level < 0 and torch._C._functorch.maybe_current_level() is None:
        y: Tensor = torch.ops.octavo.sparse_linear.default(
            x, *sparse, scales, zeros, levels, bias, format, rows, columns
        )
        return y
    op = torch.ops.octavo.packed_linear.default

    def product(codes: Tensor, scales: Tensor, bias: Tensor | None, some: int) -> Tensor:
        made: Tensor = op(x, codes, scales, zeros, levels, bias, format, some, columns)
        return made

    return in_pieces(sparse, scales, bias, format, (rows, columns), product)


def kernel(
    format: str, m: int, n: int, k: int, dtype: torch.dtype, input_format: str | None = None, *, rounded: bool = False
) -> str:
    """Name the kernel that multiplies ``m`` rows with an ``(n, k)`` weight of sparse codes on the CPU."""
    if not 0 <= m < 2**63:
        raise ShapeError(f"kernel for {m} rows of x; accepted are at least 0, below 2^63")
    found = None if input_format else _core._sparse_kernel(core(format), m, n, k)
    return found or f"expand + {linear.kernel(format, m, n, k, dtype, input_format, rounded=rounded)}"
