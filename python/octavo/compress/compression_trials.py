"""What a compression measures: candidates, their trials, and the evidence of all of them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from octavo.recipe import Recipe
from octavo.search.latency_table import LatencyTable
from octavo.search.layer_sensitivity import Sensitivity
from octavo.search.pareto_front import Front, Point
from octavo.search.short_training import Training
from octavo.search.verification import Verification
from octavo.train.measurement import Measurement


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A packed model that can be built.

    ``series``: ``front``, ``uniform``, ``tuned``, ``trained`` or ``recipe``; ``point``: of the front. ``corrected``:
    with corrected biases. ``start``: the trial whose weights ``training`` trains; both or neither.
    """

    series: str
    label: str
    recipe: Recipe
    point: Point | None = None
    corrected: bool = False
    start: Trial | None = None
    training: Training | None = None


@dataclass(frozen=True, kw_only=True)
class Trial(Candidate):
    """A candidate that was built and evaluated.

    ``nbytes``: of the file of weights, header included; ``tensor_bytes``: of its tensors. ``seconds``: of a call on the
    samples of the goal's latency; None without such a goal. ``divergence``: from the float model, on data that
    nothing is calibrated on; None where the quality is that.
    """

    nbytes: int
    tensor_bytes: int
    quality: Measurement
    seconds: float | None = None
    divergence: float | None = None


@dataclass(frozen=True)
class Refusal:
    """A candidate whose recipe a layer cannot have, and why."""

    label: str
    why: str


@dataclass(frozen=True)
class PeerTrial:
    """A model in a format of another library, its bytes and its quality."""

    label: str
    nbytes: int
    quality: Measurement


@dataclass(frozen=True)
class Search:
    """What the search measured.

    ``latencies``: None without a bound of the latency. ``verification``: None where no point was evaluated. ``tuned``:
    of every point that was tuned, its recipe and steps, as the journal has them.
    """

    sensitivity: Sensitivity
    front: Front
    latencies: LatencyTable | None
    verification: Verification | None
    tuned: tuple[dict[str, Any], ...]

    @property
    def correlation(self) -> float | None:
        """Rank correlation of predicted and measured losses over the points of the front; None for fewer than 3."""
        correlation = math.nan if self.verification is None else self.verification.correlation
        return None if math.isnan(correlation) else float(correlation)


@dataclass(frozen=True)
class Evidence:
    """Everything that a compression measured; ``chosen`` is one of ``trials``.

    ``before``: the quality of the float model. ``search``: None where a recipe was given. ``seconds``: of each step.
    """

    before: Measurement
    trials: tuple[Trial, ...]
    chosen: Trial
    refusals: tuple[Refusal, ...]
    search: Search | None
    training: Training | None
    peers: tuple[PeerTrial, ...]
    seconds: Mapping[str, float]


class StepClock:
    """Seconds of the steps of a compression, in the order in which they end."""

    def __init__(self) -> None:
        """Begin without a step."""
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Add the seconds of a block to those of a step."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0) + time.perf_counter() - begin
