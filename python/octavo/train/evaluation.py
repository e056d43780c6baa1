"""Evaluation in training: the task measures, sums over processes, and comparison with the best result so far."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import TaskError
from octavo.train.distributed import Processes
from octavo.train.precision import Precision
from octavo.train.randomness import undisturbed
from octavo.train.task import takes_shards
from octavo.train.weight_average import Average

Pair = tuple[float, float]


def evaluate(
    model: nn.Module, task: Any, *, processes: Processes, precision: Precision, average: Average | None
) -> dict[str, float | Pair]:
    """Let the task evaluate ``model``, or the average of its weights; return its numbers and ``(sum, count)`` pairs.

    All processes return the same. Model modes and random number generators are restored, so the frequency of
    evaluations does not change the training. Raises TaskError for other results.
    """
    shared = takes_shards(task) and processes.world > 1
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with undisturbed(), torch.no_grad(), precision.autocast(), average.applied() if average else nullcontext():
            results = (
                task.evaluate(model, rank=processes.rank, world=processes.world) if shared else task.evaluate(model)
            )
    finally:
        for module, training in modes.items():
            module.training = training
    named = {str(name): _number(str(name), value) for name, value in results.items()}
    metric = getattr(task, "metric", None)
    if metric is not None and metric not in named:
        raise TaskError(f"evaluate returned {', '.join(named) or 'nothing'}; the task's metric is '{metric}'")
    if not shared:
        # Every process evaluated everything; rank 0's value is used, since the last bit may differ.
        return processes.from_first(named)
    return _added_up(named, processes)


def value_of(measured: float | Pair) -> float:
    """Return a number, or the mean of a (sum, count) pair; NaN for a count of 0."""
    if isinstance(measured, tuple):
        return measured[0] / measured[1] if measured[1] else math.nan
    return measured


def is_better(value: float, best: float | None, goal: str) -> bool:
    """Whether ``value`` improves on ``best`` (None: no value yet). NaN never does."""
    if math.isnan(value):
        return False
    return best is None or (value > best if goal == "max" else value < best)


def _added_up(named: dict[str, Any], processes: Processes) -> dict[str, float | Pair]:
    single = [name for name, value in named.items() if not isinstance(value, tuple)]
    if single:
        raise TaskError(f"evaluate returned one number for '{single[0]}'; shared by processes it returns (sum, count)")
    names = sorted(named)
    flat = torch.tensor([n for name in names for n in named[name]], dtype=torch.float64, device=processes.device)
    sums = processes.sum(flat).tolist()
    return {name: (sums[2 * i], sums[2 * i + 1]) for i, name in enumerate(names)}


def _number(name: str, value: Any) -> float | Pair:
    """Return ``value`` with tensors as plain numbers."""
    plain = tuple(_scalar(name, item) for item in value) if isinstance(value, tuple) else _scalar(name, value)
    if isinstance(plain, tuple) and len(plain) != 2:
        raise TaskError(f"evaluate returned {len(plain)} numbers for '{name}'; accepted: one, or (sum, count)")
    return plain


def _scalar(name: str, item: Any) -> float:
    if isinstance(item, Tensor) and item.numel() == 1:
        item = item.item()
    if not isinstance(item, int | float):
        raise TaskError(f"evaluate returned a {type(item).__name__} for '{name}'; accepted: a number, or (sum, count)")
    return item
