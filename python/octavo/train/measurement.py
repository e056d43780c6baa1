"""A measured quality: one number with its interval, and the value of every example for paired comparisons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal

from octavo.errors import DataError, OctavoError
from octavo.storage.arguments import check_fields, checks_arguments, is_finite
from octavo.train.intervals import weighted_mean, wilson

Goal = Literal["max", "min"]


@dataclass(frozen=True)
class Measurement:
    """One quality of one model on one set of examples, as :func:`octavo.evaluate` returns it.

    Args:
        metric: ``accuracy``, ``perplexity``, ``KL``, ``cosine``, or a name of the user's.
        value: over all examples.
        low: lower end of the 95 % interval, None for a single example.
        high: upper end of the 95 % interval, None for a single example.
        goal: ``max`` where more is better, else ``min``.
        count: number of examples; for a perplexity, of tokens.
        values: the value of each example.
        examples: SHA-256 of the examples in their order; two models can be compared in pairs if it is equal.
        weights: the weight of each example in the mean, None for equal weights.
        details: further numbers of the same pass.
        setup: settings of the measurement, such as context and stride.
        checked: for a perplexity, the extent of the guard's checks (:class:`octavo.train.loss_guard.Checked`), with
            ``moved``, the largest change of a loss in nats.
    """

    metric: str
    value: float
    low: float | None
    high: float | None
    goal: Goal
    count: int
    values: tuple[float, ...] = field(repr=False)
    examples: str
    weights: tuple[float, ...] | None = field(default=None, repr=False)
    details: Mapping[str, float] = field(default_factory=dict)
    setup: Mapping[str, Any] = field(default_factory=dict)
    checked: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def loss(self) -> float:
        """A number that is lower for a better model: nats of a perplexity, the value, or 1 minus the value."""
        if self.goal == "min":
            return math.log(self.value) if self.metric == "perplexity" else self.value
        return 1 - self.value

    @checks_arguments
    def difference(self, before: Measurement) -> Difference:
        """Return the mean paired difference to another model on the same examples, ``self - before``.

        Args:
            before: of the other model.

        Returns:
            The difference with its 95 % interval; for perplexities in nats per token.

        Raises:
            DataError: for other examples or another metric.
        """
        if (self.metric, self.examples) != (before.metric, before.examples):
            raise DataError(
                f"{self.metric} and {before.metric} of other examples cannot be paired; measure both models on the same"
            )
        return paired(self.values, before.values, self.weights)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without the values of the examples.

        Returns:
            The fields by name.
        """
        return {
            "metric": self.metric,
            "value": self.value,
            "low": self.low,
            "high": self.high,
            "goal": self.goal,
            "count": self.count,
            "details": dict(self.details),
            "setup": dict(self.setup),
            "checked": dict(self.checked),
            "examples": self.examples,
        }

    def stored(self) -> dict[str, Any]:
        """Return everything as plain values, for :meth:`restored`.

        Returns:
            The fields by name.
        """
        weights = None if self.weights is None else list(self.weights)
        return {**self.as_dict(), "values": list(self.values), "weights": weights}

    @classmethod
    @checks_arguments
    def restored(cls, content: Mapping[str, Any]) -> Measurement:
        """Return the measurement of a result of :meth:`stored`.

        Args:
            content: plain values.

        Returns:
            The measurement.

        Raises:
            DataError: for other content.
        """
        try:
            weights = content["weights"]
            measurement = cls(**{
                **content, "values": tuple(content["values"]), "weights": None if weights is None else tuple(weights)
            })  # fmt: skip
            check_fields(measurement)
        except (KeyError, TypeError, OctavoError) as error:
            raise DataError(f"no stored measurement: {error}") from None
        numbers = (measurement.value, *measurement.values, *(measurement.weights or ()))
        if (
            not measurement.values
            or not all(map(is_finite, numbers))
            or len(measurement.weights or measurement.values) != len(measurement.values)
        ):
            raise DataError("no stored measurement: values and weights are finite, as many as each other, at least one")
        return measurement


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences with its 95 % interval; None for one pair."""

    mean: float
    low: float | None
    high: float | None
    count: int


def paired(after: Sequence[float], before: Sequence[float], weights: Sequence[float] | None = None) -> Difference:
    """Return the mean of ``after - before``, example by example. Raises DataError for different numbers of them."""
    if len(after) != len(before):
        raise DataError(f"{len(after)} and {len(before)} values cannot be paired")
    mean, half = weighted_mean([a - b for a, b in zip(after, before, strict=True)], weights)
    low, high = (None, None) if half is None else (mean - half, mean + half)
    return Difference(mean, low, high, len(after))


def share_of(metric: str, right: Sequence[bool], examples: str, **facts: Any) -> Measurement:
    """Return the share of examples that are right, with Wilson's interval. Raises DataError for none."""
    low, high = wilson(sum(right), len(right))
    values = tuple(float(value) for value in right)
    return Measurement(metric, sum(right) / len(right), low, high, "max", len(right), values, examples, **facts)


def mean_of(metric: str, values: Sequence[float], goal: Goal, examples: str, **facts: Any) -> Measurement:
    """Return the mean of one value per example, with Student's interval. Raises DataError for no values and for NaN."""
    mean, half = weighted_mean(values)
    low, high = (None, None) if half is None else (mean - half, mean + half)
    return Measurement(metric, mean, low, high, goal, len(values), tuple(values), examples, **facts)


def digest_of(parts: Sequence[str | bytes]) -> str:
    """Return the SHA-256, in hexadecimal, of examples in their order."""
    digest = sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()
