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
    size from which it is claimed. ``verdict``: ``better`` (below), ``worse``, ``even`` (not told from noise), or
    ``seeds`` where there are too few of them for any claim.
    """

    difference: float
    error: float | None
    needed: float | None
    verdict: str


def compare(losses: Sequence[float], baseline: Sequence[float]) -> Comparison:
    """Compare losses of one arm over seeds with those of another.

    A difference is claimed with three seeds a side or more, and from 3 standard errors on, or more where so few seeds
    say little of their own spread: as many as are passed by chance once in a hundred, by Student's t.
    """
    difference = math.fsum(losses) / len(losses) - math.fsum(baseline) / len(baseline)
    freedom = len(losses) + len(baseline) - 2
    if freedom < 1:
        return Comparison(difference, None, None, "seeds")
    variance = (_squares(losses) + _squares(baseline)) / freedom
    error = math.sqrt(variance * (1 / len(losses) + 1 / len(baseline)))
    needed = max(_SIGMAS, student(freedom, rare=True)) * error
    if min(len(losses), len(baseline)) < LEAST_SEEDS:
        return Comparison(difference, error, needed, "seeds")
    if abs(difference) < needed or not error:
        return Comparison(difference, error, needed, "even" if error or not difference else "seeds")
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
