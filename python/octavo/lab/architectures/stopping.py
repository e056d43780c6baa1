"""Stopping of trials that do worse than others did at the same step, judged on validation alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo.errors import SettingError
from octavo.lab.architectures.trial_storage import optuna_package
from octavo.storage.arguments import check_fields

MEDIAN, ASHA = "median", "asha"
RULES = (MEDIAN, ASHA)


@dataclass(frozen=True)
class Stopping:
    """A rule: ``median`` stops a trial below the median of those before it at the same step; ``asha`` halves.

    ``after``: trials that no median is taken before, or steps of the first rung of ``asha``, which lets one in ``keep``
    go on to the next. Source: Golovin et al. 2017; Li et al. 2020. Raises SettingError for another rule or number.
    """

    rule: str = MEDIAN
    after: int = 4
    keep: int = 2

    def __post_init__(self) -> None:
        """Check the rule."""
        check_fields(self)
        if self.rule not in RULES:
            raise SettingError(f"unknown rule of stopping {self.rule!r}; accepted are {', '.join(RULES)}")
        if self.after < 1 or self.keep < 2:
            raise SettingError(f"after is {self.after}, keep {self.keep}; accepted are 1 or more, and 2 or more")

    def facts(self) -> dict[str, Any]:
        """Return plain values."""
        return {"rule": self.rule, "after": self.after, "keep": self.keep}

    def made(self) -> Any:
        """Return Optuna's pruner."""
        pruners = optuna_package().pruners
        if self.rule == MEDIAN:
            return pruners.MedianPruner(n_startup_trials=self.after, n_warmup_steps=0)
        return pruners.SuccessiveHalvingPruner(min_resource=self.after, reduction_factor=self.keep)
