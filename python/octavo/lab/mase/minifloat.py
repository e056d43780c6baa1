"""Minifloats without and with the implicit bit, and the logarithmic format."""

import torch
from torch import Tensor

from octavo.lab.mase._common import (
    LOG2_GUARD,
    check_bias,
    check_integer,
    check_tensor,
    keep_near_zero,
    straight_through,
)


def minifloat_denorm_quantizer(x: Tensor, width: int, exponent_width: int, exponent_bias: int | None = None) -> Tensor:
    """Round to `+-2^e * k / 2^M` with `k < 2^M`, a minifloat without implicit bit, M = width - exponent_width - 1.

    `x`: any shape, float dtype; the arithmetic stays in that dtype. Returns a tensor like `x`.
    e lies in -bias .. 2^exponent_width-1-bias; the default bias is 2^(exponent_width-1)-1. A mantissa that rounds up to
    2^M is clipped to 2^M-1 instead of carrying, |x| <= 1e-8 passes unchanged, infinities become NaN.

    Raises DTypeError, FormatError. Source: MASE `minifloat_denorm_quantizer`; FORMATS.md, section 6.
    """
    name = "minifloat_denorm_quantizer"
    check_tensor(name, "x", x)
    mantissa_bits = minifloat_mantissa_bits(name, width, exponent_width)
    exponent_bias = check_bias(name, exponent_bias)
    bias = 2 ** (exponent_width - 1) - 1 if exponent_bias is None else exponent_bias
    steps = 2**mantissa_bits

    def quantize(x: Tensor) -> Tensor:
        value = x.abs()
        exponent = torch.ceil(torch.log2(value + LOG2_GUARD)).clamp(-bias, 2**exponent_width - 1 - bias)
        power = 2.0**exponent
        mantissa = torch.round(value / power * steps).clamp(0, steps - 1) / steps
        return keep_near_zero(x, torch.sign(x + LOG2_GUARD) * power * mantissa)

    return straight_through(x, quantize)


def minifloat_ieee_quantizer(x: Tensor, width: int, exponent_width: int, exponent_bias: int | None = None) -> Tensor:
    """Round to a minifloat with implicit bit and subnormals; every code is finite (E4M3 tops at 480).

    `x`: any shape, float dtype; the arithmetic stays in that dtype. Returns a tensor like `x`.
    The default bias is 2^(exponent_width-1)-1. A mantissa that rounds up to the next binade is clipped instead of
    carrying, |x| <= 1e-8 passes unchanged, infinities become NaN.

    Raises DTypeError, FormatError. Source: MASE `minifloat_ieee_quantizer`; FORMATS.md, section 6.
    """
    name = "minifloat_ieee_quantizer"
    check_tensor(name, "x", x)
    mantissa_bits = minifloat_mantissa_bits(name, width, exponent_width)
    exponent_bias = check_bias(name, exponent_bias)
    bias = 2 ** (exponent_width - 1) - 1 if exponent_bias is None else exponent_bias
    return straight_through(x, lambda x: round_to_minifloat(x, mantissa_bits, exponent_width, bias))


def log_quantizer(x: Tensor, width: int, exponent_bias: int | None = None) -> Tensor:
    """Round to a signed power of two, nearest in the log domain; there is no zero.

    `x`: any shape, float dtype; the arithmetic stays in that dtype. Returns a tensor like `x`.
    Exponents lie in -bias .. 2^(width-1)-1-bias; the default bias is 2^(width-2)-1. A tenth of the smallest power is
    added before logarithm and sign, so that zero becomes the smallest positive power.

    Raises DTypeError, FormatError. Source: MASE `log_quantizer`; FORMATS.md, section 6.
    """
    name = "log_quantizer"
    check_tensor(name, "x", x)
    check_integer(name, "width", width, 2, 16)
    exponent_bias = check_bias(name, exponent_bias)
    bias = 2 ** (width - 2) - 1 if exponent_bias is None else exponent_bias
    return straight_through(x, lambda x: round_to_power(x, width, bias))


def minifloat_mantissa_bits(function: str, width: int, exponent_width: int) -> int:
    """Mantissa bits that `width` leaves beside the sign and the exponent, after checking both."""
    check_integer(function, "exponent_width", exponent_width, 1, 8)
    return check_integer(function, "width", width, exponent_width + 1, 32) - exponent_width - 1


def round_to_minifloat(x: Tensor, mantissa_bits: int, exponent_width: int, bias: int | Tensor) -> Tensor:
    """`minifloat_ieee_quantizer` for a bias that may differ between blocks (a tensor that broadcasts to `x`)."""
    steps = 2**mantissa_bits
    value = x.abs()
    exponent = torch.floor(torch.log2(value + LOG2_GUARD)).clamp(-bias, 2**exponent_width - 1 - bias)
    power = 2.0**exponent
    mantissa = value / power
    # The lowest exponent marks subnormals; they share the step of the binade above it, hence the factor 2.
    subnormal = exponent <= -bias
    normal_steps = torch.round(mantissa * steps - steps).clamp(0, steps - 1)
    subnormal_steps = torch.round(mantissa * steps / 2).clamp(0, steps - 1)
    rounded = torch.where(subnormal, subnormal_steps / steps * 2, 1 + normal_steps / steps)
    return keep_near_zero(x, torch.sign(x + LOG2_GUARD) * power * rounded)


def round_to_power(x: Tensor, width: int, bias: int | Tensor) -> Tensor:
    """`log_quantizer` for a bias that may differ between blocks (a tensor that broadcasts to `x`)."""
    guard = 2.0**-bias * 0.1
    exponent = torch.round(torch.log2(x.abs() + guard)).clamp(-bias, 2 ** (width - 1) - 1 - bias)
    return torch.sign(x + guard) * 2.0**exponent
