"""The lines of ``metrics.jsonl``: one for a window of updates, one for an evaluation."""

from __future__ import annotations

import math
from typing import Any

from octavo.train.clock import Clock
from octavo.train.evaluation import Pair
from octavo.train.run_counters import State


def train_line(state: State, clock: Clock, *, batch_size: int, learning_rate: float, norm: float) -> dict[str, Any]:
    """Return the line of ``state.window``; rate and norm are those of its last update.

    ``loss`` and ``counts`` are per token, without the ``skipped`` updates of fp16; they are null if all were skipped.
    Rates count only the train clock, and are 0 if all updates of the window were compilation.
    """
    window = state.window
    line: dict[str, Any] = {
        "kind": "train",
        "step": state.step,
        "loss": window.loss_sum / window.tokens if window.tokens else math.nan,
        "learning_rate": learning_rate,
        "gradient_norm": norm,
        "tokens": state.tokens,
    }
    if window.counts:
        line["counts"] = {name: value / window.tokens for name, value in window.counts.items()}
    if window.skipped:
        line["skipped"] = window.skipped
    seconds = window.seconds or 1.0
    line["clock"] = {
        **clock.as_dict(),
        "samples_per_s": round(window.timed_updates * batch_size / seconds, 3),
        "tokens_per_s": round(window.timed_tokens / seconds, 3),
    }
    return line


def evaluation_line(
    state: State, clock: Clock, results: dict[str, float | Pair], *, best: bool, seconds: float
) -> dict[str, Any]:
    """Return the line of an evaluation: its ``metrics``, the (sum, count) of means, and whether it is the best.

    ``counted_per_s``: the largest count of a mean, divided by the ``seconds`` of this evaluation.
    """
    line: dict[str, Any] = {"kind": "evaluation", "step": state.step, "metrics": state.metrics, "best": best}
    sums = {name: list(value) for name, value in results.items() if isinstance(value, tuple)}
    line["clock"] = {**clock.as_dict(), "seconds": round(seconds, 6)}
    if sums:
        line["sums"] = sums
        line["clock"]["counted_per_s"] = round(max(count for _, count in sums.values()) / seconds, 3)
    return line
