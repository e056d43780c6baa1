"""Speed of arms: updates of all of them in turns, so that a machine that gets slower slows all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from octavo.errors import ConfigError
from octavo.lab.language.attention_backend import attention_backend, check_attention
from octavo.lab.language.attention_names import AUTO
from octavo.lab.language.language_config import LanguageConfig
from octavo.lab.language.language_run import build
from octavo.lab.language.language_task import LanguageTask, Progress
from octavo.lab.language.token_data import TokenData
from octavo.train import grouped
from octavo.train.distributed import join
from octavo.train.precision import Precision
from octavo.train.update import Updater

ROUNDS, WARM = 12, 2
_SECONDS = 2.0


@dataclass(frozen=True)
class ArmSpeed:
    """``tokens_per_s``: of training. ``first_s``: seconds of the first updates, which allocate and compile.
    ``peak_mib``: of the GPU's memory in them, None on a CPU.
    """

    tokens_per_s: float
    first_s: float
    peak_mib: float | None


def measure_speeds(
    configs: Mapping[str, LanguageConfig], data: TokenData, device: str, *, rounds: int = ROUNDS
) -> dict[str, ArmSpeed]:
    """Return the speed of training of every arm: the median over rounds, one or more updates of each a round.

    Arms follow each other in every round. The first updates do not count. Stages count as the last, which has the whole
    context. Validation, logging and checkpoints are on no clock here.
    """
    with ExitStack() as stack:
        processes = stack.enter_context(join(device))
        made = {name: _Arm(config, data, processes, stack) for name, config in configs.items()}
        for one in made.values():
            one.warm()
        for _ in range(rounds):
            for one in made.values():
                one.measure()
        return {name: ArmSpeed(statistics.median(one.speeds), one.first_s, one.peak_mib) for name, one in made.items()}


class _Arm:
    def __init__(self, config: LanguageConfig, data: TokenData, processes: Any, stack: ExitStack) -> None:
        check_attention(config, processes.device.type)
        if config.compile and config.attention != AUTO:
            raise ConfigError(
                f"attention is {config.attention!r} and arms are compiled; their speeds are measured in one process, "
                "which would share compiled code; accepted are attention=auto, or arms that are not compiled"
            )
        self._config, self._loop = config, config.train_config(device=processes.device.type)
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
        self.first_s = 0.0
        self.peak_mib: float | None = None

    def warm(self) -> None:
        """Make the updates that do not count; memory that only they needed goes back, for the other arms."""
        on_gpu = self._device.type == "cuda"
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        begin = time.perf_counter()
        for _ in range(WARM):
            self.update()
        self.first_s = time.perf_counter() - begin
        if on_gpu:
            own = sum(one.numel() * one.element_size() for one in self._model.parameters())
            self.peak_mib = (torch.cuda.max_memory_allocated() - before + own) / 2**20
            torch.cuda.empty_cache()

    def update(self) -> int:
        self._progress(self._model, self._step)
        with attention_backend(self._config):
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
