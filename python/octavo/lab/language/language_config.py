"""The configuration of a run: a model, how it is trained, and on how many tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from torch import nn

from octavo.data.token_loader import ORDERS
from octavo.errors import ConfigError
from octavo.lab.language.attention_names import ATTENTION, AUTO
from octavo.lab.language.gpt import GPTConfig
from octavo.train import ParameterGroup, Stage, TrainConfig, language_groups


@dataclass(frozen=True, kw_only=True)
class AdamW:
    """AdamW for every parameter, all of which decay. ``moments``: as :class:`octavo.train.ParameterGroup` has them."""

    learning_rate: float = 0.0018
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    eps: float = 1e-8
    moments: str | None = None

    def groups(self, model: nn.Module, steps: int) -> list[ParameterGroup]:
        """Return the one group of parameters; ``steps`` is for rules that warm up."""
        return [ParameterGroup(names=("*",), **asdict(self))]


@dataclass(frozen=True, kw_only=True)
class Lion:
    """Lion for every parameter, all of which decay: a fifth of AdamW's rate, and five times its decay."""

    learning_rate: float = 0.00036
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.5

    def groups(self, model: nn.Module, steps: int) -> list[ParameterGroup]:
        """Return the one group of parameters; ``steps`` is for rules that warm up."""
        return [ParameterGroup(names=("*",), rule="lion", **asdict(self))]


@dataclass(frozen=True, kw_only=True)
class Muon:
    """Muon for matrices of the blocks, AdamW for tables, head and scalars; the numbers are learning rates.

    ``row_rescale``: decay of NorMuon's second moment, 0 for none. ``cautious``: decay only towards where the update
    goes. ``momentum_warmup``: share of the updates over which the momentum rises.
    """

    muon: float = 0.025
    embedding: float = 0.7
    head: float = 0.004
    scalars: float = 0.015
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.8, 0.95)
    row_rescale: float = 0.0
    cautious: bool = False
    momentum_warmup: float = 0.09

    def groups(self, model: nn.Module, steps: int) -> list[ParameterGroup]:
        """Return the groups of parameters in a run of ``steps`` updates."""
        return language_groups(model, **{**asdict(self), "momentum_warmup": round(self.momentum_warmup * steps)})


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A stage of a run by its ``share`` of the tokens: ``context`` tokens of a sequence, ``batch`` sequences of an
    update, ``window`` of positions that mixers may see (None: all), ``rate`` times the schedule's, ``noise`` times the
    model's rates of blocks, positions and inputs that are left out.
    """

    share: float
    context: int
    batch: int
    window: int | None = None
    rate: float = 1.0
    noise: float = 1.0


Rule = AdamW | Lion | Muon


@dataclass(frozen=True, kw_only=True)
class Reptile:
    """Outer steps: after ``every`` updates the weights go ``rate`` of the way from where they were."""

    every: int = 10
    rate: float = 0.5


@dataclass(frozen=True, kw_only=True)
class TestTime:
    """The last validation trains: after every chunk, with ``rate``, on ``neighbours`` among ``entries`` of a store."""

    chunk: int = 64
    entries: int = 1 << 16
    neighbours: int = 2
    rate: float = 1e-2


@dataclass(frozen=True, kw_only=True)
class Until:
    """A run ends at the first of ``in_a_row`` validations whose exact loss is at most ``loss``, nats a token.

    ``every``: tokens between validations, None for a 37th of the run, as the benchmark validates. ``in_a_row``: more
    than one makes the run go on until so many validations in a row are at most ``loss``; three make a claim.

    Raises ConfigError with the field, its value and what is accepted.
    """

    loss: float
    every: int | None = None
    in_a_row: int = 1

    def __post_init__(self) -> None:
        """Check every field."""
        if isinstance(self.loss, bool) or not isinstance(self.loss, int | float) or not 0 < self.loss < math.inf:
            raise ConfigError(f"until is {self.loss!r}; accepted is a loss above 0, in nats a token")
        for name, value in (("every", self.every), ("in_a_row", self.in_a_row)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ConfigError(f"{name} of until is {value!r}; accepted: a whole number of at least 1")

    def updates(self, stages: tuple[Stage, ...]) -> int:
        """Return the updates between validations, at most ``every`` tokens apart where an update has fewer."""
        if self.every is None:
            return max(1, sum(stage.steps for stage in stages) // _VALIDATIONS)
        return max(1, self.every // max(stage.batch_size * stage.context for stage in stages))


# Validations of the benchmark's baseline: every 128 of 4,768 updates.
_VALIDATIONS = 37


@dataclass(frozen=True, kw_only=True)
class LanguageConfig:
    """A run.

    ``tokens``: trained on, to the next whole update. ``phases``: in order, their shares add up to 1; validation has the
    context of the last. ``micro_tokens``: that one forward pass takes at most. ``warmup``, ``cooldown``: shares of the
    tokens. ``validation_tokens``: predicted by each validation, ``validations`` of them on the way, and at the end.
    ``order`` of the training tokens: ``reference``, ``documents`` or ``easy_first``. ``reallocations``: times that a
    grid of words is arranged anew. ``reptile``: outer steps. ``test_time``: training in the last validation.
    ``attention``: torch's kernel of attention in training, ``auto``, ``flash``, ``efficient``, ``math`` or ``cudnn``.
    ``until``: a loss that ends the run; its validations take the place of ``validations``. The other fields are those
    of :class:`octavo.train.TrainConfig`.

    Raises ConfigError with the field, its value and what is accepted.
    """

    model: GPTConfig
    tokens: int
    phases: tuple[Phase, ...]
    optimizer: Rule = AdamW()
    micro_tokens: int = 16384
    schedule: str = "trapezoid"
    warmup: float = 256 / 4768
    cooldown: float = 1024 / 4768
    final: float = 0.0
    clip: float | None = None
    precision: str = "fp32"
    compile: bool = False
    validations: int = 4
    validation_tokens: int = 1 << 20
    order: str = "reference"
    reallocations: int = 0
    reptile: Reptile | None = None
    test_time: TestTime | None = None
    until: Until | None = None
    attention: str = AUTO

    def __post_init__(self) -> None:
        """Check the fields that no part checks for itself."""
        if not isinstance(self.model, GPTConfig):
            raise ConfigError(f"model is a {type(self.model).__name__}; accepted is a GPTConfig")
        if not isinstance(self.optimizer, Rule):
            raise ConfigError(f"optimizer is a {type(self.optimizer).__name__}; accepted are AdamW, Lion and Muon")
        if not self.phases or not math.isclose(sum(phase.share for phase in self.phases), 1.0, rel_tol=1e-6):
            raise ConfigError(f"shares of phases are {[phase.share for phase in self.phases]}; accepted: they add to 1")
        for name, least in (("tokens", 1), ("micro_tokens", 1), ("validations", 0), ("validation_tokens", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ConfigError(f"{name} is {value!r}; accepted: a whole number of at least {least}")
        if self.attention not in ATTENTION:
            raise ConfigError(f"attention is {self.attention!r}; accepted: {', '.join(ATTENTION)}")
        if self.order not in ORDERS:
            raise ConfigError(f"order is {self.order!r}; accepted: {', '.join(ORDERS)}")
        self.stages()

    @property
    def context(self) -> int:
        """Tokens of a sequence at the end, and in validation."""
        return self.phases[-1].context

    def stages(self) -> tuple[Stage, ...]:
        """Return the stages with numbers of updates; each has one at least."""
        return tuple(
            Stage(
                steps=max(1, round(phase.share * self.tokens / (phase.batch * phase.context))),
                batch_size=phase.batch,
                context=phase.context,
                accumulation=_micro_batches(phase, self.micro_tokens),
                window=phase.window,
                rate=phase.rate,
                noise=phase.noise,
            )
            for phase in self.phases
        )

    def train_config(self, *, seed: int = 0, device: str = "auto", **changes: Any) -> TrainConfig:
        """Return the configuration of the loop; ``changes``: fields that differ."""
        stages = self.stages()
        steps = sum(stage.steps for stage in stages)
        every = max(1, steps // self.validations) if self.validations else None
        highest = self.optimizer.muon if isinstance(self.optimizer, Muon) else self.optimizer.learning_rate
        warmup, cooldown = round(self.warmup * steps), self.cooldown
        if self.schedule == "trapezoid":
            warmup = min(warmup, steps - max(1, round(cooldown * steps)))
        return TrainConfig(
            **{
                "steps": steps,
                "batch_size": max(stage.batch_size for stage in stages),
                "learning_rate": highest,
                "schedule": self.schedule,
                "warmup": warmup,
                "cooldown": cooldown,
                "final": self.final,
                "clip": self.clip,
                "precision": self.precision,
                "compile": self.compile,
                "evaluate_every": every if self.until is None else self.until.updates(stages),
                "checkpoint_every": max(1, steps // 20),
                "log_every": max(1, min(10, steps // 20)),
                "seed": seed,
                "device": device,
                "stages": stages,
                **changes,
            }
        )

    def with_tokens(self, tokens: float) -> LanguageConfig:
        """Return the same run on another number of tokens: a schedule that is stretched."""
        return replace(self, tokens=max(1, round(tokens)))

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON.

        ``until`` and ``attention`` are there where they are set, so that records without them stay the same.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["model"] = self.model.as_dict()
        values["phases"] = [asdict(phase) for phase in self.phases]
        values["optimizer"] = {"rule": type(self.optimizer).__name__, **_plain(asdict(self.optimizer))}
        for name in ("reptile", "test_time"):
            values[name] = None if (part := getattr(self, name)) is None else asdict(part)
        if self.attention == AUTO:
            del values["attention"]
        if values.pop("until") is not None:
            values["until"] = asdict(self.until)  # type: ignore[arg-type]
        return values


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Name the fields of two configurations, written down, that differ, with both values."""
    found = []
    for name in sorted(before.keys() | now.keys()):
        one, other = before.get(name), now.get(name)
        if isinstance(one, dict) and isinstance(other, dict):
            found += [f"{name}.{told}" for told in differing(one, other)]
        elif one != other:
            found.append(f"{name} was {one!r}, is {other!r}")
    return found


def _micro_batches(phase: Phase, micro_tokens: int) -> int:
    """Return the fewest parts of equal size whose tokens are at most ``micro_tokens``, or of a sequence each."""
    least = min(phase.batch, -(-phase.batch * phase.context // micro_tokens))
    return next(parts for parts in range(least, phase.batch + 1) if phase.batch % parts == 0)


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
