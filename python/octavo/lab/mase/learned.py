"""Quantizers with learned parameters: LSQ step size and FlexRound."""

import torch
from torch import Tensor

from octavo.errors import ShapeError
from octavo.lab.mase._common import check_integer, check_tensor
from octavo.lab.mase.integer import WIDEST, integer_bounds

UNQUANTIZED_LEVEL = 256
"""LSQ with this many levels or more returns its input."""


def lsq_integer(x: Tensor, s: Tensor, level: int, sym: bool = False) -> Tensor:
    """Round to `level` multiples of the learned step `s`: `clip(floor(x/s + 0.5)) * s`, halves upwards.

    `x`: any shape, float dtype, not empty; `s`: one element. Returns a tensor like `x`; from 256 levels on `x` itself.
    `sym` bounds the integers by -ceil(level/2) .. level//2 - 1, else they are 0 .. level-1.
    Gradients: to `x`, 1 where the integer lies inside the bounds, both included; to `s`, that of the formula under a
    straight-through floor, times 1/sqrt(largest * numel).

    Raises DTypeError, FormatError, ShapeError. Source: MASE `LSQInteger` in evaluation mode; Esser et al., Learned Step
    Size Quantization, section 2.
    """
    name = "lsq_integer"
    check_tensor(name, "x", x, filled=True)
    check_tensor(name, "s", s)
    check_integer(name, "level", level, 4 if sym else 2, 2**WIDEST)
    if s.numel() != 1:
        raise ShapeError(f"{name}: s needs one element, got shape {tuple(s.shape)}")
    if level >= UNQUANTIZED_LEVEL:
        return x
    low, high = (float(-level // 2), float(level // 2 - 1)) if sym else (0.0, float(level - 1))

    gradient_scale = 1.0 / (torch.tensor(high, dtype=x.dtype, device=x.device) * x.numel()) ** 0.5
    slow = s * gradient_scale
    step = (s - slow).detach() + slow  # the value of s, its gradient scaled
    shifted = x / step + 0.5
    integer = (shifted.floor() - shifted).detach() + shifted
    # Selected rather than clamped: torch's versions disagree about the gradient of clamp on its bounds.
    inside = (integer >= low) & (integer <= high)
    return torch.where(inside, integer, integer.detach().clamp(low, high)) * step


def flexround_quantizer(x: Tensor, width: int, frac_width: int) -> Tensor:
    """Round to signed fixed point with halves upwards: `clip(floor(x * 2^frac_width + 0.5)) / 2^frac_width`.

    `x`: any shape, float dtype. Returns a tensor like `x`, without gradient.
    Raises DTypeError, FormatError. Source: MASE `FlexRoundQuantizer`, symmetric.
    """
    name = "flexround_quantizer"
    check_tensor(name, "x", x)
    low, high = integer_bounds(check_integer(name, "width", width, 1, WIDEST), True)
    scale = 2.0 ** check_integer(name, "frac_width", frac_width, -126, 126)
    return torch.floor(x.detach() * scale + 0.5).clamp(low, high) / scale


def flexround_weight(weight: Tensor, s1: Tensor, s2: Tensor, s3: Tensor) -> Tensor:
    """`s1 * floor(weight / (s1 * s2 * s3) + 0.5)`: a grid of step `s1`, rounded after a learned division.

    `weight` and `s2`: shape (outputs, inputs); `s3`: (outputs, 1); `s1`: a scalar. Returns a tensor like `weight`, not
    clipped, without gradient. Raises DTypeError, ShapeError.
    Source: MASE `LinearFlexRound`; Lee et al., FlexRound, equation 2.
    """
    name = "flexround_weight"
    for label, tensor in (("weight", weight), ("s1", s1), ("s2", s2), ("s3", s3)):
        check_tensor(name, label, tensor)
        if any(theirs not in (1, ours) for theirs, ours in zip(tensor.shape[::-1], weight.shape[::-1], strict=False)):
            raise ShapeError(f"{name}: {label} of shape {tuple(tensor.shape)} does not fit {tuple(weight.shape)}")
    return (s1 * torch.floor(weight / (s1 * s2 * s3) + 0.5)).detach()
