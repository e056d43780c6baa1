"""Counters of a run: plain numbers in a checkpoint beside the tensors."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from octavo.train.update import Update


@dataclass
class Window:
    """Sums over the updates since the last line of metrics; ``timed_*`` and ``seconds`` without compilation."""

    loss_sum: float = 0.0
    tokens: int = 0
    counts: dict[str, float] = field(default_factory=dict)
    skipped: int = 0
    timed_updates: int = 0
    timed_tokens: int = 0
    seconds: float = 0.0

    def add(self, update: Update, seconds: float | None) -> None:
        """Add an update that took ``seconds``, None if it was compiled."""
        if update.skipped:
            self.skipped += 1
        else:
            self.loss_sum += update.loss_sum
            self.tokens += update.tokens
            for name, value in update.counts.items():
                self.counts[name] = self.counts.get(name, 0.0) + value
        if seconds is not None:
            self.timed_updates += 1
            self.timed_tokens += update.tokens
            self.seconds += seconds


# Fields of a state that checkpoints of earlier versions lack; they are written where they are not 0.
LATER = frozenset({"reached"})


@dataclass
class State:
    """Counters of a run.

    ``step``: number of updates, on ``tokens`` tokens. ``best``: the best value of the task's metric, after
    ``best_step`` updates; ``unimproved``: evaluations since then. ``reached``: evaluations in a row, up to the last
    one, that reach the task's goal. ``loss`` and ``metrics``: as last written. ``unit``: of the :class:`Updater`.
    ``window``: sums for the next line of metrics.
    """

    step: int = 0
    tokens: int = 0
    best: float | None = None
    best_step: int | None = None
    unimproved: int = 0
    reached: int = 0
    loss: float | None = None
    metrics: dict[str, float] | None = None
    unit: float | None = None
    window: Window = field(default_factory=Window)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return {name: value for name, value in asdict(self).items() if value or name not in LATER}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> State:
        """Build a state from :meth:`as_dict`."""
        return cls(**{**saved, "window": Window(**saved["window"])})
