"""The content of a checkpoint: all state that the rest of a run depends on, and its restoration."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from octavo.cuda.machine import versions
from octavo.errors import CheckpointError, ConfigError
from octavo.train.checkpoint_outline import check_alike, check_outline, foreign_values
from octavo.train.clock import Clock
from octavo.train.distributed import Processes
from octavo.train.precision import Precision
from octavo.train.randomness import random_state, restore_random_state
from octavo.train.run_counters import State
from octavo.train.task import has_state
from octavo.train.train_config import TrainConfig, differences
from octavo.train.weight_average import Average


@dataclass
class CheckpointContent:
    """The mutable parts of a run, with its configuration, task and processes."""

    model: nn.Module
    task: Any
    config: TrainConfig
    processes: Processes
    optimizer: torch.optim.Optimizer
    precision: Precision
    average: Average | None
    clock: Clock
    state: State

    def collect(self) -> dict[str, Any]:
        """Return the state as nested dicts and lists of tensors and plain values. All processes call this."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": self.average.state_dict() if self.average is not None else None,
            "scaler": self.precision.scaler.state_dict(),
            "task": self.task.state_dict() if has_state(self.task) else None,
            "data": getattr(self.task, "data_digest", None),
            "random": self.processes.gather(random_state()),
            "state": self.state.as_dict(),
            "clock": self.clock.as_dict(),
            "config": self.config.as_dict(),
            "fingerprint": self.config.fingerprint(),
            "versions": versions(),
        }

    def restore(self, file: Path, content: dict[str, Any]) -> None:
        """Restore the state that :meth:`collect` returned, read from ``file``.

        Raises CheckpointError. If configuration (whose fields are named) or data differ, nothing is changed before.
        """
        with foreign_values(file):
            self._restore(file, content)

    def _restore(self, file: Path, content: dict[str, Any]) -> None:
        names = ("model", "optimizer", "average", "scaler", "task", "random", "state", "clock", "config")
        check_outline(file, content, names)
        self._check_config(file, content["config"], content["step"])
        check_alike(file, content, self.model, self.optimizer, self.average)
        before, now = content.get("data"), getattr(self.task, "data_digest", None)
        if before != now:
            digests = [str(digest)[:16] if digest else "the task's own" for digest in (before, now)]
            way_out = "give the same data, or another folder"
            raise CheckpointError(
                f"{file}: of a run on other data: digest was {digests[0]}, is {digests[1]}; {way_out}"
            )
        try:
            self.model.load_state_dict(content["model"])
            self.optimizer.load_state_dict(content["optimizer"])
            if self.average is not None:
                self.average.load_state_dict(content["average"])
            if content["scaler"]:
                self.precision.scaler.load_state_dict(content["scaler"])
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(f"{file}: does not fit this model: {' '.join(str(error).split())[:300]}") from None
        if has_state(self.task):
            if content["task"] is None:
                raise CheckpointError(f"{file}: holds no state of a task, and {type(self.task).__name__} has one")
            self.task.load_state_dict(content["task"])
        self.state = State.from_dict(content["state"])
        self.clock.load(content["clock"])
        then, world = len(content["random"]), self.processes.world
        if then == world:
            restore_random_state(content["random"][self.processes.rank])
        elif self.processes.is_first:
            notice = f"{file}: of {then} processes, now there are {world}; dropout will draw other numbers"
            warnings.warn(notice, stacklevel=2)

    def _check_config(self, file: Path, saved: dict[str, Any], step: int) -> None:
        try:
            differing = differences(TrainConfig.from_dict(saved), self.config)
        except ConfigError as error:
            raise CheckpointError(f"{file}: has a configuration that this version does not know: {error}") from None
        if differing:
            raise CheckpointError(f"{file}: of a run with another configuration: {'; '.join(differing)}")
        if step > self.config.steps:
            raise CheckpointError(f"{file}: has made {step} steps already; steps is {self.config.steps}")
