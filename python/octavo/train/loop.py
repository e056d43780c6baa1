"""The training loop: updates, evaluations, checkpoints, and resuming after a crash."""

from __future__ import annotations

import signal as signals
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from octavo.display.training_output import Display
from octavo.errors import CheckpointError, ConfigError, InterruptedRun, LockedError
from octavo.storage import locks
from octavo.storage.arguments import checks_arguments
from octavo.tensors import container
from octavo.train import checkpoint
from octavo.train.checkpoint_content import CheckpointContent
from octavo.train.clock import Clock
from octavo.train.distributed import Processes, join
from octavo.train.evaluation import evaluate, is_better, value_of
from octavo.train.interrupt import Interrupt
from octavo.train.metric_files import Metrics, board_writer, write_run
from octavo.train.metric_lines import evaluation_line, train_line
from octavo.train.optimizer import adamw, check_coverage, check_parameters
from octavo.train.precision import Precision
from octavo.train.randomness import random_state, restore_random_state, seed_all
from octavo.train.run_counters import State, Window
from octavo.train.task import Task, check_task, ends_early, evaluates
from octavo.train.train_config import TrainConfig
from octavo.train.update import Update, Updater
from octavo.train.weight_average import Average

LAST, BEST = "last.safetensors", "best.safetensors"

Reason = Literal["finished", "early", "reached", "interrupted"]
MakeOptimizer = Callable[[nn.Module, TrainConfig], torch.optim.Optimizer]
Callback = Callable[[nn.Module, int], None]


@dataclass(frozen=True)
class TrainResult:
    """The result of a run.

    ``reason``: ``finished`` (all steps), ``early`` (patience), ``reached`` (the task's goal) or ``interrupted``
    (SIGINT or SIGTERM; the same call continues the run). ``signal``: number of that signal. ``step``: number of
    updates. ``tokens``: number of training tokens. ``loss``: per token, in the last line of metrics. ``metrics``: of
    the last evaluation; None before the first. ``best``: the best value of the task's metric, after ``best_step``
    updates. ``seconds`` by clock: ``train_s``, ``evaluate_s``, ``compile_s``. ``folder`` has
    ``last.safetensors`` and ``best.safetensors``: weights, or their moving average with ``ema``.
    """

    reason: Reason
    step: int
    tokens: int
    loss: float | None
    metrics: dict[str, float] | None
    best: float | None
    best_step: int | None
    seconds: dict[str, float]
    folder: Path
    signal: int | None = None

    @checks_arguments
    def interruption(self, *, told: bool) -> InterruptedRun:
        """Return the error that ends an interrupted command.

        Args:
            told: the user was informed already.

        Returns:
            The error.
        """
        text = f"interrupted after step {self.step}: the same command goes on from {self.folder}"
        return InterruptedRun(text, self.signal or signals.SIGINT, told)


@checks_arguments
def train(
    model: nn.Module,
    task: Task,
    config: TrainConfig,
    folder: Path | str,
    *,
    resume: bool = True,
    progress: bool = True,
    tensorboard: bool = False,
    optimizer: MakeOptimizer = adamw,
    callbacks: Sequence[Callback] = (),
) -> TrainResult:
    """Train a model on a task; all files are written in one folder.

    The folder gets ``run.json``, ``metrics.jsonl``, ``checkpoints/``, at the end ``last.safetensors``, and
    ``best.safetensors`` if the task names a metric. A run in the folder continues from its newest undamaged checkpoint.
    A resumed run equals an uninterrupted one bit for bit, on a CPU with the same number of threads; ``kill -9`` loses
    the steps since the last checkpoint. Under torchrun all processes make this call; see
    :mod:`octavo.train.distributed`.

    The run owns its process: it seeds the global random number generators, and handles SIGINT and SIGTERM while it
    lasts; a signal after the last step is raised again at the end. It owns the folder by a lock that ends with the
    process. Initial weights are not seeded here; call :func:`octavo.train.seed_all` before building the model.

    Args:
        model: on any device, weights in float32; it is moved to the run's device and has the last weights afterwards.
        task: batches, loss and evaluation; :mod:`octavo.train.task` lists the optional members.
        config: the settings.
        folder: of the run.
        resume: False refuses a folder that has a run.
        progress: a bar or lines on stderr.
        tensorboard: write event files, too.
        optimizer: builds the optimizer; its rates follow the schedule.
        callbacks: called with ``model`` and the number of the update, from 0, before each update. Their changes of the
            model must depend only on that number and the model's state dict, as those of
            :class:`octavo.quant.FormatSchedule` and :func:`octavo.prune.callback` do, because a run may resume at any
            update. A callback's method ``gradients``, if present, is called in the same way when the gradients of an
            update are in ``grad``.

    Returns:
        The reason of the end, numbers of the run, and its folder.

    Raises:
        ConfigError: before the first step, for settings that do not fit.
        TaskError: for a task that returns what the loop cannot use.
        OptimizerError: for an optimizer that does not hold every trained parameter exactly once.
        DTypeError: for another kind of object.
        PackageError: for ``tensorboard`` without its package.
        CheckpointError: for a folder of another run.
        LockedError: for a folder in use by another process.
        OSError: names the file if the disk is full; older checkpoints stay.
        NonFiniteError: names step and parameter if gradients diverge.

    Example:
        >>> class Double:
        ...     def batch(self, step, micro, start, size):
        ...         return torch.arange(size).float().view(-1, 1)
        ...     def loss(self, model, batch):
        ...         return ((model(batch) - 2 * batch) ** 2).sum(), batch.numel(), {}
        >>> model = nn.Linear(1, 1)
        >>> config = octavo.train.TrainConfig(steps=50, batch_size=4, learning_rate=0.1, device="cpu")
        >>> result = octavo.train.train(model, Double(), config, "run", progress=False)
        >>> result.reason, result.step
        ('finished', 50)
    """
    check_task(task, config)
    check_parameters(model)
    if tensorboard:
        board_writer()
    folder = Path(folder)
    with ExitStack() as stack:
        processes = stack.enter_context(join(config.device))
        parts = _parts(model, task, config, processes, optimizer)
        stack.enter_context(_only_run(folder, processes))
        _restore_newest(parts, folder, resume=resume)
        stack.enter_context(parts.precision.prepared(model))
        step, first = parts.state.step, processes.is_first
        metrics = stack.enter_context(Metrics(folder, upto=step, write=first, tensorboard=tensorboard))
        display = stack.enter_context(Display(config.steps, step=step, enabled=progress and first))
        interrupt = stack.enter_context(Interrupt())
        result = _Run(parts, folder, metrics, display, interrupt, tuple(callbacks)).go()
    if interrupt.number is not None and result.reason != "interrupted":
        signals.raise_signal(interrupt.number)  # a signal after the last step goes to the caller
    return result


@contextmanager
def _only_run(folder: Path, processes: Processes) -> Iterator[None]:
    """Lock the folder, in the first process. Raises LockedError in all of them if another run has it."""
    with ExitStack() as stack:
        refused = None
        if processes.is_first:
            try:
                stack.enter_context(locks.hold(folder))
            except LockedError as error:
                refused = str(error)
        refused = processes.from_first(refused)
        if refused is not None:
            raise LockedError(refused)
        yield


def _parts(
    model: nn.Module, task: Any, config: TrainConfig, processes: Processes, make_optimizer: MakeOptimizer
) -> CheckpointContent:
    """Seed the generators, move the model, and create the mutable parts of a run."""
    for stage in config.stages or (config.stage(0),):
        if stage.batch_size < stage.accumulation * processes.world:
            parts = f"{stage.accumulation} micro-batches in {processes.world} processes"
            raise ConfigError(f"batch_size is {stage.batch_size}; accepted: at least one sequence for {parts}")
    seed_all(config.seed, processes.rank)
    model.to(processes.device).train()
    optimizer = make_optimizer(model, config)
    check_coverage(model, optimizer)
    precision = Precision(config.precision, processes.device)
    average = Average(model, config.ema) if config.ema is not None else None
    return CheckpointContent(model, task, config, processes, optimizer, precision, average, Clock(), State())


def _restore_newest(parts: CheckpointContent, folder: Path, *, resume: bool) -> None:
    """Restore the newest undamaged checkpoint in ``folder`` if there is one, and write ``run.json``."""
    processes = parts.processes
    existing = checkpoint.available(folder)
    if existing and not resume:
        raise CheckpointError(f"{folder}: holds a run with {existing[0].name}; give another folder, or resume=True")
    newest = checkpoint.load_newest(folder)
    if newest is not None:
        parts.restore(*newest)
    steps = processes.gather(parts.state.step)
    if len(set(steps)) > 1:
        raise CheckpointError(f"{folder}: the processes found steps {steps}; they must all see the same folder")
    if processes.is_first:
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint.tidy(folder, newest[0] if newest else None, keep=parts.config.keep)
        trained = sum(p.numel() for p in parts.model.parameters() if p.requires_grad)
        facts = {"model": type(parts.model).__name__, "trained": trained, "task": type(parts.task).__name__}
        facts |= getattr(parts.task, "facts", {})
        write_run(folder, parts.config, processes, facts, step=parts.state.step)


class _Run:
    """One run in one process, from the present state of its parts to its end."""

    def __init__(
        self,
        parts: CheckpointContent,
        folder: Path,
        metrics: Metrics,
        display: Display,
        interrupt: Interrupt,
        callbacks: tuple[Callback, ...],
    ) -> None:
        self.parts, self.folder = parts, folder
        self.config, self.state, self.clock, self.processes = parts.config, parts.state, parts.clock, parts.processes
        self.metrics, self.display, self.interrupt, self.callbacks = metrics, display, interrupt, callbacks
        methods = (getattr(callback, "gradients", None) for callback in callbacks)
        self.gatherers: list[Callback] = [gather for gather in methods if callable(gather)]
        #: Evaluations in a row that reach the task's goal and end the run; 0 for a task without one.
        self.goals = getattr(parts.task, "reached_in_a_row", 1) if ends_early(parts.task) else 0
        self.saved = parts.state.step  # the step of the newest checkpoint; 0 is none
        random = random_state()
        self.update = Updater(
            parts.model,
            parts.task,
            parts.config,
            processes=parts.processes,
            precision=parts.precision,
            optimizer=parts.optimizer,
            unit=parts.state.unit,
        )
        restore_random_state(random)  # wrapping the model may have drawn numbers

    def go(self) -> TrainResult:
        """Make updates until the run ends."""
        state, config = self.state, self.config
        if state.step:
            self.display.say(f"resumed after step {state.step} of {config.steps}")
        reason: Reason = "finished"
        compiled = None  # the stage whose shapes are compiled
        while state.step < config.steps and reason == "finished":
            if config.patience is not None and state.unimproved >= config.patience:
                reason = "early"
                break
            if self.goals and state.reached >= self.goals:
                reason = "reached"
                break
            stage = config.stage(state.step)
            stop = self._step(compiling=config.compile and stage != compiled)
            compiled = stage
            last = state.step == config.steps
            if _due(state.step, config.evaluate_every) or (last and evaluates(self.parts.task)):
                self._evaluate()
            if _due(state.step, config.checkpoint_every):
                self._checkpoint()
            if stop and not last:
                reason = "interrupted"
        if self.saved != state.step:
            self._checkpoint()
        number = None
        if reason == "interrupted":
            numbers = self.processes.gather(self.interrupt.number)
            number = next((signal for signal in numbers if signal is not None), None)
            self.display.say(f"interrupted after step {state.step}: the same command goes on from {self.folder}")
        else:
            self._export(LAST)
        seconds = self.clock.as_dict()
        counts = (state.step, state.tokens, state.loss, state.metrics, state.best, state.best_step)
        return TrainResult(reason, *counts, seconds, self.folder, number)

    def _step(self, *, compiling: bool) -> bool:
        """Make one update and, if due, write a line of metrics. Return whether the run was asked to stop."""
        state, average = self.state, self.parts.average
        begin = time.perf_counter()
        with self.clock.on("compile" if compiling else "train"):
            for callback in self.callbacks:
                callback(self.parts.model, state.step)
            update = self.update(state.step, self.interrupt.seen, self._gradients if self.gatherers else None)
            if average is not None and not update.skipped:
                average.update(state.step + 1)
        state.unit = self.update.unit
        state.step += 1
        state.tokens += update.tokens
        state.window.add(update, None if compiling else time.perf_counter() - begin)
        if _due(state.step, self.config.log_every) or state.step == self.config.steps:
            self._log(update)
        self.display.step(state.step)
        return update.stop

    def _gradients(self, step: int) -> None:
        """Call the callbacks that read the gradients of an update."""
        for gather in self.gatherers:
            gather(self.parts.model, step)

    def _log(self, update: Update) -> None:
        """Write the line of the window, and begin a new window."""
        line = train_line(
            self.state,
            self.clock,
            batch_size=self.config.stage(self.state.step - 1).batch_size,
            learning_rate=update.learning_rate,
            norm=update.gradient_norm,
        )
        self.state.loss, self.state.window = line["loss"], Window()
        self.metrics.write(line)
        self.display.line(line)

    def _evaluate(self) -> None:
        """Evaluate, write a line, and keep the weights if they are the best so far."""
        state, parts = self.state, self.parts
        before = self.clock.seconds["evaluate"]
        with self.clock.on("evaluate"):
            results = evaluate(
                parts.model, parts.task, processes=parts.processes, precision=parts.precision, average=parts.average
            )
        seconds = self.clock.seconds["evaluate"] - before
        state.metrics = {name: value_of(value) for name, value in results.items()}
        metric = getattr(parts.task, "metric", None)
        value = None if metric is None else state.metrics[metric]
        best = value is not None and is_better(value, state.best, parts.task.goal)
        if best:
            state.best, state.best_step, state.unimproved = value, state.step, 0
            self._export(BEST)
        else:
            state.unimproved += 1
        if self.goals:
            state.reached = state.reached + 1 if parts.task.reached(state.metrics) else 0
        line = evaluation_line(state, self.clock, results, best=best, seconds=seconds)
        self.metrics.write(line)
        self.display.line(line)

    def _checkpoint(self) -> None:
        """Write a checkpoint; all processes wait until it is on the disk."""
        content = self.parts.collect()
        if self.processes.is_first:
            self.metrics.sync()
            checkpoint.save(self.folder, self.state.step, content, keep=self.config.keep)
        self.processes.barrier()
        self.saved = self.state.step

    def _export(self, name: str) -> None:
        """Write the weights, or their moving average, as a safetensors file."""
        if not self.processes.is_first:
            return
        average = self.parts.average
        with average.applied() if average is not None else nullcontext():
            state = self.parts.model.state_dict()
            tensors = {key: item.detach().cpu().contiguous() for key, item in state.items() if isinstance(item, Tensor)}
            container.save(tensors, self.folder / name, metadata={"step": str(self.state.step)}, overwrite=True)


def _due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0
