"""Time to a loss over the arms of a bench: tokens and seconds in place of losses, which all end at the same one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octavo.lab.language.bench_verdict import Comparison, compare
from octavo.lab.language.language_presets import BASE
from octavo.lab.language.time_to_loss import TimeToLoss
from octavo.lab.language.time_to_loss_text import duration

TIME_HEADER = (
    "arm", ">reached", ">claims", ">tokens", ">training", ">by the clock", f">of {BASE}'s training", "verdict",
    ">tokens at least",
)  # fmt: skip
_VERDICTS = {"better": "faster", "worse": "slower"}


@dataclass(frozen=True)
class ArmTimes:
    """The runs of one arm over seeds, and how its training compares with the baseline's, by the logarithm of seconds.

    ``against``: None where a run of either did not reach the loss.
    """

    arm: str
    runs: tuple[TimeToLoss, ...]
    against: Comparison | None

    def median(self, name: str) -> float | None:
        """Return the median of a field of :class:`Validated` over the runs that reached the loss; None for none."""
        values = [getattr(run.reached, name) for run in self.runs if run.reached is not None]
        return statistics.median(values) if values else None

    @property
    def lacking(self) -> int | None:
        """The median of the tokens that runs above the loss need at least; None where none says."""
        values = [run.estimate.tokens for run in self.runs if run.estimate is not None]
        return round(statistics.median(values)) if values else None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        against = None
        if self.against is not None:
            ratio, verdict = math.exp(self.against.difference), self.against.verdict
            against = {"of_the_baseline": ratio, "verdict": _VERDICTS.get(verdict, verdict)}
        return {
            "arm": self.arm,
            "reached": sum(run.reached is not None for run in self.runs),
            "claims": sum(run.claim for run in self.runs),
            "seeds": len(self.runs),
            **{name: self.median(name) for name in ("tokens", "training_s", "clock_s")},
            "tokens_at_least": self.lacking,
            "against": against,
        }

    def cells(self) -> tuple[str, ...]:
        """Return the cells of its row."""
        facts = self.as_dict()
        tokens, training, clock = (facts[name] for name in ("tokens", "training_s", "clock_s"))
        against = facts["against"]
        return (
            self.arm,
            f"{facts['reached']} of {facts['seeds']}",
            str(facts["claims"]),
            "" if tokens is None else f"{tokens:,.0f}",
            "" if training is None else duration(training),
            "" if clock is None else duration(clock),
            "" if against is None else f"{against['of_the_baseline']:.2f}",
            "" if against is None else against["verdict"],
            "" if facts["tokens_at_least"] is None else f"{facts['tokens_at_least']:,}",
        )


@dataclass(frozen=True)
class BudgetTimes:
    """The arms of one budget, the fastest first, those that never reach the loss last."""

    budget: str
    loss: float
    arms: tuple[ArmTimes, ...]

    @property
    def title(self) -> str:
        """What the table is of."""
        return f"time to a loss of {self.loss:.4f} nats a token, medians of the runs that reach it"

    def rows(self) -> list[tuple[str, ...]]:
        """Return the cells of the table."""
        return [arm.cells() for arm in self.arms]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"budget": self.budget, "loss": self.loss, "arms": [arm.as_dict() for arm in self.arms]}


def times_of(lines: Sequence[dict[str, Any]]) -> list[BudgetTimes]:
    """Return the times of every budget and loss among lines of a bench whose runs end at a loss."""
    groups: dict[tuple[str, float], dict[str, list[TimeToLoss]]] = {}
    for line in lines:
        timed = TimeToLoss.from_dict(line["time_to_loss"])
        groups.setdefault((line["budget"], timed.loss), {}).setdefault(line["arm"], []).append(timed)
    return [
        BudgetTimes(budget, loss, tuple(sorted((_arm(name, runs) for name in runs), key=_order)))
        for (budget, loss), runs in groups.items()
    ]


def _arm(name: str, runs: dict[str, list[TimeToLoss]]) -> ArmTimes:
    here, there = ([_seconds(run) for run in runs.get(arm, [])] for arm in (name, BASE))
    known = name != BASE and here and there and math.inf not in (*here, *there)
    against = compare([math.log(one) for one in here], [math.log(one) for one in there]) if known else None
    return ArmTimes(name, tuple(runs[name]), against)


def _seconds(run: TimeToLoss) -> float:
    return math.inf if run.reached is None else max(run.reached.training_s, 1e-9)


def _order(arm: ArmTimes) -> tuple[float, str]:
    seconds = arm.median("training_s")
    return (math.inf if seconds is None else seconds), arm.arm
