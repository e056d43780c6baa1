"""Steps and tokens a second of training and validation, by number of processes and with and without key/value caching.

``python -m octavo.lab.polynomials.speed OPTIONS`` measures one configuration in the processes that it is started
in; :func:`measure_all` starts that for each configuration in turn.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from octavo.errors import OctavoError, SettingError
from octavo.storage import children, folders
from octavo.train.train_config import DEVICES

WARMUP = 3  # batches that are not measured: torch prepares kernels for each shape, and the processes find each other


@dataclass(frozen=True)
class SpeedConfig:
    """What is measured: ``steps`` training updates of ``batch`` lines over all processes, then ``val_steps`` batches of
    validation lines that are generated greedily, ``cached`` or not.

    ``epoch``, ``val_epoch``: lines of the epoch whose time is worked out from the measured speeds. ``device``: ``auto``
    (a GPU where torch finds one), ``cpu`` or ``cuda``.
    """

    architecture: str = "hybrid"
    processes: int = 1
    cached: bool = False
    batch: int = 512
    steps: int = 20
    val_steps: int = 4
    precision: str = "fp32"
    epoch: int = 1_000_000
    val_epoch: int = 20_000
    device: str = "auto"

    def __post_init__(self) -> None:
        """Check the numbers. Raises SettingError."""
        for name in ("processes", "batch", "steps", "val_steps", "epoch", "val_epoch"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name} is {getattr(self, name)}; accepted are 1 and more")
        if self.batch < self.processes:
            raise SettingError(
                f"batch is {self.batch}; accepted is at least a line for each of {self.processes} processes"
            )
        if self.device not in DEVICES:
            raise SettingError(f"device is {self.device!r}; accepted are {', '.join(DEVICES)}")

    @property
    def is_whole_epoch(self) -> bool:
        """Whether every line of the epoch is measured, so that its time is worked out from nothing else."""
        return self.steps * self.batch >= self.epoch and self.val_steps * self.batch >= self.val_epoch

    def whole_epoch(self) -> SpeedConfig:
        """Return the configuration that measures every line of the epoch."""
        return replace(self, steps=math.ceil(self.epoch / self.batch), val_steps=math.ceil(self.val_epoch / self.batch))


@dataclass(frozen=True)
class Speed:
    """A measured speed. Tokens of input and target count, end tokens included, padding not.

    In validation the target tokens are those of the right answers, so that fast wrong answers count no more.
    ``machine``: the hardware that it was measured on, as :func:`octavo.cuda.machine.computer` describes it.
    """

    config: SpeedConfig
    train_steps_per_s: float
    val_steps_per_s: float
    train_tokens_per_s: float
    val_tokens_per_s: float
    machine: dict[str, Any]

    @property
    def steps_per_s(self) -> float:
        """Steps of an epoch, training and validation together, over its time."""
        return (self._train_steps + self._val_steps) / self.epoch_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens of an epoch, training and validation together, over its time."""
        train_s, val_s = self._train_steps / self.train_steps_per_s, self._val_steps / self.val_steps_per_s
        return (self.train_tokens_per_s * train_s + self.val_tokens_per_s * val_s) / self.epoch_s

    @property
    def epoch_s(self) -> float:
        """Seconds of an epoch at the measured speeds."""
        return self._train_steps / self.train_steps_per_s + self._val_steps / self.val_steps_per_s

    @property
    def _train_steps(self) -> float:
        return self.config.epoch / self.config.batch

    @property
    def _val_steps(self) -> float:
        return self.config.val_epoch / self.config.batch

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        derived = {"steps_per_s": self.steps_per_s, "tokens_per_s": self.tokens_per_s, "epoch_s": self.epoch_s}
        return {**asdict(self), **derived}


def configurations(base: SpeedConfig, processes: int) -> dict[str, SpeedConfig]:
    """Return the four configurations of the table by name, the baseline first."""
    alone = replace(base, processes=1, cached=False)
    return {
        "baseline": alone,
        "DDP": replace(alone, processes=processes),
        "KV cache": replace(alone, cached=True),
        "DDP + KV cache": replace(alone, processes=processes, cached=True),
    }


def check_device(device: str, processes: int) -> None:
    """Refuse a GPU that is not there, and fewer GPUs than processes, each of which has its own.

    Raises CudaUnavailableError, SettingError.
    """
    import torch

    from octavo.cuda.device_names import best_device, torch_device

    place = best_device() if device == "auto" else torch_device(device)
    if place.type == "cuda" and processes > (count := torch.cuda.device_count()):
        raise SettingError(
            f"{processes} processes, {count} GPUs; accepted are as many processes: give --processes {count}, or "
            "--device cpu"
        )


def measure_all(
    base: SpeedConfig, processes: int, done: Callable[[str, Speed], None] = lambda name, speed: None
) -> dict[str, Speed]:
    """Measure the four configurations one after the other, each in processes of its own; ``done`` hears of each.

    Raises OctavoError with the end of its output for a configuration that fails.
    """
    found = {}
    for name, config in configurations(base, processes).items():
        found[name] = measure_apart(config)
        done(name, found[name])
    return found


def measure_apart(config: SpeedConfig) -> Speed:
    """Measure one configuration in ``config.processes`` new processes. Raises OctavoError if they fail."""
    with folders.scratch() as folder:
        answer = folder / "speed.json"
        arguments = ["-m", "octavo.lab.polynomials.speed", json.dumps(asdict(config)), str(answer)]
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={config.processes}"]
        command = children.command([*(torchrun if config.processes > 1 else ()), *arguments])
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode or not answer.exists():
            raise OctavoError(f"measuring {config} failed: {ran.stderr.strip()[-2000:]}")
        return Speed(config, **json.loads(answer.read_text()))


def _measure_here(config: SpeedConfig) -> dict[str, Any] | None:
    """Measure in this process, one of ``config.processes``; the first of them returns the numbers."""
    import torch

    from octavo.cuda.machine import computer
    from octavo.lab.polynomials.accuracy import EncodedLines
    from octavo.lab.polynomials.data import splits
    from octavo.lab.polynomials.line_task import PolynomialTask
    from octavo.lab.polynomials.seq2seq import build
    from octavo.lab.polynomials.train_configs import SPLIT_SEED, model_config, train_config
    from octavo.train import adamw, seed_all
    from octavo.train.distributed import join
    from octavo.train.precision import Precision
    from octavo.train.task import share
    from octavo.train.update import Updater

    seed_all(0)
    wanted = config.val_steps + 1
    data = splits(SPLIT_SEED, wanted * config.batch, 0)
    task = PolynomialTask(data, config.batch, limit=0)
    lines = EncodedLines.of(data.validation, task.tokenizer)
    settings = train_config(steps=10**6, batch_size=config.batch, precision=config.precision)
    model = build(model_config(config.architecture))
    with join(config.device) as processes:
        model.to(processes.device)
        precision = Precision(config.precision, processes.device)
        update = Updater(
            model, task, settings, processes=processes, precision=precision, optimizer=adamw(model, settings)
        )
        tokens = 0

        def train_steps(first: int, count: int) -> Iterator[int]:
            for step in range(first, first + count):
                done = update(step)
                yield done.tokens + round(done.counts["source_tokens"])

        def val_steps(first: int, count: int) -> Iterator[int]:
            model.eval()
            for step in range(first, first + count):
                start, size = share(config.batch, processes.world, processes.rank)
                rows = slice(step * config.batch + start, step * config.batch + start + size)
                with torch.no_grad(), precision.autocast():
                    model.generate(lines.source[rows].to(processes.device), cache=config.cached)
                whole = slice(step * config.batch, (step + 1) * config.batch)
                yield int((lines.source[whole] != 0).sum() + (lines.target[whole] != 0).sum())

        numbers: dict[str, Any] = {"machine": computer(processes.device)}
        plan = (("train", train_steps, WARMUP, config.steps), ("val", val_steps, 1, config.val_steps))
        for name, steps, warmup, count in plan:
            for _ in steps(0, warmup):
                pass
            processes.barrier()
            begin = time.perf_counter()
            tokens = sum(steps(warmup, count))
            if processes.device.type == "cuda":
                torch.cuda.synchronize()
            processes.barrier()
            seconds = time.perf_counter() - begin
            numbers |= {f"{name}_steps_per_s": count / seconds, f"{name}_tokens_per_s": tokens / seconds}
        return numbers if processes.is_first else None


def _main() -> None:
    parser = argparse.ArgumentParser(
        description="Measure one configuration; octavo lab bench polynomials runs them all."
    )
    parser.add_argument("config", help="a SpeedConfig as JSON")
    parser.add_argument("answer", type=Path, help="file to write")
    given = parser.parse_args()
    numbers = _measure_here(SpeedConfig(**json.loads(given.config)))
    if numbers is not None:
        given.answer.write_text(json.dumps(numbers))


if __name__ == "__main__":
    _main()
