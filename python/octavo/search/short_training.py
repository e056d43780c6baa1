"""Short training of a compressed model: its configuration, its task, and the resumable run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from octavo.data.batches import call_on
from octavo.errors import ConfigError, TaskError
from octavo.search.output_divergence import Output, reader_of
from octavo.train.loop import train
from octavo.train.randomness import undisturbed
from octavo.train.train_config import TrainConfig

Loss = Callable[[nn.Module, Any], Tensor]
#: Updates where nothing else is said.
STEPS = 200


@dataclass(frozen=True)
class Training:
    """A short training: ``task``, as :mod:`octavo.train` takes it; ``config``; ``told``: a description of the loss.

    ``identity``: plain values that identify the loss and its data in the journal. ``unknown``: parts of them that
    cannot be identified.
    """

    task: Any
    config: TrainConfig
    told: str
    identity: dict[str, Any]
    unknown: tuple[str, ...] = ()


def short_config(steps: int | None = None, *, learning_rate: float, batch_size: int = 1, **changes: Any) -> TrainConfig:
    """Return the configuration of a short training: warm-up in a twentieth of the steps, then a cosine to 0.

    There is no weight decay, because the weights are already trained. A checkpoint is written after each twentieth of
    the steps. ``steps`` None: 200. Raises ConfigError for fewer than 1 step.
    """
    steps = STEPS if steps is None else steps
    if steps < 1:
        raise ConfigError(f"a short training has {steps} updates; accepted are 1 and more")
    settings: dict[str, Any] = {
        "schedule": "cosine", "warmup": steps // 20, "weight_decay": 0.0, "device": "cpu",
        "checkpoint_every": max(steps // 20, 1), **changes,
    }  # fmt: skip
    return TrainConfig(steps=steps, batch_size=batch_size, learning_rate=learning_rate, **settings)


def rate_of(model: nn.Module) -> float:
    """Return a learning rate for a short training of a model with an unknown one: 0.2 % of the RMS of its matrices.

    AdamW's updates have the size of the learning rate, so one update changes weights by about 0.2 %.
    """
    matrices = [parameter.detach() for parameter in model.parameters() if parameter.ndim > 1]
    total = sum(float(matrix.double().square().sum()) for matrix in matrices)
    count = sum(matrix.numel() for matrix in matrices)
    return 2e-3 * math.sqrt(total / count) if total else 1e-4


class BatchTask:
    """A task of whole batches, one per update, shuffled in every epoch by ``seed`` and the number of the epoch.

    ``loss``: a function of a model and a batch that returns the scalar to minimise. Models are in eval mode: dropout
    would add noise to the few updates of a short training, and batch statistics would replace the trained ones.
    """

    def __init__(self, batches: Sequence[Any], loss: Loss, *, seed: int = 0) -> None:
        """Keep a list of the batches."""
        self._batches, self._loss, self._seed = list(batches), loss, seed

    def batch(self, step: int, micro: int, start: int, size: int) -> Tensor:
        """Return the number of the batch of an update, ``[1]``."""
        turn, place = divmod(step, len(self._batches))
        generator = torch.Generator().manual_seed(self._seed + turn)
        return torch.randperm(len(self._batches), generator=generator)[place : place + 1]

    def loss(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, int, dict[str, int | Tensor]]:
        """Return the loss of a batch, and 1. Raises TaskError for a loss that is no scalar with a gradient."""
        model.eval()
        loss = self._loss(model, self._batches[int(batch)])
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise TaskError(
                f"the loss of a batch is a {type(loss).__name__}; accepted is a tensor of one value, with a gradient"
            )
        return loss.reshape(()), 1, {}


def distillation(reference: nn.Module, output: Output | None = None, divergence: str | None = None) -> Loss:
    """Return the loss of a model against ``reference`` on a batch: the mean divergence of their outputs.

    Outputs are compared as in :func:`octavo.search.measure_sensitivity`. ``reference`` runs in eval mode.
    """

    def loss(model: nn.Module, batch: Any) -> Tensor:
        with torch.no_grad():
            target = call_on(reference, batch)
            reader = reader_of(target, batch, output, divergence)
            wanted = reader.reference(reader.rows(target, batch))
        return reader.each(wanted, reader.rows(call_on(model, batch), batch)).mean()

    reference.eval()
    return loss


def train_short(model: nn.Module, training: Training, folder: Path, advance: Callable[[int], None]) -> None:
    """Train a quantized model in place, or resume the run in ``folder``.

    ``advance`` is called with the number of each update. The result has the same bits however often the run was
    stopped, with the same number of threads. Raises InterruptedRun on SIGINT and SIGTERM, and the errors of
    :func:`octavo.train.train`.
    """

    def hear(_: nn.Module, step: int) -> None:
        advance(step)

    with undisturbed():
        result = train(model, training.task, training.config, folder, progress=False, callbacks=[hear])
    model.eval()
    if result.reason == "interrupted":
        raise result.interruption(told=False)
