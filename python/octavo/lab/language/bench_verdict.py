"""Verdicts of the bench: whether a difference of losses over seeds can be told from noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.train.intervals import student

LEAST_SEEDS = 3
"""Seeds of each side that a claim needs."""
_SIGMAS = 3.0


@dataclass(frozen=True)
class Comparison:
    """The mean of one side less that of the other, nats a token.

    ``error``: its standard error from the spread over seeds of both sides; None with one seed a side. ``needed``: the
    size from which it is claimed. ``verdict``: ``better`` (below), ``worse``, ``even`` (not told from noise), ``seeds``
    where there are too few of them for any claim, or ``no spread`` where losses differ from side to side and never from
    seed to seed, so that there is no noise to hold a difference against.
    """

    difference: float
    error: float | None
    needed: float | None
    verdict: str


def compare(losses: Sequence[float], baseline: Sequence[float]) -> Comparison:
    """Compare losses of one arm over seeds with those of another.

    A difference is claimed with three seeds a side or more, and from 3 standard errors on, or more where so few seeds
    say little of their own spread: as many as are passed by chance once in a hundred, by Student's t. The spreads of
    two arms may differ, so the degrees of freedom are Welch's: with those of a common spread, an arm that scatters
    far more than the other would be claimed by chance four times as often.
    """
    difference = math.fsum(losses) / len(losses) - math.fsum(baseline) / len(baseline)
    counts = len(losses), len(baseline)
    squares = _squares(losses), _squares(baseline)
    if sum(counts) < 3:
        return Comparison(difference, None, None, "seeds")
    if min(counts) < LEAST_SEEDS:  # no claim; the error is of a common spread, for one seed has none of its own
        error = math.sqrt(sum(squares) / (sum(counts) - 2) * (1 / counts[0] + 1 / counts[1]))
        return Comparison(difference, error, max(_SIGMAS, student(sum(counts) - 2, rare=True)) * error, "seeds")
    parts = [square / (count - 1) / count for square, count in zip(squares, counts, strict=True)]
    error = math.sqrt(sum(parts))
    if not error:
        return Comparison(difference, 0.0, None if difference else 0.0, "no spread" if difference else "even")
    freedom = sum(parts) ** 2 / sum(part * part / (count - 1) for part, count in zip(parts, counts, strict=True))
    needed = max(_SIGMAS, student(freedom, rare=True)) * error
    if abs(difference) < needed:
        return Comparison(difference, error, needed, "even")
    return Comparison(difference, error, needed, "better" if difference < 0 else "worse")


def reaches(losses: Sequence[float], target: Sequence[float]) -> Comparison:
    """Compare as :func:`compare`; the verdict is ``better`` where losses are not above the target's.

    For runs of a smaller budget: they reach the target where their mean is at most its mean and no worse is claimed.
    """
    found = compare(losses, target)
    if found.verdict == "even" and found.difference <= 0:
        return Comparison(found.difference, found.error, found.needed, "better")
    return found


def _squares(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values)
