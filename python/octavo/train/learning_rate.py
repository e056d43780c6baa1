"""Schedules of rate and momentum: pure functions of the number of the update, without state in checkpoints."""

from __future__ import annotations

import math

from octavo.train.train_config import TrainConfig


def rate_factor(config: TrainConfig, step: int) -> float:
    """Return the factor of the learning rate in update ``step`` (the first is 0): above 0, at most 1.

    In a run with stages the position of the update is measured in tokens, and a stage may have a further factor.

    Warm-up: ``(step + 1) / warmup``. Then 1 for ``constant``; a straight line from 1 to ``final`` for ``linear`` and
    ``one_cycle``; half a cosine for ``cosine``; for ``trapezoid`` 1, and a straight line over the last ``cooldown *
    steps``. The end of the fall is one step after the last update, because an update with rate 0 would be wasted.
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
    """Return the momentum for a rate of ``factor`` times the largest: ``highest``, except in ``one_cycle``.

    In ``one_cycle`` it falls from ``highest`` at rate 0 to the lower of ``low_momentum`` and ``highest`` at the peak.
    """
    if config.schedule != "one_cycle":
        return highest
    return highest - (highest - min(highest, config.low_momentum)) * factor
