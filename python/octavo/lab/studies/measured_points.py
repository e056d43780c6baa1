"""One point of a study: a copy of the model, quantized, perhaps trained, and measured once on test texts."""

from __future__ import annotations

import math
import shutil
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

import octavo
from octavo.errors import SettingError
from octavo.lab.studies.stopwatch import machine
from octavo.lab.studies.subject import Subject
from octavo.nn.quant_layer import QuantLayer
from octavo.quant.apply_recipe import freeze_scales
from octavo.search.journal import Journal, identity
from octavo.train import TrainConfig, train
from octavo.train.loop import Callback

SAMPLES = 256  # training texts that scales are chosen from

Method = Literal["fp32", "ptq", "qat"]
#: Hears what is being done and, where that is known, which share of all work is done.
Tell = Callable[..., None]


@dataclass(frozen=True)
class Training:
    """Training through a format: ``share`` of the updates and ``rate`` of the learning rate that made the model.

    At most ``most`` updates; None: no bound. ``epochs``: passes over the training texts in place of a share of the
    updates. Scales stand still in the last tenth of them, so that weights settle on a fixed grid.
    """

    share: float = 0.1
    rate: float = 0.1
    most: int | None = 1000
    epochs: float | None = None

    def updates(self, subject: Subject) -> int:
        """Return the updates without a bound. Raises SettingError for epochs of texts that have no end."""
        if self.epochs is None:
            return max(1, round(self.share * subject.steps))
        if subject.texts is None:
            raise SettingError(
                f"--epochs {self.epochs:g}: the training texts of {subject.name} have no end; give --qat-share 1 "
                "--qat-rate 1 for a whole training"
            )
        return max(1, round(self.epochs * (subject.texts // subject.batch_size)))

    def config(self, subject: Subject, seed: int) -> TrainConfig:
        """Return the training of a subject: half a cosine down to 0, after a short warm-up."""
        steps = self.updates(subject)
        steps = steps if self.most is None or self.epochs is not None else min(steps, self.most)
        return TrainConfig(
            steps=steps,
            batch_size=subject.batch_size,
            learning_rate=self.rate * subject.learning_rate,
            schedule="cosine",
            warmup=min(steps // 10, 20),
            weight_decay=0.0,
            precision=subject.precision,
            seed=seed,
            checkpoint_every=max(1, min(100, steps)),
            log_every=max(1, steps // 10),
            device=subject.device.type,
        )

    def train(self, model: nn.Module, subject: Subject, seed: int, run: Path) -> None:
        """Train a quantized, or float, copy of a subject's model in place; the log is in the folder ``run``."""
        config = self.config(subject, seed)
        still = config.steps - config.steps // 10

        def settle(model: nn.Module, step: int) -> None:
            if step >= still:
                freeze_scales(model)

        trained(model, subject.task(seed), config, run, callbacks=[settle])


class Measured(Protocol):
    """A point of a study: what decides its numbers, and the model that they are of."""

    def settings(self, subject: Subject) -> dict[str, Any]:
        """Return everything that decides the numbers of the point, plain values."""
        ...

    def build(self, subject: Subject, run: Path) -> nn.Module:
        """Return the model in eval mode; what is trained for it is trained in the folder ``run``."""
        ...


@dataclass(frozen=True)
class Point:
    """One point of a study: ``recipe`` (None: the float32 model) by ``method``, with the draws of ``seed``.

    ``label``: where the point stands in tables and pictures; plain values, part of its settings.
    """

    label: dict[str, Any]
    method: Method
    recipe: str | None = None
    seed: int = 0
    training: Training = Training()
    samples: int = SAMPLES

    def settings(self, subject: Subject) -> dict[str, Any]:
        """Return everything that decides the numbers of the point."""
        found: dict[str, Any] = {
            "subject": subject.identity,
            **self.label,
            "method": self.method,
            "recipe": self.recipe,
        }
        if self.recipe is not None:
            found |= {"seed": self.seed, "samples": self.samples}
        if self.method == "qat":
            found["training"] = self.training.config(subject, self.seed).binding()
        return found

    def build(self, subject: Subject, run: Path) -> nn.Module:
        """Return a copy of the model, quantized as asked for, and trained in the folder ``run`` if asked for."""
        if self.recipe is None:
            return subject.model()
        model = quantized(subject, self.recipe, self.seed, self.samples)
        if self.method == "qat":
            self.training.train(model, subject, self.seed, run)
        return model.eval()

    def __str__(self) -> str:
        """Return what a progress line says."""
        names = " ".join(str(value) for name, value in self.label.items() if name != "study")
        return f"{names} {self.method} seed {self.seed}" if self.recipe else names


def quantized(subject: Subject, recipe: str, seed: int, samples: int = SAMPLES) -> nn.Module:
    """Return a quantized copy of a subject's model, calibrated on ``samples`` training texts drawn by ``seed``."""
    batches = subject.calibration(samples, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", octavo.CoverageWarning)  # a study tries small shares on purpose
        warnings.filterwarnings("ignore", ".* is 0 in '", octavo.CalibrationWarning)  # the record has these layers
        return octavo.quantize_model(
            subject.model(), recipe, calibration=batches, samples=samples, inplace=True, progress=False
        )


def trained(model: nn.Module, task: Any, config: TrainConfig, run: Path, callbacks: Sequence[Callback] = ()) -> None:
    """Train a model of a point in place. Raises InterruptedRun where a signal ended the training."""
    result = train(model, task, config, run, progress=False, callbacks=list(callbacks))
    if result.reason == "interrupted":
        raise result.interruption(told=False)


def zero_layers(model: nn.Module) -> dict[str, int]:
    """Return how many layers have a quantized weight, ``layers``, and of how many of them it is all 0, ``zero``.

    ``weights``: numbers in those layers, and ``zero_weights``: those that are 0 once they are rounded.
    """
    zero = layers = zero_weights = weights = 0
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, QuantLayer) and layer.weight_quantizer is not None:
                rounded = layer.weight_quantizer(layer.weight_matrix())
                zero, layers = zero + (not rounded.any()), layers + 1
                zero_weights, weights = zero_weights + int((rounded == 0).sum()), weights + rounded.numel()
    return {"zero": zero, "layers": layers, "zero_weights": zero_weights, "weights": weights}


def zeros_told(zeros: Mapping[str, int] | None) -> str:
    """Return what a progress line says of layers whose weights all round to 0."""
    if zeros is None:
        return ""
    share = f", {zeros['zero_weights'] / zeros['weights']:.2%} of all" if zeros.get("weights") else ""
    return f"; all weights of {zeros['zero']} of {zeros['layers']} layers round to 0{share}"


class Laboratory:
    """Measures points of one subject: those of the journal are read, the others measured and written."""

    def __init__(
        self, subject: Subject, journal: Journal, folder: Path, *, tell: Tell = lambda text, share=None: None
    ) -> None:
        """Take the subject, an open journal, and the folder in which training runs leave their logs."""
        self.subject, self.journal, self.folder, self.tell = subject, journal, folder, tell
        self._before: dict[str, Tensor] = {}

    def measure_all(
        self, points: Sequence[Measured], *, cooldown_s: float = 0.0, sleep: Callable[[float], None] = time.sleep
    ) -> list[dict[str, Any]]:
        """Return the records of all points, in their order; ``cooldown_s``: of rest between two that are measured."""
        records = []
        for number, point in enumerate(points, start=1):
            found = self.journal.find(point.settings(self.subject), "result")
            record = found or self.measure(point)
            if found:
                self._tidy(point.settings(self.subject))  # a kill may have come before
            result = record["result"]
            share = f"{result['right'] / result['texts']:.2%} of {result['texts']:,}{zeros_told(record.get('zeros'))}"
            told = f"[{number}/{len(points)}] {point}: {share}{' (found)' if found else ''}"
            self.tell(told, number / len(points))
            if cooldown_s and not found and number < len(points):
                self.tell(f"kept in {self.journal.path}; resting for {cooldown_s:g} s")
                sleep(cooldown_s)
            records.append(record)
        return records

    def measure(self, point: Measured) -> dict[str, Any]:
        """Quantize, train if asked for, measure on test texts, and write the record."""
        settings, begin = point.settings(self.subject), time.perf_counter()
        model = self.build(point, settings)
        facts = {"result": self.compare(model, "test"), "seconds": round(time.perf_counter() - begin, 3)}
        if (zeros := zero_layers(model))["zero"]:
            facts["zeros"] = zeros
        record = self.journal.add(settings, **facts, made=made(self.subject.device))
        self._tidy(settings)
        return record

    def build(self, point: Measured, settings: dict[str, Any]) -> nn.Module:
        """Return the model of a point, ready to be measured."""
        return point.build(self.subject, self.run_of(settings))

    def compare(self, model: nn.Module, part: str) -> dict[str, Any]:
        """Return how many texts of a part are right, and how many are lost and gained against float32."""
        right = self.subject.right(model, part)
        if part not in self._before:
            self._before[part] = self.subject.right(self.subject.model(), part)
        before = self._before[part]
        return {
            "right": int(right.sum()),
            "texts": len(right),
            "lost": int((before & ~right).sum()),
            "gained": int((right & ~before).sum()),
        }

    def judge(self, point: Point) -> dict[str, Any]:
        """Return the record of a point that is only compared on validation texts, never on test texts."""
        settings = {**point.settings(self.subject), "judged": "validation"}
        found = self.journal.find(settings, "distance")
        if found is not None:
            return found
        begin = time.perf_counter()
        distance = self.subject.distance(self.build(point, settings))
        told = distance if math.isfinite(distance) else None  # a model that answers NaN is worse than any number
        return self.journal.add(
            settings,
            distance=told,
            seconds=round(time.perf_counter() - begin, 3),
            made=made(self.subject.device),
        )

    def run_of(self, settings: dict[str, Any]) -> Path:
        """Return the folder in which the training of a point leaves its log."""
        return self.folder / "runs" / identity(settings)[:16]

    def _tidy(self, settings: dict[str, Any]) -> None:
        drop_weights(self.run_of(settings))


def drop_weights(run: Path) -> None:
    """Drop the weights of a finished training run; its log stays."""
    for path in [*run.glob("*.safetensors"), *run.glob("checkpoint*")]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def made(device: torch.device) -> dict[str, Any]:
    """Return when, on which device and with what a point was measured."""
    machine_ = machine(device)
    return {
        "device": machine_["device"],
        "name": machine_["name"],
        "octavo": octavo.__version__,
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
