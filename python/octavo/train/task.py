"""The protocol between a task and the loop, and the division of an update's sequences among processes.

A task is any object with ``batch`` and ``loss``. Data is random access: a batch is a function of the number of the
update and of positions inside it, not of earlier calls. Therefore the number of the update is the position in the data,
a resumed run is exact, and a process computes its share of an update independently of the others.

Optional members:

- ``evaluate(model) -> dict``: named numbers, or pairs ``(sum, count)`` that mean ``sum / count``. It runs in eval mode,
  without gradients, under the precision of the run. If its signature has ``rank`` and ``world``, evaluation is shared:
  each process returns the sums of its part, all of them pairs, and the loop adds them up.
- ``metric`` and ``goal`` (``"max"`` or ``"min"``): the number that decides on the best evaluation and early stopping.
- ``reached(metrics) -> bool``: whether the means of an evaluation reach the goal of the run. The run ends after
  ``reached_in_a_row`` such evaluations (1 where the task does not say) with the reason ``reached``.
- ``data_digest``: a text that identifies the data. Checkpoints store it, and a run does not resume with other data.
- ``facts``: a dict of plain values for the record of the run, ``run.json``, such as hashes of data.
- ``state_dict()`` and ``load_state_dict(state)``: tensors and plain values for checkpoints. The state must be the same
  in all processes; that of the first process is stored.
"""

from __future__ import annotations

import inspect
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from octavo.data.batches import map_leaves
from octavo.errors import ConfigError, TaskError
from octavo.train.train_config import TrainConfig

GOALS = ("max", "min")


class Task(Protocol):
    """The methods that every task has; the module lists the optional ones."""

    def batch(self, step: int, micro: int, start: int, size: int) -> Any:
        """Return some of the ``batch_size`` sequences of an update.

        A pure function of its arguments and of the task's own seed. ``step * batch_size + start`` is the position in an
        endless stream.

        Args:
            step: number of the update, from 0.
            micro: number of the micro-batch, for information.
            start: first sequence, from 0.
            size: number of sequences.

        Returns:
            A tensor, or a dict, tuple or list of tensors, on the CPU; the loop moves them to the device.
        """
        ...

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, int | Tensor, dict[str, int | Tensor]]:
        """Return the loss summed over the tokens of a batch, and numbers to be summed.

        The loop divides once, by the tokens of the whole update. Call ``model(...)`` once; with several processes it is
        a wrapper of the model.

        Args:
            model: the model in training.
            batch: of :meth:`batch`.

        Returns:
            The sum of the losses, the number of tokens, and other numbers, which appear in the metrics divided by the
            tokens.
        """
        ...


def share(batch_size: int, parts: int, index: int) -> tuple[int, int]:
    """Return ``start, size`` of part ``index`` when ``batch_size`` sequences are cut evenly into ``parts``."""
    start = index * batch_size // parts
    return start, (index + 1) * batch_size // parts - start


def to_device(batch: Any, device: torch.device) -> Any:
    """Return ``batch`` with every tensor on ``device``; copies to a GPU are asynchronous, through pinned memory.

    Raises TaskError for anything but tensors, numbers, texts and dicts, tuples or lists of them.
    """

    def moved(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            if device.type == "cuda" and leaf.device.type == "cpu":
                return leaf.pin_memory().to(device, non_blocking=True)
            return leaf.to(device)
        if leaf is None or isinstance(leaf, int | float | str):
            return leaf
        raise TaskError(
            f"batch holds a {type(leaf).__name__}; accepted: tensors, numbers, and dicts, tuples, lists of them"
        )

    return map_leaves(moved, batch)


def check_task(task: Any, config: TrainConfig) -> None:
    """Refuse a task that lacks a method, or one that ``config`` needs. Raises TaskError or ConfigError."""
    for name in ("batch", "loss"):
        if not callable(getattr(task, name, None)):
            raise TaskError(f"{type(task).__name__} has no method '{name}'; a task needs batch and loss")
    metric = getattr(task, "metric", None)
    if config.evaluate_every is not None and not evaluates(task):
        raise ConfigError(
            f"evaluate_every is {config.evaluate_every}, but {type(task).__name__} has no method 'evaluate'"
        )
    if config.patience is not None and metric is None:
        raise ConfigError(
            f"patience is {config.patience}, but {type(task).__name__} names no 'metric' that can improve"
        )
    if metric is not None and getattr(task, "goal", None) not in GOALS:
        raise TaskError(f"{type(task).__name__}.goal is {getattr(task, 'goal', None)!r}; accepted: 'max', 'min'")
    if has_state(task) != callable(getattr(task, "load_state_dict", None)):
        raise TaskError(f"{type(task).__name__} has one of state_dict and load_state_dict; a checkpoint needs both")


def evaluates(task: Any) -> bool:
    """Whether the task can evaluate a model."""
    return callable(getattr(task, "evaluate", None))


def ends_early(task: Any) -> bool:
    """Whether the task has a goal that ends a run before its last step."""
    return callable(getattr(task, "reached", None))


def has_state(task: Any) -> bool:
    """Whether the task has a state for checkpoints."""
    return callable(getattr(task, "state_dict", None))


def takes_shards(task: Any) -> bool:
    """Whether the task's evaluation can be shared by processes: its signature has ``rank`` and ``world``."""
    return {"rank", "world"} <= inspect.signature(task.evaluate).parameters.keys()
