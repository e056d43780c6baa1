"""Means and 95 % intervals over seeds, and the standard error of a difference on the same texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.errors import DataError

# 97.5 % quantiles of Student's t for 1 to 10 degrees of freedom; beyond, the expansion below is accurate to 0.003.
# Python's statistics module has only the normal distribution, and scipy is no dependency of Octavo.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_NORMAL = 1.959964
# 99.5 % quantiles, for claims that may be wrong once in a hundred.
_T_RARE = (63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169)
_NORMAL_RARE = 2.575829


@dataclass(frozen=True)
class Spread:
    """``mean`` of ``count`` values, standard deviation ``sd``, and ``half`` the width of the 95 % interval of the mean.

    ``sd`` and ``half`` are None for one value, which has no spread.
    """

    mean: float
    count: int
    sd: float | None
    half: float | None


def spread(values: Sequence[float]) -> Spread:
    """Return mean and Student's 95 % interval. Raises DataError for no values, and for NaN or infinity."""
    if not values or not all(math.isfinite(value) for value in values):
        raise DataError(f"{len(values)} values {list(values)[:3]}; accepted are finite numbers, one at least")
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return Spread(mean, 1, None, None)
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    return Spread(mean, count, sd, student(count - 1) * sd / math.sqrt(count))


def student(freedom: float, *, rare: bool = False) -> float:
    """Return the 97.5 % quantile of Student's t with ``freedom`` degrees of freedom; ``rare``: the 99.5 % one.

    Between whole numbers up to 10 it is interpolated linearly in ``1 / freedom``, which never underestimates.
    """
    known, z = (_T_RARE, _NORMAL_RARE) if rare else (_T, _NORMAL)
    if freedom <= len(known):
        below = max(1, math.floor(freedom))
        above = min(below + 1, len(known))
        if above == below:
            return known[below - 1]
        part = (1 / below - 1 / max(freedom, 1)) / (1 / below - 1 / above)
        return known[below - 1] + part * (known[above - 1] - known[below - 1])
    # Cornish-Fisher expansion, Abramowitz and Stegun 26.7.5
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def paired_error(lost: int, gained: int, texts: int) -> float:
    """Return the standard error of an accuracy difference on the same texts.

    ``lost`` texts were right before and are wrong now, ``gained`` texts the reverse. Texts on which both agree add
    nothing, so the error is far smaller than that of two independent accuracies. Source: McNemar 1947.
    """
    return math.sqrt(max(lost + gained - (gained - lost) ** 2 / texts, 0.0)) / texts


def wilson(right: float, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a share, ``right`` of ``count``. Source: Wilson 1927.

    Raises DataError for no examples.
    """
    if count < 1:
        raise DataError("an interval of 0 examples; accepted is one at least")
    share, z = right / count, _NORMAL
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)


def weighted_mean(values: Sequence[float], weights: Sequence[float] | None = None) -> tuple[float, float | None]:
    """Return the mean of values and half the width of its 95 % interval, None for a single one.

    ``weights``: of the values, such as the tokens of a window; the interval is that of a ratio of sums over windows
    drawn at random (Cochran 1977, section 2.11), by Student's t. Raises DataError as :func:`spread`.
    """
    if weights is None:
        result = spread(values)
        return result.mean, result.half
    if not values or not all(math.isfinite(value) for value in values) or not math.fsum(weights) > 0:
        raise DataError(f"{len(values)} values {list(values)[:3]}; accepted are finite numbers with weights above 0")
    total, count = math.fsum(weights), len(values)
    mean = math.fsum(value * weight for value, weight in zip(values, weights, strict=True)) / total
    if count == 1:
        return mean, None
    squares = math.fsum((weight * (value - mean)) ** 2 for value, weight in zip(values, weights, strict=True))
    return mean, student(count - 1) * math.sqrt(squares * count / (count - 1)) / total
