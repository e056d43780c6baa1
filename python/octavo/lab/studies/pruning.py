"""The study of pruning: accuracy, bytes and measured time against sparsity, before and after fine-tuning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import octavo
from octavo.errors import SettingError
from octavo.lab.classifiers.texts import logits_of
from octavo.lab.studies.forward_costs import forward_costs
from octavo.lab.studies.lora_ranks import Tuning
from octavo.lab.studies.measured_points import SAMPLES, Laboratory, made, quantized, trained
from octavo.lab.studies.result_rows import grouped, summary
from octavo.lab.studies.subject import ClassifierSubject, Subject
from octavo.prune import Cubic
from octavo.prune.granularity import Granularity
from octavo.recipe import Recipe

DENSE, MASE, MASE_RANDOM = "dense", "mase", "mase-random"
CRITERIA = ("random", "magnitude", "wanda", "taylor")
SCOPES = ("local", "global")
BASELINES = (MASE,)
_BOTH = {MASE: ("magnitude", "quantile"), MASE_RANDOM: ("random", "random")}  # what prunes weights, and activations
WHOLE = ("row", "column", "head", "neuron", "layer")  # granularities after which structure can be taken out
GRADUAL = 0.7  # share of the updates in which sparsity grows; the rest heals what the last of it cost
_DATA = ("wanda", "taylor")  # criteria that look at training texts


@dataclass(frozen=True)
class Cut:
    """What is pruned: ``sparsity`` of the Linear layers but the head, by a criterion, granularity and scope.

    ``recipe``: what the model is quantized by before. The criteria ``mase`` (by magnitude) and ``mase-random`` prune
    the inputs of the layers and the head as well (:func:`octavo.prune.prune_activations`), ``dense`` nothing.
    """

    criterion: str = DENSE
    granularity: str = "element"
    scope: str = "local"
    sparsity: float = 0.0
    recipe: str | None = None

    def draws(self) -> bool:
        """Tell whether the weights that go depend on the seed."""
        return self.criterion in ("random", MASE_RANDOM, *_DATA)

    def model(self, subject: ClassifierSubject, seed: int, schedule: Cubic | None = None) -> nn.Module:
        """Return a copy of the subject's model with masks, pruned unless a ``schedule`` does it in training."""
        model = subject.model() if self.recipe is None else quantized(subject, self.recipe, seed)
        if self.criterion == DENSE:
            return model.eval()
        is_mase = self.criterion in _BOTH
        shares = {"type:Linear": self.sparsity} | ({} if is_mase else {f"name:{subject.head}": 0.0})
        criterion, method = _BOTH.get(self.criterion, (self.criterion, ""))
        given: dict[str, Any] = {}
        if self.criterion == "wanda":
            given = {"calibration": subject.calibration(SAMPLES, seed), "samples": SAMPLES}
        if self.criterion == "taylor":
            given = {"calibration": subject.labelled(SAMPLES, seed), "samples": SAMPLES, "loss": _loss}
        model = octavo.prune_model(
            model, shares, criterion=criterion, granularity=self.granularity,
            scope=self.scope, seed=seed, schedule=schedule, inplace=True, progress=False, **given,
        )  # fmt: skip
        if is_mase:
            octavo.prune.prune_activations(
                model, self.sparsity, method=method, targets="type:Linear", seed=seed, inplace=True, progress=False
            )
        return model.eval()


def _loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    inputs = {name: item for name, item in batch.items() if name != "labels"}
    return functional.cross_entropy(logits_of(model(**inputs)), batch["labels"])


@dataclass(frozen=True)
class PrunedPoint:
    """A point: a cut, by the draws of ``seed``, and fine-tuned with its masks where there is a ``tuning``.

    ``gradual``: it is pruned while it is fine-tuned, not before.
    """

    cut: Cut
    tuning: Tuning | None = None
    seed: int = 0
    gradual: bool = False

    def settings(self, subject: Subject) -> dict[str, Any]:
        """Return everything that decides the numbers of the point."""
        assert isinstance(subject, ClassifierSubject)
        found = {
            "subject": subject.identity, "study": "prune", **asdict(self.cut), "tuned": self.tuning is not None,
            "seed": self.seed,
        }  # fmt: skip
        if self.cut.criterion in _DATA or self.cut.recipe is not None:
            found["samples"] = SAMPLES
        if self.tuning is not None:
            config = self.tuning.config(subject, subject.texts, self.seed, adapters=False)
            found["training"] = config.binding()
        if self.gradual:
            found["gradual"] = GRADUAL
        return found

    def build(self, subject: Subject, run: Path) -> nn.Module:
        """Return the pruned model, fine-tuned if asked for; pruned weights stay 0 in training."""
        assert isinstance(subject, ClassifierSubject)
        if self.tuning is None:
            return self.cut.model(subject, self.seed)
        config = self.tuning.config(subject, subject.texts, self.seed, adapters=False)
        schedule = Cubic(max(1, round(GRADUAL * config.steps))) if self.gradual else None
        model = self.cut.model(subject, self.seed, schedule)
        callbacks = [octavo.prune.callback(model)] if self.gradual else []
        trained(model, subject.task(self.seed), config, run, callbacks)
        return model.eval()

    def __str__(self) -> str:
        """Return what a progress line says."""
        return f"{name_of(asdict(self.cut))} {'tuned' if self.tuning else 'as pruned'} seed {self.seed}"


@dataclass(frozen=True)
class Prune:
    """The study: every criterion, granularity and scope at every sparsity, before and after fine-tuning, over seeds.

    ``tuning``: None measures models as pruned alone; ``gradual`` prunes in it, not before (MASE's baseline aside).
    ``recipe``: quantizes all of them before they are pruned; the first row is the float32 model in any case.
    ``baseline``: MASE's pruning of weights and activations together, by magnitude and at random. ``cooldown_s``:
    seconds of rest after each run that was not found in the journal.

    Raises SettingError for lists that are empty, unknown names and numbers out of range, ModelError for a granularity
    that is none, FormatError for a recipe that cannot be read.
    """

    sparsities: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    criteria: tuple[str, ...] = ("random", "magnitude")
    scopes: tuple[str, ...] = SCOPES
    granularities: tuple[str, ...] = ("element",)
    seeds: int = 2
    tuning: Tuning | None = field(default_factory=Tuning)
    recipe: str | None = None
    baseline: str | None = None
    gradual: bool = False
    cooldown_s: float = 0.0

    def __post_init__(self) -> None:
        """Check before a model is loaded."""
        if not (math.isfinite(self.cooldown_s) and self.cooldown_s >= 0):
            raise SettingError(f"a cool-down of {self.cooldown_s} s; accepted are numbers from 0 on")
        if not (self.sparsities and self.criteria and self.scopes and self.granularities) or self.seeds < 1:
            raise SettingError("sparsities, criteria, scopes, granularities and seeds; accepted: one of each, at least")
        for name, given, accepted in (
            ("criterion", self.criteria, CRITERIA),
            ("scope", self.scopes, SCOPES),
            ("baseline", (self.baseline,) if self.baseline is not None else (), BASELINES),
        ):
            for value in given:
                if value not in accepted:
                    raise SettingError(f"unknown {name} {value!r}; accepted are {', '.join(accepted)}")
        for sparsity in self.sparsities:
            if not 0 < sparsity < 1:
                raise SettingError(f"sparsity {sparsity:g}; accepted are shares above 0 and below 1")
        if self.tuning is not None and not (math.isfinite(self.tuning.epochs) and self.tuning.epochs > 0):
            raise SettingError(f"{self.tuning.epochs} epochs; accepted are numbers above 0")
        if self.gradual and self.tuning is None:
            raise SettingError("pruning is gradual in fine-tuning; give one of --gradual and --no-tune")
        for text in self.granularities:
            Granularity.parse(text)
        if self.recipe is not None:
            Recipe.parse(self.recipe)

    def cuts(self) -> list[Cut]:
        """Return what is pruned, nothing first."""
        shares = sorted(set(self.sparsities))
        found = [Cut()] + ([Cut(recipe=self.recipe)] if self.recipe else [])
        for granularity in self.granularities:
            for scope in self.scopes:
                for criterion in self.criteria:
                    found += [Cut(criterion, granularity, scope, share, self.recipe) for share in shares]
        if self.baseline:
            found += [Cut(criterion, sparsity=share, recipe=self.recipe) for criterion in _BOTH for share in shares]
        return found

    def points(self) -> list[PrunedPoint]:
        """Return all points, the float32 model first; what no seed changes is measured once."""
        made_ = []
        for cut in self.cuts():
            once = not (cut.draws() or cut.recipe)
            made_ += [PrunedPoint(cut, None, seed) for seed in range(1 if once else self.seeds)]
            if self.tuning is not None:
                gradual = self.gradual and cut.criterion not in (DENSE, *_BOTH)
                made_ += [PrunedPoint(cut, self.tuning, seed, gradual) for seed in range(self.seeds)]
        return made_

    def run(self, laboratory: Laboratory) -> list[dict[str, Any]]:
        """Measure all points and return the rows of the table."""
        laboratory.tell(f"every finished run is kept in {laboratory.journal.path}, and found there by the same command")
        return rows(laboratory.measure_all(self.points(), cooldown_s=self.cooldown_s), self._costs(laboratory))

    def _costs(self, laboratory: Laboratory) -> dict[str, Any]:
        """Return bytes and times of each cut, by its name; all are measured in one go and take turns."""
        subject, cuts = laboratory.subject, [cut for cut in self.cuts() if cut.criterion not in _BOTH]
        assert isinstance(subject, ClassifierSubject)
        settings = {
            "subject": subject.identity, "study": "prune", "costs": [asdict(cut) for cut in cuts],
            "threads": torch.get_num_threads(),
        }  # fmt: skip
        found = laboratory.journal.find(settings, "costs")
        if found is None:
            laboratory.tell("bytes and times: all of them take turns")
            models = {name_of(asdict(cut)): cut.model(subject, 0) for cut in cuts}
            structured = [name_of(asdict(cut)) for cut in cuts if Granularity.parse(cut.granularity).kind in WHOLE]
            costs = forward_costs(models, subject, structured)
            found = laboratory.journal.add(settings, costs=costs, made=made(subject.device))
        return found["costs"]


def name_of(cut: dict[str, Any]) -> str:
    """Return the name of a cut's settings in the record of costs."""
    what = "" if cut["criterion"] == DENSE else f" {cut['granularity']} {cut['scope']} {cut['sparsity']:g}"
    return f"{cut['criterion']}{what}{' quantized' if cut['recipe'] else ''}"


def rows(records: Sequence[dict[str, Any]], costs: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one row for each cut, before and after fine-tuning; the first record is that of the float32 model."""
    names, made_ = ("criterion", "granularity", "scope", "sparsity", "recipe", "tuned"), []
    for key, group in grouped(records, names).items():
        cut = dict(zip(names, key, strict=True))
        nothing: dict[str, Any] = dict.fromkeys(next(iter(costs.values())))
        made_.append({**cut, **summary(group, records[0]), **costs.get(name_of(cut), nothing)})
    return made_
