"""What a step of training costs: trained parameters, bytes of the optimizer, peak memory, seconds."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from octavo.data.batches import map_leaves
from octavo.lab.studies.attention_speed import peak
from octavo.lab.studies.stopwatch import in_turn
from octavo.train import TrainConfig
from octavo.train.optimizer import adamw
from octavo.train.precision import Precision

ROUNDS = 5
_LEVEL = "KINETO_LOG_LEVEL"
_CPU = torch.device("cpu")


def training_costs(
    models: Mapping[str, nn.Module], task: Any, config: TrainConfig, device: torch.device = _CPU
) -> dict[str, dict[str, Any]]:
    """Return the costs of a step on the first batch of ``task`` for models in training mode, by name.

    ``device``: where the models are.

    ``trained``: parameters with a gradient. ``optimizer_bytes``: the state of AdamW. ``model_bytes``: parameters and
    buffers. ``peak_bytes``: those, the optimizer's, and the most that torch's allocator gave out beside them during a
    step, batch excluded. ``step_s``: median of steps that take turns.
    """
    batch = map_leaves(lambda leaf: leaf.to(device), task.batch(0, 0, 0, config.batch_size))
    steps, found = {}, {}
    for name, model in models.items():
        optimizer = adamw(model, config)
        steps[name] = step_of(model, optimizer, task, batch, Precision(config.precision, device))
        steps[name]()  # the optimizer makes its state
        optimizer_bytes = _bytes(item for state in optimizer.state.values() for item in state.values())
        model_bytes = _bytes([*model.parameters(), *model.buffers()])
        found[name] = {
            "trained": sum(p.numel() for p in model.parameters() if p.requires_grad),
            "optimizer_bytes": optimizer_bytes,
            "model_bytes": model_bytes,
            "peak_bytes": model_bytes + optimizer_bytes + (peak(steps[name], device) or allocated(steps[name])),
        }
    seconds = in_turn(steps, ROUNDS, device)
    return {name: {**costs, "step_s": seconds[name]} for name, costs in found.items()}


def step_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, task: Any, batch: Any, precision: Precision
) -> Callable[[], None]:
    """Return a function that makes one update of the weights; no gradient stays behind it."""

    def step() -> None:
        with precision.autocast():
            loss, count, _ = task.loss(model, batch)
        (loss / count).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def allocated(call: Callable[[], object]) -> int:
    """Return the most bytes that torch's CPU allocator had given out at once during a call, beyond those before it."""
    with (
        _quiet(),
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as found,
    ):
        call()
    live = peak = 0
    for event in found.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


@contextmanager
def _quiet() -> Iterator[None]:
    """Let torch's profiler not write to stderr when it starts, stops, and finds no GPU."""
    before = os.environ.get(_LEVEL)
    os.environ[_LEVEL] = before or "99"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_LEVEL]


def _bytes(tensors: Any) -> int:
    held = {item.data_ptr(): item.nbytes for item in tensors if isinstance(item, Tensor) and item.numel()}
    return sum(held.values())
