"""Schedules of sparsity in training. A step is the number of the next update, from 0."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.errors import ModelError
from octavo.storage.arguments import check_fields, checks_arguments


@dataclass(frozen=True)
class Cubic:
    """Sparsity that rises fast at first: s(t) = final + (initial - final) (1 - (t - start) / steps)^3.

    Source: Zhu and Gupta 2017 (https://arxiv.org/abs/1710.01878), equation 1.

    Args:
        steps: updates from ``start`` to the final sparsity.
        every: updates between two prunings; the last step prunes, too.
        start: first update that prunes.
        initial: sparsity at ``start``.

    Raises:
        ModelError: for values outside these ranges.

    Example:
        >>> cubic = octavo.prune.Cubic(steps=100, every=25)
        >>> [cubic.share(step, final=0.8) for step in (0, 1, 25, 50, 100)]
        [0.0, None, 0.4625, 0.7..., 0.8]
    """

    steps: int
    every: int = 1
    start: int = 0
    initial: float = 0.0

    def __post_init__(self) -> None:
        """Check the values. Raises ModelError, and DTypeError for other kinds."""
        check_fields(self)
        _check(self, "steps", "every")
        if not 0 <= self.initial < 1:
            raise ModelError(f"Cubic: initial is {self.initial!r}; accepted are shares from 0 to below 1")

    @property
    def last(self) -> int:
        """The step from which on the sparsity is final."""
        return self.start + self.steps

    @checks_arguments
    def share(self, step: int, final: float) -> float | None:
        """Return the sparsity that a step brings.

        Args:
            step: number of the update, from 0.
            final: sparsity at the end.

        Returns:
            A share; None where the step changes nothing.
        """
        since = step - self.start
        if since < 0 or since > self.steps or (since % self.every and since != self.steps):
            return None
        return final + (self.initial - final) * (1 - since / self.steps) ** 3


@dataclass(frozen=True)
class Iterative:
    """Rounds of pruning and training; each prunes the same share of the remaining weights: s_i = 1 - (1 - final)^(i /
    rounds).

    Source: Frankle and Carbin 2018 (https://arxiv.org/abs/1803.03635), section 2.

    Args:
        rounds: number of rounds.
        every: updates between two rounds.
        start: update of the first round.

    Raises:
        ModelError: for values outside these ranges.

    Example:
        >>> rounds = octavo.prune.Iterative(rounds=3, every=100)
        >>> [round(rounds.share(step, final=0.875), 3) for step in (0, 100, 200)]
        [0.5, 0.75, 0.875]
    """

    rounds: int
    every: int
    start: int = 0

    def __post_init__(self) -> None:
        """Check the values. Raises ModelError, and DTypeError for other kinds."""
        check_fields(self)
        _check(self, "rounds", "every")

    @property
    def last(self) -> int:
        """The step from which on the sparsity is final."""
        return self.start + (self.rounds - 1) * self.every

    @checks_arguments
    def share(self, step: int, final: float) -> float | None:
        """Return the sparsity that a step brings.

        Args:
            step: number of the update, from 0.
            final: sparsity at the end.

        Returns:
            A share; None where the step changes nothing.
        """
        number, rest = divmod(step - self.start, self.every)
        if rest or not 0 <= number < self.rounds:
            return None
        return final if number == self.rounds - 1 else 1 - (1 - final) ** ((number + 1) / self.rounds)


Schedule = Cubic | Iterative


def _check(schedule: object, *names: str) -> None:
    for name, least in (*((name, 1) for name in names), ("start", 0)):
        value = getattr(schedule, name)
        if value < least:
            raise ModelError(
                f"{type(schedule).__name__}: {name} is {value!r}; accepted are whole numbers of at least {least}"
            )
