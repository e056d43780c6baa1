"""Checks of the operands of products with packed weights, before any work, for every device."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

import torch
from torch import Tensor

from octavo import _core
from octavo.errors import DTypeError, ShapeError
from octavo.ops._checks import readable
from octavo.tensors.formats import core
from octavo.tensors.packed_tensor import FLOATS, part_specs
from octavo.tensors.tensor_memory import check_held

INTEGER_BIASES = {**FLOATS, torch.int32: 3}
"""Dtype codes of the biases of integer products."""


PartSpec: TypeAlias = tuple[str, torch.dtype, torch.Size, int, int]
"""Name, dtype and shape of a part of a weight, bytes of one element and of all."""


@lru_cache(maxsize=4096)
def weight_specs(format: str, rows: int, columns: int) -> tuple[_core.Format, list[PartSpec]]:
    """Return the format of a weight, and what each part that it has must be. Raises ShapeError."""
    fmt = core(format)
    specs = part_specs(fmt, (rows, columns), -1)
    # Parts at the end that the format does not have are neither read nor looked at.
    there = specs if fmt.has_levels else specs[:3] if fmt.has_zeros else specs[:2]
    return fmt, [(*spec, spec[1].itemsize, spec[2].numel() * spec[1].itemsize) for spec in there]


def addresses(
    parts: tuple[Tensor, ...], specs: list[PartSpec], format: str, rows: int, columns: int
) -> tuple[int, int, int, int]:
    """Return the addresses of the parts of a weight, 0 for parts that its format does not have. Raises ShapeError."""
    found = [0, 0, 0, 0]
    for at, (name, dtype, shape, itemsize, nbytes) in enumerate(specs):
        part = parts[at]
        if part.dtype is not dtype or part.shape != shape or not part.is_contiguous():
            raise misfit(part, name, dtype, shape, f"'{format}' weight of shape ({rows}, {columns})")
        if nbytes:
            if part.untyped_storage().nbytes() < nbytes + part.storage_offset() * itemsize:
                check_held(part, f"'{format}' weight of shape ({rows}, {columns}): {name}")
            found[at] = part.data_ptr()
    return found[0], found[1], found[2], found[3]


def misfit(part: Tensor, name: str, dtype: torch.dtype, shape: Sequence[int], what: str) -> ShapeError:
    """Return the error that tells how a part differs from what it must be."""
    return ShapeError(
        f"{what}: {name} are {part.dtype} {tuple(part.shape)}"
        f"{'' if part.is_contiguous() else ', not contiguous'}, expected {dtype} {tuple(shape)}"
    )


def inputs(x: Tensor, format: str, rows: int, columns: int, what: str) -> tuple[Tensor, int, list[int]]:
    """Return ``x`` contiguous and aligned, its dtype code, and the shape of the result. Raises ShapeError."""
    shape = list(x.shape)
    if not shape or shape[-1] != columns:
        raise wrong_width(shape, format, rows, columns, what)
    code = FLOATS.get(x.dtype)
    size = x.itemsize
    if (
        code is None
        or not x.is_contiguous()
        or x.data_ptr() % size
        or x.untyped_storage().nbytes() < x.storage_offset() * size + x.nbytes
    ):
        x, code = readable(x, f"{what} with a '{format}' weight: x")
    shape[-1] = rows
    return x, code, shape


def wrong_width(shape: Sequence[int], format: str, rows: int, columns: int, what: str) -> ShapeError:
    """Return the error that tells how inputs and weight differ."""
    return ShapeError(
        f"{what}: x has shape {tuple(shape)}, the '{format}' weight has shape ({rows}, {columns}); "
        f"the last dimension of x must be {columns}"
    )


def checked_bias(bias: Tensor, rows: int, codes: dict[torch.dtype, int], what: str) -> tuple[Tensor, int]:
    """Return the bias contiguous, and its dtype code. Raises ShapeError and DTypeError."""
    code = check_bias(bias, rows, codes, what)
    if (
        not bias.is_contiguous()
        or bias.untyped_storage().nbytes() < bias.storage_offset() * bias.itemsize + bias.nbytes
    ):
        check_held(bias, f"{what}: bias")
        bias = bias.contiguous()
    return bias, code


def check_bias(bias: Tensor, rows: int, codes: dict[torch.dtype, int], what: str) -> int:
    """Return the dtype code of a bias, which may have no values. Raises ShapeError and DTypeError."""
    if bias.shape != (rows,):
        raise ShapeError(f"{what}: bias has shape {tuple(bias.shape)}, the weight has {rows} rows; expected ({rows},)")
    code = codes.get(bias.dtype)
    if code is None:
        accepted = ", ".join(str(dtype).removeprefix("torch.") for dtype in codes)
        raise DTypeError(f"{what}: bias has dtype {bias.dtype}; accepted are {accepted}")
    return code


def wrong_gradient(grad: Tensor, format: str, rows: int) -> ShapeError:
    """Return the error that tells how a gradient and a weight differ."""
    return ShapeError(
        f"packed_linear_backward: grad has shape {tuple(grad.shape)}, the '{format}' weight has {rows} rows; "
        f"the last dimension of grad must be {rows}"
    )


def check_lookup(ids: Tensor, dtype: torch.dtype) -> None:
    """Refuse ids and dtypes that tables of packed rows do not take. Raises DTypeError."""
    if ids.dtype not in (torch.int64, torch.int32):
        raise DTypeError(f"packed_embedding: ids have dtype {ids.dtype}; accepted are int64 and int32")
    if dtype not in FLOATS:
        raise DTypeError(f"packed_embedding to {dtype}; accepted are float32, float16, bfloat16")


def check_grouped(bias: Tensor | None, input_scales: Tensor | None, format: str, input_format: str) -> None:
    """Refuse a bias of integers and given scales where each group has its own. Raises DTypeError and ShapeError."""
    what = f"integer_linear of a '{format}' weight and '{input_format}' inputs"
    if input_scales is not None:
        raise ShapeError(f"{what}: input_scales are given; scales of groups are chosen from x, leave them out")
    if bias is not None and not bias.is_floating_point():
        raise DTypeError(f"{what}: bias has dtype {bias.dtype}; accepted are float32, float16, bfloat16")


def checked_scales(scales: Tensor, count: int, input_format: str) -> Tensor:
    """Return input scales contiguous. Raises DTypeError and ShapeError."""
    check_scales(scales, count, input_format)
    check_held(scales, "integer_linear: input_scales")
    return scales.contiguous()


def check_scales(scales: Tensor, count: int, input_format: str) -> None:
    """Refuse input scales of another dtype or number. Raises DTypeError and ShapeError."""
    if scales.dtype != torch.float32:
        raise DTypeError(f"integer_linear: input_scales have dtype {scales.dtype}; accepted is float32")
    if scales.numel() != count:
        raise ShapeError(
            f"integer_linear: input_scales hold {scales.numel()} values, '{input_format}' inputs need {count}"
        )
