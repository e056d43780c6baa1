"""Time to a loss: where a run reaches it, by its exact validations, and what the run says where it does not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from octavo.lab.language.gpt.presets import GPT2_VOCABULARY
from octavo.lab.language.language_config import LanguageConfig
from octavo.train import Stage

CLAIM = 3
"""Validations in a row that a claim needs."""

# The baseline's run that the benchmark publishes: updates of 524,288 tokens and the loss after them, one RTX 4090.
PUBLISHED = (
    (384, 4.784), (768, 4.072), (1536, 3.766), (2304, 3.650), (3072, 3.593), (3840, 3.534), (4224, 3.470),
    (4608, 3.400), (4768, 3.3821),
)  # fmt: skip
PUBLISHED_UPDATE, PUBLISHED_S = 524288, 19444.5

# Times its own tokens that a run says anything about.
_FARTHEST = 10.0


@dataclass(frozen=True)
class Validated:
    """One exact validation of a run: its update, tokens trained on, seconds by clock, nats a token.

    ``training_s``: of updates, the first ones with their compilation: the clock of the benchmark, which stops around
    validation. ``clock_s``: with validations.
    """

    step: int
    tokens: int
    training_s: float
    clock_s: float
    nats: float


@dataclass(frozen=True)
class Estimate:
    """Tokens and seconds that a run which did not reach the loss lacks at least.

    ``slope``: nats a token by which the loss fell each time that tokens grew e-fold, from ``begin`` to ``end`` tokens
    before the cool-down. It falls as tokens grow, so more are likely.
    """

    tokens: int
    training_s: float
    slope: float
    begin: int
    end: int


@dataclass(frozen=True)
class TimeToLoss:
    """Where a run reached ``loss``.

    ``reached``: the first of the most validations in a row, up to the end, that are at most ``loss``; None for none.
    ``in_a_row``: how many they are. ``claim``: they are three or more, and the last validation, checked in full, is one
    of them. ``estimate``, or ``silent``, why there is none: where the loss was not reached. ``validations``: all.
    """

    loss: float
    reached: Validated | None
    in_a_row: int
    claim: bool
    estimate: Estimate | None
    silent: str | None
    validations: tuple[Validated, ...]
    compares: bool

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "validations": [asdict(one) for one in self.validations]}

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> TimeToLoss:
        """Return what :meth:`as_dict` wrote down."""
        parts: dict[str, Any] = {
            "reached": None if record["reached"] is None else Validated(**record["reached"]),
            "estimate": None if record["estimate"] is None else Estimate(**record["estimate"]),
            "validations": tuple(Validated(**one) for one in record["validations"]),
        }
        return cls(**{**record, **parts})


def time_to_loss(
    config: LanguageConfig, stages: Sequence[Stage], lines: Sequence[dict[str, Any]], name: str, last: float
) -> TimeToLoss:
    """Return where a run reached the loss of ``config.until``.

    ``lines``: of its ``metrics.jsonl``; ``name``: of the loss in their metrics. ``last``: the exact loss of the last
    weights, checked in full. ``stages``: of the run.
    """
    assert config.until is not None
    loss, compares = config.until.loss, config.model.vocabulary == GPT2_VOCABULARY
    points = tuple(
        _validated(line, stages, name) for line in lines if line["kind"] == "evaluation" and name in line["metrics"]
    )
    streak = 0
    for point in reversed(points):
        if point.nats > loss:
            break
        streak += 1
    if streak:
        return TimeToLoss(loss, points[-streak], streak, streak >= CLAIM and last <= loss, None, None, points, compares)
    estimate = extrapolated(points, config, loss)
    if isinstance(estimate, str):
        return TimeToLoss(loss, None, 0, False, None, estimate, points, compares)
    return TimeToLoss(loss, None, 0, False, estimate, None, points, compares)


def extrapolated(points: Sequence[Validated], config: LanguageConfig, loss: float) -> Estimate | str:
    """Return the tokens that a run with a longer schedule needs at least, or why the run does not say.

    The final loss of longer runs is taken to fall as that of this one fell, a factor of tokens for a factor of tokens,
    over the last half of the tokens before its cool-down.
    """
    if len({phase.context for phase in config.phases}) > 1:
        return "its sequences change their length on the way"
    if config.schedule not in ("trapezoid", "constant"):
        return f"its rate falls throughout ({config.schedule}), so that no part of the curve tells of a longer run"
    if not points:
        return "it has no validation"
    end = config.tokens * (1 - config.cooldown if config.schedule == "trapezoid" else 1)
    steady = [point for point in points if config.warmup * config.tokens < point.tokens <= end]
    steady = [point for point in steady if 2 * point.tokens >= steady[-1].tokens]
    if len(steady) < 3:
        return "fewer than three validations stand in the last half of the tokens before its cool-down"
    slope = -_slope([(math.log(point.tokens), point.nats) for point in steady])
    if slope <= 0:
        return "its loss did not fall before the cool-down"
    last = points[-1]
    factor = math.exp(min((last.nats - loss) / slope, 700.0))
    if factor > _FARTHEST:
        return f"more than {_FARTHEST:g} times its tokens are needed at the pace of its curve"
    return Estimate(round(last.tokens * factor), last.training_s * factor, slope, steady[0].tokens, steady[-1].tokens)


def published_loss(tokens: int) -> float | None:
    """Return the loss of the benchmark's baseline after so many tokens, between its published points by ln(tokens)."""
    places = [(math.log(update * PUBLISHED_UPDATE), nats) for update, nats in PUBLISHED]
    place = math.log(tokens)
    for (before, first), (after, second) in pairwise(places):
        if before <= place <= after:
            return first + (second - first) * (place - before) / (after - before)
    return None


def _validated(line: dict[str, Any], stages: Sequence[Stage], name: str) -> Validated:
    clock = line["clock"]
    training = clock["train_s"] + clock["compile_s"]
    left, tokens = line["step"], 0
    for stage in stages:
        tokens += min(left, stage.steps) * stage.batch_size * stage.context
        left = max(0, left - stage.steps)
    return Validated(line["step"], tokens, training, training + clock["evaluate_s"], line["metrics"][name])


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the line through points by least squares."""
    mean_x = math.fsum(x for x, _ in points) / len(points)
    mean_y = math.fsum(y for _, y in points) / len(points)
    spread = math.fsum((x - mean_x) ** 2 for x, _ in points)
    return math.fsum((x - mean_x) * (y - mean_y) for x, y in points) / spread
