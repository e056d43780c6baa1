"""What a compression measured: trials, and everything that was found on the way."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from octavo.recipe import Recipe
from octavo.search.latency_table import LatencyTable
from octavo.search.layer_sensitivity import Sensitivity
from octavo.search.pareto_front import Front, Point
from octavo.search.short_training import Training
from octavo.search.verification import Verification
from octavo.train.measurement import Measurement


@dataclass(frozen=True)
class Trial:
    """A packed model that was evaluated.

    ``series``: ``front``, ``uniform``, ``tuned``, ``trained`` or ``recipe``; ``point``: of the front. ``seconds``: of a
    call on the samples of the goal's latency; None without such a goal. ``corrected``: with corrected biases.
    ``start``: the trial whose weights were trained.
    """

    series: str
    label: str
    recipe: Recipe
    nbytes: int
    quality: Measurement
    point: Point | None = None
    seconds: float | None = None
    corrected: bool = False
    start: Trial | None = None


@dataclass(frozen=True)
class PeerTrial:
    """A model in a format of another library, its bytes and its quality."""

    label: str
    nbytes: int
    quality: Measurement


@dataclass
class Found:
    """Everything that a compression measured; ``chosen`` is one of ``trials``."""

    before: Measurement
    trials: list[Trial] = field(default_factory=list)
    chosen: Trial | None = None
    sensitivity: Sensitivity | None = None
    front: Front | None = None
    latencies: LatencyTable | None = None
    peers: list[PeerTrial] = field(default_factory=list)
    verification: Verification | None = None
    tuned: list[dict[str, Any]] = field(default_factory=list)
    training: Training | None = None
    refused: list[tuple[str, str]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    evaluations: int = 0

    @property
    def correlation(self) -> float | None:
        """Rank correlation of predicted and measured losses over the points of the front; None for fewer than 3."""
        found = math.nan if self.verification is None else self.verification.correlation
        return None if math.isnan(found) else float(found)


@contextmanager
def timed(found: Found, what: str) -> Iterator[None]:
    """Add the seconds of a block to what was found."""
    begin = time.perf_counter()
    try:
        yield
    finally:
        found.seconds[what] = found.seconds.get(what, 0) + time.perf_counter() - begin
