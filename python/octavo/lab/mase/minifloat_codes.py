"""Element codes of MASE's `mxfp`: encode and decode, with the encoder's faults."""

import torch
from torch import Tensor

from octavo.errors import DTypeError, FormatError
from octavo.lab.mase._common import check_integer, check_tensor

ROUND_MODES = {"rn": torch.round, "ru": torch.ceil, "rd": torch.floor, "rz": torch.floor}
"""Applied to magnitudes: `ru` rounds away from zero, `rd` and `rz` towards it."""

_KEPT_BITS = 15
"""Mantissa bits the encoder looks at before rounding; the lower eight of float32 are dropped."""


def extract_minifloat_component(
    x: Tensor, exp_bits: int, frac_bits: int, is_finite: bool = True, round_mode: str = "rn"
) -> Tensor:
    """Codes of the minifloats that MASE rounds `x` to: sign, exponent, fraction from the top bit.

    `x`: any shape, float dtype, widened or rounded to float32. Returns uint16 of the same shape.
    `exp_bits` 1..8, `frac_bits` 0..10, together at most 15. The bias is 2^(exp_bits-1)-1; without `is_finite` the
    highest exponent is kept for infinities and NaN. `round_mode`: `rn` nearest, ties to even; `ru` away from zero; `rd`
    and `rz` towards zero.

    The faults reproduced: a fraction that rounds up to 2^frac_bits is OR-ed into the exponent, so that it carries from
    an even exponent code and halves the value at an odd one; subnormals are rounded before they are shifted, and only
    the highest of their binades survives; an infinity becomes the largest power of two, NaN the largest value.

    Raises DTypeError, FormatError. Source: MASE `_minifloat_mx`, `extract_minifloat_component`; FORMATS.md, section 6.
    """
    name = "extract_minifloat_component"
    check_tensor(name, "x", x)
    _check_bits(name, exp_bits, frac_bits)
    if round_mode not in ROUND_MODES:
        raise FormatError(f"{name}: round_mode is {round_mode!r}; accepted are {', '.join(ROUND_MODES)}")
    bias = 2 ** (exp_bits - 1) - 1
    top_exponent = 2**exp_bits - (1 if is_finite else 2)
    steps = 1 << frac_bits

    x = x.to(torch.float32)
    bits = x.abs().contiguous().view(torch.int32)
    float_exponent = bits >> 23
    kept = (bits & 0x7FFFFF) >> (23 - _KEPT_BITS)
    fraction = ROUND_MODES[round_mode](kept / 2 ** (_KEPT_BITS - frac_bits)).to(torch.int32)

    exponent = float_exponent - 127 + bias
    code = (exponent << frac_bits) | fraction
    # The implicit bit is OR-ed in before the shift: a fraction of `steps` swallows it, one of 0 makes the value 0.
    subnormal = torch.where(fraction == 0, 0, (fraction | steps) >> 1)
    code = torch.where(exponent == 0, subnormal, code)
    code = torch.where(exponent > top_exponent, (top_exponent << frac_bits) | (steps - 1), code)
    code = torch.where(torch.isinf(x), top_exponent << frac_bits, code)
    code = torch.where((exponent < 0) | (float_exponent == 0), 0, code)
    return (code | ((x < 0).to(torch.int32) << (exp_bits + frac_bits))).to(torch.uint16)


def compose_minifloat_component(elements: Tensor, exp_bits: int, frac_bits: int, is_finite: bool = True) -> Tensor:
    """Values of minifloat codes, subnormals included; the inverse `extract_minifloat_component` should have had.

    `elements`: any shape, integer dtype; bits above the sign are ignored. Returns float32 of the same shape.
    Without `is_finite` the highest exponent decodes to infinities (fraction 0) and NaN.

    Raises DTypeError, FormatError. Source: MASE `_minifloat_mx`, `compose_minifloat_component`.
    """
    name = "compose_minifloat_component"
    if not isinstance(elements, Tensor) or elements.is_floating_point() or elements.is_complex():
        raise DTypeError(f"{name}: elements must be an integer tensor of codes")
    _check_bits(name, exp_bits, frac_bits)
    bias = 2 ** (exp_bits - 1) - 1

    codes = elements.to(torch.int32)
    exponent = (codes >> frac_bits) & (2**exp_bits - 1)
    fraction = (codes & (2**frac_bits - 1)) / 2**frac_bits
    normal = (1 + fraction) * torch.exp2((exponent - bias).to(torch.float32))
    value = torch.where(exponent == 0, fraction * 2.0 ** (1 - bias), normal)
    if not is_finite:
        special = torch.where(fraction == 0, float("inf"), float("nan"))
        value = torch.where(exponent == 2**exp_bits - 1, special, value)
    return torch.where((codes >> (exp_bits + frac_bits)) & 1 == 1, -value, value)


def _check_bits(function: str, exp_bits: int, frac_bits: int) -> None:
    check_integer(function, "exp_bits", exp_bits, 1, 8)
    check_integer(function, "frac_bits", frac_bits, 0, 10)
    check_integer(function, "exp_bits + frac_bits", exp_bits + frac_bits, 1, 15)
