"""What products with packed weights check before any work, on every device."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from octavo import _core
from octavo._checks import readable
from octavo.errors import DTypeError, ShapeError
from octavo.formats import core
from octavo.tensor import FLOATS, part_specs

INTEGER_BIASES = {**FLOATS, torch.int32: 3}
"""Dtype codes of the biases of integer products."""


@lru_cache(maxsize=4096)
def weight_specs(
    format: str, rows: int, columns: int
) -> tuple[_core.Format, list[tuple[str, torch.dtype, torch.Size]]]:
    """Return the format of a weight, and name, dtype and shape of each part that it has. Raises ShapeError."""
    fmt = core(format)
    if rows < 0 or columns < 0:
        raise ShapeError(f"'{format}' weight of shape ({rows}, {columns}): sizes are at least 0")
    specs = part_specs(fmt, (rows, columns), -1)
    # Parts at the end that the format does not have are neither read nor looked at.
    return fmt, specs if fmt.has_levels else specs[:3] if fmt.has_zeros else specs[:2]


def addresses(parts: tuple[Tensor, ...], specs: list, format: str, rows: int, columns: int) -> tuple[int, ...]:
    """Return the addresses of the parts of a weight. Raises ShapeError."""
    for part, (name, dtype, shape) in zip(parts, specs, strict=False):
        if part.dtype is not dtype or part.shape != shape or not part.is_contiguous():
            raise ShapeError(
                f"'{format}' weight of shape ({rows}, {columns}): {name} are {part.dtype} {tuple(part.shape)}"
                f"{'' if part.is_contiguous() else ', not contiguous'}, expected {dtype} {tuple(shape)}"
            )
    return tuple([part.data_ptr() for part in parts])


def inputs(x: Tensor, format: str, rows: int, columns: int, what: str) -> tuple[Tensor, int, list[int]]:
    """Return ``x`` contiguous and aligned, its dtype code, and the shape of the result. Raises ShapeError."""
    shape = list(x.shape)
    if not shape or shape[-1] != columns:
        raise ShapeError(
            f"{what}: x has shape {tuple(shape)}, the '{format}' weight has shape ({rows}, {columns}); "
            f"the last dimension of x must be {columns}"
        )
    code = FLOATS.get(x.dtype)
    if code is None or not x.is_contiguous() or x.data_ptr() % x.element_size():
        x, code = readable(x, f"{what} with a '{format}' weight: x")
    shape[-1] = rows
    return x, code, shape


def checked_bias(bias: Tensor, rows: int, codes: dict[torch.dtype, int], what: str) -> tuple[Tensor, int]:
    """Return the bias contiguous, and its dtype code. Raises ShapeError and DTypeError."""
    if bias.shape != (rows,):
        raise ShapeError(f"{what}: bias has shape {tuple(bias.shape)}, the weight has {rows} rows; expected ({rows},)")
    code = codes.get(bias.dtype)
    if code is None:
        accepted = ", ".join(str(dtype).removeprefix("torch.") for dtype in codes)
        raise DTypeError(f"{what}: bias has dtype {bias.dtype}; accepted are {accepted}")
    return bias.contiguous(), code
