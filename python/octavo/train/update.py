"""One update of the weights: gradients summed over micro-batches, divided once by the tokens, clipped, applied."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from octavo.errors import NonFiniteError, TaskError
from octavo.nn.masks import enforce_masks
from octavo.train.distributed import Processes
from octavo.train.learning_rate import momentum_at_rate, rate_factor
from octavo.train.precision import Precision
from octavo.train.task import has_state, share, to_device
from octavo.train.train_config import TrainConfig

# Below this loss scale an fp16 run will not recover: its gradients are infinite at any scale.
LEAST_SCALE = 2.0**-24

# Of a loss in a process: a bench compiles it once a run and stage.
COMPILATIONS = 512


@dataclass(frozen=True)
class Update:
    """The result of one update, over all processes.

    ``loss_sum``: sum over ``tokens``. ``counts``: sums of the task's other numbers. ``gradient_norm``: of the gradient
    of the loss per token, before clipping. ``skipped``: fp16 had an infinite gradient, and the weights are unchanged.
    ``stop``: one of the processes was asked to stop.
    """

    loss_sum: float
    tokens: int
    counts: dict[str, float]
    learning_rate: float
    gradient_norm: float
    skipped: bool
    stop: bool


class Updater:
    """Makes updates of ``model`` with ``optimizer``, with the wrappers for several processes and compilation.

    ``unit`` divides every loss before its gradient is computed. The number of tokens cannot, because it is known only
    after all micro-batches of all processes. ``unit`` is a power of two near that number: division by it is exact, and
    fp16 gradients are in the range that the loss scale expects. The first update chooses it; a resumed run must use the
    same.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Any,
        config: TrainConfig,
        *,
        processes: Processes,
        precision: Precision,
        optimizer: torch.optim.Optimizer,
        unit: float | None = None,
    ) -> None:
        """Wrap the model; with several processes this broadcasts the weights of the first."""
        self.unit = unit
        self._task, self._config, self._processes, self._precision = task, config, processes, precision
        self._optimizer = optimizer
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
            if config.schedule == "one_cycle":
                if "betas" in group:
                    group.setdefault("initial_beta", group["betas"][0])
                if "momentum" in group:
                    group.setdefault("initial_momentum", group["momentum"])
        self._named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._model = model
        self._network = DistributedDataParallel(model) if processes.world > 1 else model
        self._loss = _compiled(task.loss) if config.compile else task.loss
        self._ahead: dict[int, Any] = {}

    def __call__(
        self, step: int, stop: Callable[[], bool] = bool, ready: Callable[[int], None] | None = None
    ) -> Update:
        """Make update ``step``, counted from 0; ``stop()`` of any process is reported in all of them.

        ``ready``: called with the step in all processes when the gradients are final, before the optimizer's step.

        Raises NonFiniteError naming the parameter if a gradient is not finite and the precision is not fp16, and
        TaskError for a loss that is no float32 scalar, without tokens, or without any gradient.
        """
        config, scaler = self._config, self._precision.scaler
        factor = rate_factor(config, step)
        stage = config.stage(step)
        for group in self._optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor * stage.rate
            if config.schedule == "one_cycle":
                _set_momentum(group, config, factor)
        self._optimizer.zero_grad(set_to_none=True)
        totals = _Totals(self._processes.device)
        for micro in range(stage.accumulation):
            self._backward(step, micro, stage.accumulation, totals)
        if scaler.is_enabled():
            scaler.unscale_(self._optimizer)
        names = [name for name, p in self._named if p.grad is not None]
        gradients = [p.grad for _, p in self._named if p.grad is not None]
        if not gradients:
            raise TaskError(f"step {step}: no parameter got a gradient; the loss has to come from model(...)")
        norms = torch.stack(torch._foreach_norm(gradients)).double()
        self._fetch_ahead(step + 1)
        totals.fetch(norms.norm(), self._processes, stop=stop())
        if totals.tokens <= 0:
            raise TaskError(f"step {step}: the loss counted {totals.tokens:g} tokens; an update needs at least one")
        # Backward divided by the unit, and DDP averaged over the processes.
        assert self.unit is not None  # the first micro-batch sets it
        scale = self._processes.world * self.unit / totals.tokens
        norm = totals.norm * scale
        skipped = not math.isfinite(norm)
        if skipped:
            self._check_skip(step, dict(zip(names, norms.tolist(), strict=True)), totals)
        else:
            if config.clip:
                scale *= min(1.0, config.clip / (norm + 1e-6))
            torch._foreach_mul_(gradients, scale)
            if ready is not None:
                ready(step)
            scaler.step(self._optimizer)
            enforce_masks(self._model)
        scaler.update()
        rate = self._optimizer.param_groups[0]["lr"]
        return Update(totals.loss_sum, round(totals.tokens), totals.counts, rate, norm, skipped, totals.stop)

    def _backward(self, step: int, micro: int, parts: int, totals: _Totals) -> None:
        """Add the gradients of one micro-batch of ``parts``; processes exchange gradients only at the last one."""
        ahead = self._ahead.pop(step, None) if micro == 0 else None
        batch = self._fetch(step, micro) if ahead is None else ahead
        network = self._network
        is_last = micro == parts - 1
        with network.no_sync() if isinstance(network, DistributedDataParallel) and not is_last else nullcontext():
            with self._precision.autocast():
                loss_sum, count, counts = self._loss(self._network, batch)
            if loss_sum.ndim or loss_sum.dtype not in (torch.float32, torch.float64):
                actual = f"{loss_sum.dtype} of shape {tuple(loss_sum.shape)}"
                raise TaskError(f"loss returned {actual}; accepted: the sum over all tokens, of shape (), in float32")
            if self.unit is None:
                self.unit = self._power_of_two_near(count, parts)
            self._precision.scaler.scale(loss_sum / self.unit).backward()
        totals.add(loss_sum.detach(), count, counts)

    def _power_of_two_near(self, count: int | Tensor, parts: int) -> float:
        """Return the power of two nearest to the tokens of an update, estimated by one micro-batch of every process."""
        alike = torch.tensor(float(count), dtype=torch.float64, device=self._processes.device)
        tokens = self._processes.sum(alike).item() * parts
        return 2.0 ** round(math.log2(max(tokens, 1.0)))

    def _fetch(self, step: int, micro: int) -> Any:
        """Return this process's part of a micro-batch, on its device."""
        stage, processes = self._config.stage(step), self._processes
        part = micro * processes.world + processes.rank
        start, size = share(stage.batch_size, stage.accumulation * processes.world, part)
        return to_device(self._task.batch(step, micro, start, size), processes.device)

    def _fetch_ahead(self, step: int) -> None:
        """Prefetch the first micro-batch of the next update while a GPU still works on this one.

        A task with a state is not prefetched, because a checkpoint between the two updates would store a later state.
        """
        if step < self._config.steps and not has_state(self._task):
            self._ahead = {step: self._fetch(step, 0)}

    def _check_skip(self, step: int, norms: dict[str, float], totals: _Totals) -> None:
        """Raise NonFiniteError unless a smaller fp16 loss scale may make the gradients finite again."""
        bad = next((name for name, norm in norms.items() if not math.isfinite(norm)), "all of them")
        loss = f"the loss is {totals.loss_sum / totals.tokens:g} per token"
        if not self._precision.scaler.is_enabled():
            raise NonFiniteError(f"step {step}: the gradient of '{bad}' is not finite; {loss}")
        if self._precision.scaler.get_scale() < LEAST_SCALE:
            raise NonFiniteError(f"step {step}: the gradient of '{bad}' is not finite at any loss scale; {loss}")


def _compiled(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Return the compiled loss, for every model and every shape of its stages.

    The limit is raised, because after 8 compilations torch falls back to eager mode with only a warning.
    """
    settings = torch._dynamo.config
    settings.cache_size_limit = max(settings.cache_size_limit, COMPILATIONS)
    settings.accumulated_cache_size_limit = max(settings.accumulated_cache_size_limit, 8 * COMPILATIONS)
    return torch.compile(loss, dynamic=False)


def _set_momentum(group: dict[str, Any], config: TrainConfig, factor: float) -> None:
    """Set the momentum of a group for its rate: the first beta of Adam and similar rules, or ``momentum``."""
    if "initial_beta" in group:
        group["betas"] = (momentum_at_rate(config, group["initial_beta"], factor), *group["betas"][1:])
    if "initial_momentum" in group:
        group["momentum"] = momentum_at_rate(config, group["initial_momentum"], factor)


@dataclass
class _Totals:
    """Sums over micro-batches and processes; tensors on the device until ``fetch``, which synchronises once."""

    device: torch.device
    loss_sum: Any = 0.0
    tokens: Any = 0
    counts: dict[str, Any] = field(default_factory=dict)
    norm: float = 0.0
    stop: bool = False

    def add(self, loss_sum: Tensor, count: int | Tensor, counts: Mapping[str, int | Tensor]) -> None:
        self.loss_sum = self.loss_sum + loss_sum.double()
        self.tokens = self.tokens + count
        for name, value in counts.items():
            self.counts[name] = self.counts.get(name, 0) + value

    def fetch(self, norm: Tensor, processes: Processes, *, stop: bool) -> None:
        """Sum over processes, and convert everything to plain numbers; ``norm`` is the same in all processes."""
        names = sorted(self.counts)
        items = [self.loss_sum, self.tokens, float(stop), *(self.counts[name] for name in names)]
        scalars = [torch.as_tensor(item, dtype=torch.float64, device=self.device).detach() for item in items]
        sums = processes.sum(torch.stack([scalar.reshape(()) for scalar in scalars]))
        self.loss_sum, self.tokens, stops, *counted, self.norm = torch.cat([sums, norm.reshape(1)]).tolist()
        self.counts, self.stop = dict(zip(names, counted, strict=True)), stops > 0
