"""Softmax in base two."""

import torch
from torch import Tensor

from octavo.lab.mase._common import check_dim, check_tensor
from octavo.lab.mase.integer import integer_floor_quantizer, integer_quantizer


def softermax(x: Tensor, dim: int = -1) -> Tensor:
    """`2^(x - floor(max x))` normalized to sum 1 along `dim`.

    `x`: at least one dimension, float dtype. Returns a tensor like `x`. Raises DTypeError, ShapeError.
    Source: MASE `softermax`; Stevens et al., Softermax.
    """
    check_tensor("softermax", "x", x, least_dims=1, filled=True)
    check_dim("softermax", "dim", dim, x)
    powers = 2.0 ** (x - torch.floor(x.amax(dim=dim, keepdim=True)))
    return powers / powers.sum(dim=dim, keepdim=True)


def fixed_softermax(
    x: Tensor, width: int, frac_width: int, out_width: int, out_frac_width: int, dim: int = -1
) -> Tensor:
    """`softermax` between fixed-point inputs (rounded to nearest) and fixed-point outputs (rounded down).

    `x` as there, widths and FormatError as in `integer_quantizer`. Source: MASE `fixed_softermax`.
    """
    probabilities = softermax(integer_quantizer(x, width, frac_width), dim)
    return integer_floor_quantizer(probabilities, out_width, out_frac_width)
