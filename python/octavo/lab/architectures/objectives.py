"""Objectives of a search: named metrics with a direction, each of which every trial must give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.errors import ModelError, NonFiniteError, SettingError
from octavo.storage.arguments import check_fields, checks_arguments, is_finite

DIRECTIONS = ("max", "min")


@dataclass(frozen=True)
class Objective:
    """A metric of trials, by name, to be as large (``max``) or as small (``min``) as can be."""

    metric: str
    goal: str = "max"

    def __post_init__(self) -> None:
        """Check the goal."""
        check_fields(self)
        if not self.metric:
            raise SettingError("the metric of an objective is empty; accepted is a name, such as 'accuracy'")
        if self.goal not in DIRECTIONS:
            raise SettingError(f"the goal of {self.metric!r} is {self.goal!r}; accepted are {', '.join(DIRECTIONS)}")

    @classmethod
    @checks_arguments
    def of(cls, given: Objective | str) -> Objective:
        """Return an objective, or the one that a text such as ``accuracy`` or ``bytes min`` says."""
        if isinstance(given, Objective):
            return given
        metric, _, goal = given.strip().partition(" ")
        return cls(metric, goal.strip() or "max")

    @checks_arguments
    def better(self, value: float, other: float) -> bool:
        """Tell whether a value is better than another."""
        return value > other if self.goal == "max" else value < other


def objectives_of(given: str | Objective | Sequence[str | Objective]) -> tuple[Objective, ...]:
    """Return objectives from one or several. Raises SettingError for none, or for one that is there twice."""
    listed = [given] if isinstance(given, str | Objective) else list(given)
    found = tuple(Objective.of(item) for item in listed)
    names = [objective.metric for objective in found]
    if not found or len(set(names)) < len(names):
        raise SettingError(f"objectives {names}; accepted is one at least, each of them once")
    return found


def values_of(objectives: Sequence[Objective], facts: Mapping[str, Any], what: str) -> list[float]:
    """Return the values of the objectives in what was measured.

    Raises ModelError for one that is missing or no number, NonFiniteError for NaN and infinity.
    """
    values = []
    for objective in objectives:
        if objective.metric not in facts:
            raise ModelError(
                f"{what}: the evaluation gave no {objective.metric!r}, which is an objective; it gave "
                f"{', '.join(map(repr, facts)) or 'nothing'}"
            )
        value = facts[objective.metric]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(f"{what}: {objective.metric} is a {type(value).__name__}; accepted is a number")
        if not is_finite(value):
            raise NonFiniteError(f"{what}: {objective.metric} is {value}; accepted are finite numbers")
        values.append(float(value))
    return values
