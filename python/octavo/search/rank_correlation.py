"""Spearman's rank correlation, ties by their mean rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Values = Sequence[float] | NDArray[np.float64]


def rank_correlation(first: Values, second: Values) -> float:
    """Return the correlation of the ranks of two series of one length, from -1 to 1.

    NaN where fewer than 3 pairs are finite, or all values of a series are equal: they have no order to compare.
    """
    a, b = (np.asarray(values, dtype=np.float64).ravel() for values in (first, second))
    known = np.isfinite(a) & np.isfinite(b)
    if known.sum() < 3:
        return float("nan")
    a, b = (_ranks(values[known]) for values in (a, b))
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale else float("nan")


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    mean: NDArray[np.float64] = (ends - (counts - 1) / 2)[inverse]
    return mean
