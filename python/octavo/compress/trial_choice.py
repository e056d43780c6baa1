"""Which trial of a compression reaches its goal best, and which ones may be improved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.compress.compression_options import Goal
from octavo.compress.compression_trials import Trial
from octavo.train.measurement import Measurement


@dataclass(frozen=True)
class Choice:
    """The rule by which trials are chosen.

    ``before``: the quality of the float model, ``parameters``: how many it has.
    """

    goal: Goal
    before: Measurement
    parameters: int

    def fits(self, trial: Trial) -> bool:
        """Whether a trial keeps the bounds of the goal."""
        goal = self.goal
        if goal.latency is not None and (trial.seconds is None or trial.seconds > goal.latency):
            return False
        if goal.max_loss is not None:
            return trial.quality.loss - self.before.loss <= goal.max_loss
        return trial.nbytes <= goal.most_bytes(self.parameters)

    def best(self, trials: Sequence[Trial]) -> Trial:
        """Return the trial that reaches the goal best; ties go to fewer bytes, then to the recipe's text."""
        fitting = [trial for trial in trials if self.fits(trial)]
        if self.goal.max_loss is None and fitting:
            return min(fitting, key=lambda trial: (trial.quality.loss, trial.nbytes, str(trial.recipe)))
        if fitting:
            return min(fitting, key=lambda trial: (trial.nbytes, trial.quality.loss, str(trial.recipe)))
        # Nothing keeps the bound of loss or latency: the model of least loss says how near it comes, within the bytes.
        most = self.goal.most_bytes(self.parameters)
        within = [trial for trial in trials if trial.nbytes <= most] or trials
        return min(within, key=lambda trial: (trial.quality.loss, trial.nbytes, str(trial.recipe)))

    def bases(self, trials: Sequence[Trial], count: int) -> list[Trial]:
        """Return what may be improved: the best trial, or for a bound of the loss up to ``count`` that are no larger.

        Those may be brought within the bound; the largest come first.
        """
        best = self.best(trials)
        if self.goal.max_loss is None or best.point is None:
            return [best]
        smaller = [trial for trial in trials if trial.point is not None and trial.nbytes <= best.nbytes]
        return sorted(smaller, key=lambda trial: (-trial.nbytes, trial.quality.loss))[:count]
