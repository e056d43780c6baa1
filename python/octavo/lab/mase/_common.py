"""What the families share: checks at the door, the straight-through gradient, MASE's treatment of tiny values."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from octavo.errors import DTypeError, FormatError, ShapeError

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

NEAR_ZERO = 1e-8
"""MASE lets magnitudes up to this value through unchanged (its `torch.isclose` default)."""

LOG2_GUARD = 1e-9
"""MASE adds this before logarithms and signs, so that zero has an exponent and counts as positive."""


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, quantize: Callable[[Tensor], Tensor]) -> Tensor:
        return quantize(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def straight_through(x: Tensor, quantize: Callable[[Tensor], Tensor]) -> Tensor:
    """`quantize(x)` with the gradient of the identity, unclipped."""
    return _StraightThrough.apply(x, quantize)


def keep_near_zero(x: Tensor, quantized: Tensor) -> Tensor:
    """`x` where its magnitude is at most `NEAR_ZERO`, `quantized` elsewhere."""
    close = x.abs() <= NEAR_ZERO
    # Multiplied, not selected: 0 * inf is how MASE turns infinities, and blocks that hold one, into NaN.
    return close * x + ~close * quantized


def check_tensor(function: str, name: str, x: object, *, least_dims: int = 0, filled: bool = False) -> None:
    """Raise DTypeError or ShapeError unless `x` is a float tensor, with enough dimensions and, if asked, elements."""
    if not isinstance(x, Tensor):
        raise DTypeError(f"{function}: {name} is a {type(x).__name__}; accepted is a torch.Tensor")
    if x.dtype not in FLOATS:
        accepted = ", ".join(str(dtype) for dtype in FLOATS)
        raise DTypeError(f"{function}: {name} has dtype {x.dtype}; accepted are {accepted}")
    if x.ndim < least_dims:
        raise ShapeError(
            f"{function}: {name} needs at least {least_dims} dimension{'s' * (least_dims > 1)}, "
            f"got shape {tuple(x.shape)}"
        )
    if filled and x.numel() == 0:
        raise ShapeError(f"{function}: {name} needs at least one element, got shape {tuple(x.shape)}")


def check_integer(function: str, name: str, value: object, low: int, high: int) -> int:
    """`value` if it is an integer in `low`..`high`, FormatError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise FormatError(f"{function}: {name} is {value!r}; accepted are integers from {low} to {high}")
    return value


def check_dim(function: str, name: str, dim: object, x: Tensor) -> None:
    """Raise ShapeError unless `dim` is a dimension of `x`, counted from either end."""
    if isinstance(dim, bool) or not isinstance(dim, int) or not -x.ndim <= dim < x.ndim:
        raise ShapeError(f"{function}: {name} is {dim!r}; x has shape {tuple(x.shape)}")


def check_bias(function: str, exponent_bias: object) -> int | None:
    """The exponent bias, where None and MASE's text forms of it stand for the default."""
    if exponent_bias in (None, "none", "None"):
        return None
    return check_integer(function, "exponent_bias", exponent_bias, -1023, 1023)


def blocks_along(
    function: str, x: Tensor, block_dim: int, block_size: int
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Blocks of `block_size` along `block_dim`, shape (blocks, block_size), and the function that undoes it.

    The other dimensions are flattened first, so a block may straddle two rows when the size does not divide them.
    """
    check_tensor(function, "x", x, least_dims=1, filled=True)
    check_dim(function, "block_dim", block_dim, x)
    check_integer(function, "block_size", block_size, 1, x.numel())
    if x.numel() % block_size:
        raise ShapeError(
            f"{function}: x has {x.numel()} elements, not a multiple of block_size {block_size} "
            f"(shape {tuple(x.shape)})"
        )
    moved = x.movedim(block_dim, -1)
    return moved.reshape(-1, block_size), lambda blocks: blocks.reshape(moved.shape).movedim(-1, block_dim)
