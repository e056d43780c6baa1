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
    """Quantize a weight with the scales and zero points of least ``sum |w - q|^p``, found without calibration data.

    ``weight``: ``[..., K]``, float32, float16 or bfloat16 on the CPU; groups run along K. ``format``: any. Real scales
    (``int``, ``uint``, ``nf``, ``ternary``, ``binary``) alternate between rounding and a least-squares fit weighted by
    ``|w - q|^(p - 2)``, at most ``iterations`` times; shared exponents, E4M3 scales and fraction bits take the best of
    the neighbours; formats without scales are rounded to nearest. p below 2 cares less for outliers.

    Never worse in that sum than rounding with the codec's own scales, which it starts from. Raises FormatError for
    ``iterations`` outside 0 to 10000 or p outside 0 < p <= 2, NonFiniteError for NaN and infinities, DTypeError,
    ShapeError.
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
