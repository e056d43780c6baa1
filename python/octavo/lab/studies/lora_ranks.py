"""The study of adapters: full fine-tuning against LoRA at several ranks, on a float base and on packed ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

import octavo
from octavo import lora
from octavo.errors import PackageError, SettingError
from octavo.lab.studies.measured_points import Laboratory, made, quantized, trained
from octavo.lab.studies.result_rows import grouped
from octavo.lab.studies.subject import ClassifierSubject, Subject
from octavo.lab.studies.training_costs import training_costs
from octavo.recipe import Recipe
from octavo.train import TrainConfig, seed_all
from octavo.train.intervals import spread

FP32, FULL, LORA, PEFT = "fp32", "full", "lora", "peft"
SCALING = 2.0  # of every adapter, whatever its rank: alpha is twice the rank


@dataclass(frozen=True)
class Tuning:
    """Fine-tuning: ``epochs`` over the training texts at the model's own learning rate, adapters at ``rate`` times it.

    Adapters start from zero and are scaled, and stand a larger rate than weights; both rates grow over 6 % of the
    steps, then fall to 0.
    """

    epochs: float = 1.0
    rate: float = 10.0

    def config(self, subject: Subject, texts: int, seed: int, *, adapters: bool) -> TrainConfig:
        """Return the training of a subject with ``texts`` training texts."""
        steps = max(1, round(self.epochs * (texts // subject.batch_size)))
        return TrainConfig(
            steps=steps,
            batch_size=subject.batch_size,
            learning_rate=subject.learning_rate * (self.rate if adapters else 1),
            schedule="linear",
            warmup=math.ceil(0.06 * steps),
            betas=(0.9, 0.98),
            weight_decay=0.0,
            precision=subject.precision,
            seed=seed,
            checkpoint_every=200,
            log_every=max(1, steps // 10),
            device=subject.device.type,
        )


@dataclass(frozen=True)
class Variant:
    """What is trained: ``method`` full, lora or peft at a ``rank``, on a ``base``, fp32 or the recipe that packs it."""

    method: str
    base: str = FP32
    rank: int | None = None

    def model(self, subject: ClassifierSubject, seed: int) -> nn.Module:
        """Return the base with what is trained on it, in training mode. The head is always trained whole."""
        if self.base == FP32:
            model = subject.model()
        else:
            model = octavo.pack_model(quantized(subject, head_kept(self.base, subject.head), 0))
        if self.rank is None:
            return model.train()
        seed_all(seed)
        if self.method == PEFT:
            return _peft(model, self.rank, subject.head).train()
        options = {"rank": self.rank, "alpha": SCALING * self.rank, "train": f"name:{subject.head}"}
        return lora.insert(model, options, inplace=True).train()


@dataclass(frozen=True)
class Tuned:
    """A point: a variant, fine-tuned with the draws of ``seed``."""

    variant: Variant
    tuning: Tuning
    seed: int = 0

    def settings(self, subject: Subject) -> dict[str, Any]:
        """Return everything that decides the numbers of the point."""
        assert isinstance(subject, ClassifierSubject)  # open_base gives no other
        config = self.tuning.config(subject, subject.texts, self.seed, adapters=self.variant.rank is not None)
        return {
            "subject": subject.identity, "study": "lora", **asdict(self.variant), "scaling": SCALING,
            "seed": self.seed, "training": config.binding(),
        }  # fmt: skip

    def build(self, subject: Subject, run: Path) -> nn.Module:
        """Return the fine-tuned model."""
        assert isinstance(subject, ClassifierSubject)
        config = self.tuning.config(subject, subject.texts, self.seed, adapters=self.variant.rank is not None)
        model = self.variant.model(subject, self.seed)
        trained(model, subject.task(self.seed), config, run)
        return model.eval()

    def __str__(self) -> str:
        """Return what a progress line says."""
        rank = "" if self.variant.rank is None else f" rank {self.variant.rank}"
        return f"{self.variant.method}{rank} on {self.variant.base} seed {self.seed}"


@dataclass(frozen=True)
class LoraRanks:
    """The study: full fine-tuning of the float base, and adapters of ``ranks`` on it and on each of ``bases``.

    ``bases``: recipes that pack it; its head stays float. ``peft``: the adapters of that library on the float base,
    too. Raises SettingError for lists that are empty and numbers out of range, FormatError for a recipe that cannot be
    read, PackageError where PEFT is asked for and missing.
    """

    ranks: tuple[int, ...] = (1, 4, 16)
    bases: tuple[str, ...] = ("int4:g32",)
    seeds: int = 2
    tuning: Tuning = Tuning()
    peft: bool = False

    def __post_init__(self) -> None:
        """Check before a model is loaded."""
        if not self.ranks or min(self.ranks) < 1 or self.seeds < 1:
            raise SettingError(f"ranks {self.ranks}, {self.seeds} seeds; accepted: one of each, at least, ranks from 1")
        if not (math.isfinite(self.tuning.epochs) and self.tuning.epochs > 0 and self.tuning.rate > 0):
            raise SettingError(f"{self.tuning.epochs} epochs, rate {self.tuning.rate}; accepted are numbers above 0")
        for base in self.bases:
            Recipe.parse(base)
        if self.peft and not has_peft():
            raise PackageError("PEFT is not installed: pip install peft, or leave out --peft")

    def variants(self) -> list[Variant]:
        """Return what is trained, full fine-tuning first."""
        ranks = sorted(set(self.ranks))
        found = [Variant(FULL)]
        for base in (FP32, *self.bases):
            found += [Variant(LORA, base, rank) for rank in ranks]
        return found + [Variant(PEFT, FP32, rank) for rank in ranks if self.peft]

    def run(self, laboratory: Laboratory) -> list[dict[str, Any]]:
        """Measure all points and return the rows of the table."""
        variants = self.variants()
        points = [Tuned(variant, self.tuning, seed) for variant in variants for seed in range(self.seeds)]
        return rows(laboratory.measure_all(points), self._costs(laboratory, variants))

    def _costs(self, laboratory: Laboratory, variants: Sequence[Variant]) -> dict[str, Any]:
        """Return what a step of each variant costs, by its name; all are measured in one go and take turns."""
        subject = laboratory.subject
        assert isinstance(subject, ClassifierSubject)
        settings = {
            "subject": subject.identity, "study": "lora", "costs": [asdict(variant) for variant in variants],
            "batch": subject.batch_size, "precision": subject.precision, "threads": torch.get_num_threads(),
        }  # fmt: skip
        found = laboratory.journal.find(settings, "costs")
        if found is None:
            laboratory.tell("step times: all of them take turns")
            models = {name_of(asdict(variant)): variant.model(subject, 0) for variant in variants}
            config = self.tuning.config(subject, subject.texts, 0, adapters=True)
            costs = training_costs(models, subject.task(0), config, subject.device)
            found = laboratory.journal.add(settings, costs=costs, made=made(subject.device))
        return found["costs"]


def name_of(variant: dict[str, Any]) -> str:
    """Return the name of a variant's settings in the record of costs."""
    return f"{variant['method']} {variant['rank']} on {variant['base']}"


def head_kept(recipe: str, head: str) -> str:
    """Return a recipe under which the head, which is trained, stays float."""
    return f"{recipe}; name:{head} keep"


def has_peft() -> bool:
    """Tell whether PEFT is installed."""
    return find_spec("peft") is not None


def _peft(model: nn.Module, rank: int, head: str) -> nn.Module:
    """Return the model with adapters of PEFT on the same layers, and the head trained whole."""
    import peft

    targets = [path for path, module in model.named_modules() if isinstance(module, nn.Linear) and path != head]
    fields: dict[str, Any] = {"r": rank, "lora_alpha": SCALING * rank, "target_modules": targets}
    model = peft.inject_adapter_in_model(peft.LoraConfig(**fields), model)
    model.get_submodule(head).requires_grad_(True)
    return model


def rows(records: Sequence[dict[str, Any]], costs: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one row for each variant: accuracy over its seeds, points to full fine-tuning, and costs of training."""
    names, made_ = ("method", "base", "rank"), []
    full = None
    for key, group in grouped(records, names).items():
        results = [record["result"] for record in group]
        found = spread([result["right"] / result["texts"] for result in results])
        full = found.mean if full is None else full  # the first group
        variant = dict(zip(names, key, strict=True))
        made_.append({
            **variant, "seeds": found.count, "accuracy": found.mean, "sd": found.sd, "half_interval_95": found.half,
            "difference_points": 100 * (found.mean - full), "texts": results[0]["texts"], **costs[name_of(variant)],
        })  # fmt: skip
    return made_
