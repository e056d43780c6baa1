"""Learning-rate schedules: pure functions of the number of the update, so that a checkpoint holds no state for them."""

from __future__ import annotations

import math

from octavo.train.train_config import TrainConfig


def rate_factor(config: TrainConfig, step: int) -> float:
    """Return what the learning rate is multiplied with in update ``step`` (the first is 0): above 0, at most 1.

    Warm-up: ``(step + 1) / warmup``. Then 1 for ``constant``; a straight line or half a cosine from 1 towards ``final``
    for ``linear`` and ``cosine``; ``trapezoid`` holds 1, then falls in a line over the last ``cooldown * steps``.
    The lower end lies one step past the last update: an update with rate 0 would be thrown away.
    """
    if step < config.warmup:
        return (step + 1) / config.warmup
    if config.schedule == "constant":
        return 1.0
    begin = config.warmup
    if config.schedule == "trapezoid":
        begin = config.steps - max(1, round(config.cooldown * config.steps))
    if step <= begin:
        return 1.0
    done = min(1.0, (step - begin) / (config.steps - begin))
    if config.schedule == "cosine":
        done = (1 - math.cos(math.pi * done)) / 2
    return 1 - (1 - config.final) * done
