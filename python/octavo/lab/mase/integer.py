"""Fixed point with a given fraction width, and integers with one scale per row."""

from collections.abc import Callable

import torch
from torch import Tensor

from octavo.lab.mase._common import LOG2_GUARD, check_integer, check_tensor, straight_through

WIDEST = 32


def integer_bounds(width: int, is_signed: bool) -> tuple[int, int]:
    """Smallest and largest integer of `width` bits."""
    return (-(2 ** (width - 1)), 2 ** (width - 1) - 1) if is_signed else (0, 2**width - 1)


def integer_quantizer(x: Tensor, width: int, frac_width: int | None = None, is_signed: bool = True) -> Tensor:
    """Round to fixed point: `clip(rne(x * 2^frac_width)) / 2^frac_width`.

    `x`: any shape, float dtype; the arithmetic stays in that dtype. Returns a tensor like `x`.
    `width` is 1..32 bits in all, `frac_width` any integer (None: half of `width`). Infinities saturate, NaN stays NaN.
    Bounds above 2^24 are rounded to float32, so that a saturated value of 26 bits or more is one step too large.

    Raises DTypeError, FormatError. Source: MASE `integer_quantizer`.
    """
    return _fixed_point("integer_quantizer", x, width, frac_width, is_signed, torch.round)


def integer_floor_quantizer(x: Tensor, width: int, frac_width: int | None = None, is_signed: bool = True) -> Tensor:
    """`integer_quantizer` rounding towards minus infinity, as hardware that drops bits does.

    Shapes, ranges and errors as there. Source: MASE `integer_floor_quantizer`.
    """
    return _fixed_point("integer_floor_quantizer", x, width, frac_width, is_signed, torch.floor)


def scale_integer_quantizer(x: Tensor, width: int, is_signed: bool = True) -> Tensor:
    """Round to integers whose scale maps the largest magnitude of each row to 2^(width-1), or 2^width unsigned.

    `x`: at least one dimension, float dtype; a row runs along the last. Returns a tensor like `x`.
    The largest magnitude itself saturates to 2^(width-1)-1 when positive, since the scale is one step too fine for it.

    Raises DTypeError, FormatError, ShapeError. Source: MASE `scale_integer_quantizer`.
    """
    name = "scale_integer_quantizer"
    check_tensor(name, "x", x, least_dims=1, filled=True)
    low, high = integer_bounds(check_integer(name, "width", width, 1, WIDEST), is_signed)

    def quantize(x: Tensor) -> Tensor:
        scale = (high + 1) / (x.abs().amax(dim=-1, keepdim=True) + LOG2_GUARD)
        return torch.round(x * scale).clamp(low, high) / scale

    return straight_through(x, quantize)


def _fixed_point(
    name: str, x: Tensor, width: int, frac_width: int | None, is_signed: bool, rounding: Callable[[Tensor], Tensor]
) -> Tensor:
    check_tensor(name, "x", x)
    low, high = integer_bounds(check_integer(name, "width", width, 1, WIDEST), is_signed)
    scale = 2.0 ** (width // 2 if frac_width is None else check_integer(name, "frac_width", frac_width, -126, 126))
    return straight_through(x, lambda x: rounding(x * scale).clamp(low, high) / scale)
