"""Stages of a run: lengths, windows, batches and rates that change during training."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.errors import ConfigError
from octavo.storage.arguments import is_finite
from octavo.storage.reading import shown


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A sequence of updates with the same settings.

    ``steps``: number of updates. ``batch_size``: sequences of an update, over all micro-batches and processes;
    ``accumulation``: micro-batches of an update. ``context``: tokens of a sequence, by which stages are weighted.
    ``window``: positions that attention and other mixers may see, None for all. ``rate``: factor of the schedule's
    rate. ``noise``: factor of the model's drop rates of blocks, tokens and inputs, 0 for none.

    Raises ConfigError with the field, its value and what is accepted.
    """

    steps: int
    batch_size: int
    context: int
    accumulation: int = 1
    window: int | None = None
    rate: float = 1.0
    noise: float = 1.0

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("steps", "batch_size", "context", "accumulation"):
            self._check(name, "a whole number of at least 1", is_whole(getattr(self, name)))
        self._check("window", "None, or a whole number of at least 1", self.window is None or is_whole(self.window))
        is_rate = is_finite(self.rate) and self.rate > 0
        self._check("rate", "a finite number above 0", is_rate)
        is_noise = is_finite(self.noise) and 0 <= self.noise <= 1
        self._check("noise", "0 to 1", is_noise)
        self._check("accumulation", f"1 to batch_size, {self.batch_size}", self.accumulation <= self.batch_size)

    @property
    def tokens(self) -> int:
        """Tokens of all its updates."""
        return self.steps * self.batch_size * self.context

    def _check(self, name: str, accepted: str, holds: bool) -> None:
        if not holds:
            raise ConfigError(f"{name} of a stage is {shown(getattr(self, name))}; accepted: {accepted}")


def is_whole(value: object) -> bool:
    """Whether a value is a whole number of at least 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def stage_at(stages: tuple[Stage, ...], step: int) -> tuple[int, int]:
    """Return the number of the stage of update ``step``, and the updates before that stage; past the end, the last."""
    before = 0
    for number, stage in enumerate(stages[:-1]):
        if step < before + stage.steps:
            return number, before
        before += stage.steps
    return len(stages) - 1, before


def position(stages: tuple[Stage, ...], step: int) -> float:
    """Return the progress of a run before update ``step``, in updates of mean size, measured by tokens."""
    done = before = 0
    for stage in stages:
        done += min(max(step - before, 0), stage.steps) * stage.batch_size * stage.context
        before += stage.steps
    return before * done / sum(stage.tokens for stage in stages)
