"""The configuration of a run: a frozen value, checked when it is built, and its fingerprint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from octavo.errors import ConfigError
from octavo.storage.arguments import checks_arguments, is_finite
from octavo.storage.reading import shown
from octavo.train.stages import Stage, position, stage_at

SCHEDULES = ("constant", "linear", "cosine", "trapezoid", "one_cycle")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8")
DEVICES = ("auto", "cpu", "cuda")

# Fields that may differ when a run is resumed, because they do not affect its numbers.
HOUSEKEEPING = frozenset({"checkpoint_every", "keep", "device"})


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The configuration of a training run; the data belong to the task.

    Args:
        steps: updates of the weights.
        batch_size: sequences in an update, over all micro-batches and processes.
        learning_rate: the largest of the schedule.
        accumulation: micro-batches of an update.
        schedule: ``constant``, ``linear``, ``cosine``, ``trapezoid`` or ``one_cycle``. ``trapezoid`` (warm-up, stable,
            decay) is constant until the last ``cooldown`` fraction of the steps. ``one_cycle`` is ``linear``, meant for
            a long warm-up, with a momentum that falls as the rate rises, and rises again as it falls.
        warmup: steps of linear growth before the schedule.
        final: rate at the end over ``learning_rate``.
        cooldown: share of the steps in which ``trapezoid`` falls.
        low_momentum: momentum of ``one_cycle`` at the largest rate.
        betas: of AdamW.
        eps: of AdamW.
        weight_decay: of AdamW; parameters of fewer than 2 dimensions do not decay.
        clip: largest norm of the whole gradient, None or 0 for no clipping.
        precision: ``fp32``; ``tf32`` for a GPU's products; autocast to ``bf16`` or ``fp16`` (with loss scaling); or
            ``fp8``, simulated: bf16, with the operands of linear layers in blocks rounded to 8 bits. Weights are always
            float32.
        compile: compile the task's loss with torch.compile.
        seed: seed of dropout and all other random numbers in training.
        evaluate_every: steps between evaluations, None for only at the end.
        checkpoint_every: steps between checkpoints, None for only at the end.
        keep: number of checkpoints.
        log_every: steps per line of metrics.
        patience: evaluations without improvement that end the run, None for no early stopping.
        ema: decay of a moving average of the weights, which is then evaluated and exported; None for no average.
        device: ``auto`` is CUDA if there is a GPU.
        stages: updates with different batch, length, window or rate, see :class:`octavo.train.Stage`. They replace
            ``batch_size`` and ``accumulation``, their steps sum to ``steps``, and the schedule is then measured in
            tokens.

    Raises:
        ConfigError: names the field, its value and what is accepted.

    Example:
        >>> config = octavo.train.TrainConfig(steps=1000, batch_size=32, learning_rate=1e-3, schedule="cosine")
        >>> octavo.train.TrainConfig.from_dict(config.as_dict()) == config
        True
    """

    steps: int
    batch_size: int
    learning_rate: float
    accumulation: int = 1
    schedule: str = "constant"
    warmup: int = 0
    final: float = 0.0
    cooldown: float = 0.2
    low_momentum: float = 0.85
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01
    clip: float | None = 1.0
    precision: str = "fp32"
    compile: bool = False
    seed: int = 0
    evaluate_every: int | None = None
    checkpoint_every: int | None = None
    keep: int = 2
    log_every: int = 10
    patience: int | None = None
    ema: float | None = None
    device: str = "auto"
    stages: tuple[Stage, ...] = ()

    def __post_init__(self) -> None:
        """Check every field, then fields that depend on each other."""
        object.__setattr__(self, "betas", tuple(self.betas) if isinstance(self.betas, list) else self.betas)
        object.__setattr__(self, "stages", tuple(self.stages) if isinstance(self.stages, list) else self.stages)
        for name in ("steps", "batch_size", "accumulation", "log_every", "keep"):
            self._whole(name, least=1)
        for name in ("evaluate_every", "checkpoint_every", "patience"):
            if getattr(self, name) is not None:
                self._whole(name, least=1)
        self._whole("warmup", least=0)
        self._whole("seed", least=0)
        for name, allowed in (("schedule", SCHEDULES), ("precision", PRECISIONS), ("device", DEVICES)):
            if not isinstance(value := getattr(self, name), str) or value not in allowed:
                self._refuse(name, ", ".join(allowed))
        self._number("learning_rate", "a finite number above 0", lambda value: value > 0)
        self._number("eps", "a finite number above 0", lambda value: value > 0)
        self._number("weight_decay", "a finite number of at least 0", lambda value: value >= 0)
        self._number("final", "0 to 1", lambda value: 0 <= value <= 1)
        self._number("cooldown", "above 0 and up to 1", lambda value: 0 < value <= 1)
        self._number("low_momentum", "at least 0 and below 1", lambda value: 0 <= value < 1)
        if self.clip is not None:
            self._number("clip", "None, or a finite number of at least 0", lambda value: value >= 0)
        if self.ema is not None:
            self._number("ema", "None, or above 0 and below 1", lambda value: 0 < value < 1)
        pair = isinstance(self.betas, tuple) and len(self.betas) == 2
        if not pair or not all(is_finite(beta) and 0 <= beta < 1 for beta in self.betas):
            self._refuse("betas", "two numbers of at least 0 and below 1")
        if not isinstance(self.compile, bool):
            self._refuse("compile", "True, False")
        self._check_together()

    def _check_together(self) -> None:
        if not isinstance(self.stages, tuple) or not all(isinstance(stage, Stage) for stage in self.stages):
            self._refuse("stages", "a tuple of Stage")
        if self.stages and sum(stage.steps for stage in self.stages) != self.steps:
            self._refuse("steps", f"the updates of its stages, {sum(stage.steps for stage in self.stages)}")
        if self.accumulation > self.batch_size:
            self._refuse("accumulation", f"1 to batch_size, {self.batch_size}: a micro-batch holds a sequence at least")
        falling = round(self.cooldown * self.steps) if self.schedule == "trapezoid" else 0
        if self.schedule != "constant" and self.warmup + falling > self.steps:
            self._refuse(
                "warmup", f"0 to {self.steps - falling}: {self.steps} steps, {falling} of them for the cool-down"
            )
        if self.patience is not None and self.evaluate_every is None:
            self._refuse("patience", "None where evaluate_every is None: patience counts evaluations")

    def _refuse(self, name: str, accepted: str) -> None:
        raise ConfigError(f"{name} is {shown(getattr(self, name))}; accepted: {accepted}")

    def _whole(self, name: str, *, least: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            self._refuse(name, f"a whole number of at least {least}")

    def _number(self, name: str, accepted: str, holds: Any) -> None:
        value = getattr(self, name)
        if not is_finite(value) or not holds(value):
            self._refuse(name, accepted)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, as JSON has them: tuples are lists.

        Returns:
            A dictionary.
        """
        return {**asdict(self), "betas": list(self.betas), "stages": [asdict(stage) for stage in self.stages]}

    @checks_arguments
    def stage(self, step: int) -> Stage:
        """Return the stage of an update; a run without stages is one stage, with a context of one token.

        Args:
            step: number of the update, from 0.

        Returns:
            The stage.
        """
        if self.stages:
            return self.stages[stage_at(self.stages, step)[0]]
        return Stage(steps=self.steps, batch_size=self.batch_size, context=1, accumulation=self.accumulation)

    @checks_arguments
    def position(self, step: int) -> float:
        """Return the progress at an update.

        Args:
            step: number of the update, from 0.

        Returns:
            Updates; with stages they are measured by tokens.
        """
        return position(self.stages, step) if self.stages else step

    @classmethod
    @checks_arguments
    def from_dict(cls, given: Mapping[str, Any]) -> TrainConfig:
        """Build a configuration from plain values.

        Args:
            given: of :meth:`as_dict`.

        Returns:
            The configuration.

        Raises:
            ConfigError: for unknown or missing fields.
        """
        known = {field.name for field in fields(cls)}
        unknown = sorted(given.keys() - known)
        if unknown:
            raise ConfigError(f"{unknown[0]} is no field of TrainConfig; accepted: {', '.join(sorted(known))}")
        missing = sorted({"steps", "batch_size", "learning_rate"} - given.keys())
        if missing:
            raise ConfigError(f"{missing[0]} is missing; TrainConfig needs steps, batch_size and learning_rate")
        stages = given.get("stages") or ()
        try:
            return cls(**{**given, "stages": tuple(Stage(**stage) for stage in stages)})
        except TypeError as error:
            raise ConfigError(f"stages is {stages!r}; accepted: the fields of Stage: {error}") from None

    def binding(self) -> dict[str, Any]:
        """Return the fields that a continuation must share: no housekeeping, nor ``steps`` if the rate is constant.

        Returns:
            The fields by name.
        """
        free = HOUSEKEEPING | ({"steps"} if self.schedule == "constant" else set())
        return {name: value for name, value in self.as_dict().items() if name not in free}

    def fingerprint(self) -> str:
        """Return the digest of the fields that a continuation must share.

        Returns:
            SHA-256, in hexadecimal.
        """
        return hashlib.sha256(json.dumps(self.binding(), sort_keys=True).encode()).hexdigest()


def differences(saved: TrainConfig, now: TrainConfig) -> list[str]:
    """Name the fields in which ``now`` may not continue a run of ``saved``, with both values."""
    names = saved.binding().keys() | now.binding().keys()
    pairs = [(name, getattr(saved, name), getattr(now, name)) for name in sorted(names)]
    return [f"{name} was {before!r}, is {after!r}" for name, before, after in pairs if before != after]
