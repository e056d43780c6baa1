"""Speed of arms: updates of all of them in turns, so that a machine that gets slower slows all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch

from octavo.systems.language.language_config import LanguageConfig
from octavo.systems.language.language_run import build
from octavo.systems.language.language_task import LanguageTask, Progress
from octavo.systems.language.token_data import TokenData
from octavo.train import grouped
from octavo.train.distributed import join
from octavo.train.precision import Precision
from octavo.train.update import Updater

ROUNDS, WARM = 12, 2
_SECONDS = 2.0


def measure_speeds(
    configs: Mapping[str, LanguageConfig], data: TokenData, device: str, *, rounds: int = ROUNDS
) -> dict[str, float]:
    """Return tokens a second of training of every arm: the median over rounds, one or more updates of each a round.

    Arms follow each other in every round. The first updates, which allocate and compile, do not count. Stages count
    as the last, which has the whole context. Validation, logging and checkpoints are on no clock here.
    """
    with ExitStack() as stack:
        processes = stack.enter_context(join(device))
        made = {name: _Arm(config, data, processes, stack) for name, config in configs.items()}
        for one in made.values():
            for _ in range(WARM):
                one.update()
        for _ in range(rounds):
            for one in made.values():
                one.measure()
        return {name: statistics.median(one.speeds) for name, one in made.items()}


class _Arm:
    def __init__(self, config: LanguageConfig, data: TokenData, processes: Any, stack: ExitStack) -> None:
        self._loop = config.train_config(device=processes.device.type)
        self._device = processes.device
        model = build(config, data, seed=0).to(processes.device).train()
        precision = Precision(config.precision, processes.device)
        stack.enter_context(precision.prepared(model))
        self._updater = Updater(
            model,
            LanguageTask(data, config, self._loop, {}),
            self._loop,
            processes=processes,
            precision=precision,
            optimizer=grouped(config.optimizer.groups(model, self._loop.steps))(model, self._loop),
        )
        self._model, self._progress = model, Progress(self._loop)
        self._step = max(0, self._loop.steps - self._loop.stages[-1].steps)
        self.speeds: list[float] = []

    def update(self) -> int:
        self._progress(self._model, self._step)
        tokens = self._updater(self._step).tokens
        self._step = min(self._step + 1, self._loop.steps - 1)
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return tokens

    def measure(self) -> None:
        begin, tokens = time.perf_counter(), 0
        while not tokens or time.perf_counter() - begin < _SECONDS / ROUNDS:
            tokens += self.update()
        self.speeds.append(tokens / (time.perf_counter() - begin))
