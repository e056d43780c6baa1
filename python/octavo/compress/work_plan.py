"""What the steps of a compression cost beside each other, for the share that is done and the time that is left."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.compress.compression_job import DataFacts

#: The steps, in their order.
STEPS = ("float model", "sensitivity", "latencies", "verification", "tuning", "biases", "training", "peers", "packing",
         "test")  # fmt: skip


class WorkPlan:
    """The cost of every step, in forward passes of the calibration data."""

    def __init__(self, costs: dict[str, float]) -> None:
        """Take costs by step; a step that is missing costs nothing."""
        self._costs = {step: max(costs.get(step, 0.0), 0.0) for step in STEPS}
        self._total = sum(self._costs.values()) or 1.0

    def share(self, step: str, fraction: float = 0.0) -> float:
        """Return the share of all work that is done when so much of a step is, 0 to 1."""
        before = sum(self._costs[earlier] for earlier in STEPS[: STEPS.index(step)])
        return (before + min(max(fraction, 0.0), 1.0) * self._costs[step]) / self._total


def passes_of(data: Sequence[DataFacts], split: str) -> float:
    """Return the forward passes of the calibration data that an evaluation of a split is worth; 1 where it is unknown.

    Half as much again for its guard.
    """
    counts = {facts.split: facts.count for facts in data}
    calibrating, evaluated = counts.get("calibration"), counts.get(split)
    return 1.5 * evaluated / calibrating if calibrating and evaluated else 1.0


def solving(methods: int, parts: int, share_held_out: float) -> float:
    """Return the passes that tuning by some methods takes: each solves twice, and swaps parts."""
    return share_held_out + methods * (2 * 4 * (1 - share_held_out) + (parts + 2) * share_held_out)
