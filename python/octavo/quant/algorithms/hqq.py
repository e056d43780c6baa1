"""Scales fitted without data: HQQ (Badri and Shaji 2023)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from octavo import _core
from octavo.errors import FormatError
from octavo.ops.codec import encode
from octavo.quant.algorithms.solution import Solution, Table, checked_weight
from octavo.storage.reading import shown
from octavo.tensors.formats import Format

_MOST = 10_000  # iterations; it converges in tens


def hqq(weight: Tensor, format: Format | str, *, iterations: int = 20, p: float = 0.7) -> Solution:
    """Quantize a weight with the scales and zero points of least ``sum |w - q|^p``, without calibration data.

    Real scales (``int``, ``uint``, ``nf``, ``ternary``, ``binary``) alternate between rounding and a least-squares fit
    weighted by ``|w - q|^(p - 2)``; shared exponents, E4M3 scales and fraction bits take the best of the neighbours;
    formats without scales are rounded to nearest. Never worse in that sum than rounding with the codec's own scales,
    which it starts from. Source: Badri and Shaji 2023, HQQ.

    Args:
        weight: ``[..., K]``, float32, float16 or bfloat16 on the CPU; groups run along K.
        format: any format.
        iterations: most rounds, 0 to 10000.
        p: exponent, above 0, up to 2; below 2 outliers count less.

    Returns:
        The weight, every element representable, and the scales that encode it.

    Raises:
        FormatError: for an unknown format or option.
        NonFiniteError: for NaN and infinity.
        DTypeError: for another dtype, device or kind of object.
        ShapeError: for a weight without dimensions.

    Example:
        >>> weight = torch.randn(32, 64)
        >>> solved, nearest = octavo.quant.hqq(weight, "uint3:g64").weight, octavo.quantize(weight, "uint3:g64")
        >>> bool((weight - solved).abs().pow(0.7).sum() < (weight - nearest).abs().pow(0.7).sum())
        True
    """
    fmt = Format.parse(format)
    x = checked_weight(weight, "hqq")
    if not isinstance(iterations, int) or isinstance(iterations, bool) or not 0 <= iterations <= _MOST:
        raise FormatError(f"hqq: iterations = {shown(iterations)}; accepted are whole numbers from 0 to {_MOST}")
    if not (isinstance(p, int | float) and 0 < p <= 2):
        raise FormatError(f"hqq: p = {shown(p)}; accepted are numbers above 0 and up to 2")
    table = Table(encode(x, fmt))
    if x.numel() and table.scales.numel():
        values = x.to(torch.float32).contiguous()
        k = values.shape[-1]
        rows = math.prod(values.shape[:-1])
        _core._fit_scales(fmt.core, rows, k, table.groups, values.data_ptr(), 0, p, iterations, table.addresses)
    return Solution.of(table.encode(x.to(torch.float32), x.dtype))
