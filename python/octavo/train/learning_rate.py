"""Schedules of rate and momentum: functions of the number of the update alone, so that no checkpoint holds a state."""

from __future__ import annotations

import math

from octavo.train.train_config import TrainConfig


def rate_factor(config: TrainConfig, step: int) -> float:
    """Return what the learning rate is multiplied with in update ``step`` (the first is 0): above 0, at most 1.

    Where the run has stages, which may multiply the rate once more, ``step`` is measured in tokens.

    Warm-up: ``(step + 1) / warmup``. Then 1 for ``constant``; a straight line from 1 towards ``final`` for ``linear``
    and ``one_cycle``, half a cosine for ``cosine``; ``trapezoid`` holds 1, then falls in a line over the last
    ``cooldown * steps``. The lower end lies one step past the last update: an update with rate 0 would be thrown away.
    """
    at = config.position(step)
    if at < config.warmup:
        return min(1.0, (at + 1) / config.warmup)
    if config.schedule == "constant":
        return 1.0
    begin = config.warmup
    if config.schedule == "trapezoid":
        begin = config.steps - max(1, round(config.cooldown * config.steps))
    if at <= begin:
        return 1.0
    done = min(1.0, (at - begin) / (config.steps - begin))
    if config.schedule == "cosine":
        done = (1 - math.cos(math.pi * done)) / 2
    return 1 - (1 - config.final) * done


def momentum_at_rate(config: TrainConfig, highest: float, factor: float) -> float:
    """Return the momentum that goes with a rate of ``factor`` times the largest: ``highest``, but in ``one_cycle``.

    There it lies between ``highest`` at rate 0 and ``low_momentum``, or ``highest`` if that is lower, at the peak.
    """
    if config.schedule != "one_cycle":
        return highest
    return highest - (highest - min(highest, config.low_momentum)) * factor
