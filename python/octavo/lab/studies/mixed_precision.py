"""The study of mixed precision: the labs' searches of a format for each layer, beside one pass of sensitivities.

Searches try settings of every layer and learn from accuracy alone. The ladder measures each layer in each format once,
allocates formats for every budget, and evaluates a few points of that front. Both see validation texts; test texts are
read for what was chosen, once. With ``epochs`` both train each model before they evaluate it, as the labs' objective.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

import octavo
from octavo.errors import SettingError
from octavo.lab.architectures.samplers import Sampler
from octavo.lab.architectures.search_loop import Build, Search, run_search
from octavo.lab.architectures.trial_storage import open_storage
from octavo.lab.mase.search_spaces import UNTRAINED, mixed_space, replaced
from octavo.lab.studies.format_sensitivity import FORMATS, sensitivity_of
from octavo.lab.studies.measured_points import Laboratory, Training, drop_weights, made, quantized
from octavo.lab.studies.subject import Subject
from octavo.recipe import Recipe
from octavo.search import allocate, to_recipe
from octavo.tensors.formats import Format

LADDER = "ladder"


@dataclass(frozen=True)
class MixedPrecision:
    """The study: every sampler searches the space of every layer class, ``trials`` points each; then the ladder.

    ``classes``, ``preset``, ``baseline``: as :func:`octavo.lab.mase.search_spaces.mixed_space` has them. ``epochs``: of
    training, at the full rate, in every trial; None: nothing is trained. Classes without a gradient in MASE are
    evaluated alone. ``formats``: those that the ladder chooses from, ``points`` of its front, sensitivities on
    ``samples`` training texts. Raises SettingError for empty lists and numbers below 1.
    """

    classes: tuple[str, ...]
    preset: str = "lab-a"
    baseline: str | None = None
    samplers: tuple[str, ...] = ("tpe", "random")
    trials: int = 24
    epochs: float | None = None
    seed: int = 0
    formats: tuple[str, ...] = FORMATS
    points: int = 8
    samples: int = 64

    def __post_init__(self) -> None:
        """Check names and numbers."""
        if not self.classes or not self.samplers or not self.formats or min(self.trials, self.points, self.samples) < 1:
            raise SettingError(
                "classes, samplers, formats, trials, points and samples; accepted: one of each, at least"
            )
        if self.epochs is not None and not (math.isfinite(self.epochs) and self.epochs > 0):
            raise SettingError(f"{self.epochs} epochs; accepted are numbers above 0")
        for name in self.samplers:
            Sampler(name, self.seed)
        for name in self.classes:
            mixed_space(self.preset, name, ["layer"], self.baseline)

    def run(self, laboratory: Laboratory, storage: Any = None) -> list[dict[str, Any]]:
        """Search the spaces, climb the ladder, and return a row for each evaluation."""
        trials = _Trials(laboratory, self.seed, None if self.epochs is None else Training(rate=1.0, epochs=self.epochs))
        layers = linear_layers(laboratory.subject.model())
        opened, rows = open_storage(storage or laboratory.folder), []
        for name in self.classes:
            for sampler in self.samplers:
                search = self._search(trials, name, sampler, layers, opened)
                rows += list(self._rows(name, sampler, layers, search))
        rows += self._ladder(trials)
        for row in chosen_rows(rows):
            row["test"] = trials.share("test", row["recipe"], trained=row["group"] not in UNTRAINED)
        return rows

    def _search(self, trials: _Trials, name: str, sampler: str, layers: Sequence[str], storage: Any) -> Search:
        space = mixed_space(self.preset, name, layers, self.baseline)
        trains = trials.training is not None and name not in UNTRAINED
        length = f", {self.epochs:g} epochs" if trains else ""
        # The fractions of a baseline are no axis, but decide what a point is.
        by_hand = f", {self.baseline}" if self.baseline is not None and name == "Integer" else ""

        def evaluate(build: Build) -> dict[str, Any]:
            assert build.folder is not None
            return trials.measured(build.spec["recipe"], build.folder, trained=trains)

        laboratory = trials.laboratory
        laboratory.tell(f"{name}: {'trained' if trains else 'evaluated alone'}, {sampler}")
        return run_search(
            space, evaluate, storage=storage, name=f"mixed {space.name}, {sampler} {self.seed}{length}{by_hand}",
            sampler=Sampler(sampler, self.seed), trials=self.trials, context=trials.context(trained=trains),
            folder=laboratory.folder, tell=laboratory.tell,
        )  # fmt: skip

    def _rows(self, name: str, sampler: str, layers: Sequence[str], search: Search) -> Iterator[dict[str, Any]]:
        """Yield a row for each trial with a value; training that diverged has none."""
        best = 0.0
        for place, trial in enumerate(search.trials, start=1):
            if trial.values is not None:
                best = max(best, trial.facts["accuracy"])
                nearest = replaced(name, layers, trial.point, self.baseline)
                yield _row(name, sampler, place, trial.spec["recipe"], trial.facts, best, nearest)

    def _ladder(self, trials: _Trials) -> list[dict[str, Any]]:
        """Return a row for each evaluated point of the front, the smallest loss first."""
        laboratory = trials.laboratory
        laboratory.tell("the ladder: sensitivities")
        sensitivity = sensitivity_of(laboratory, self.formats, self.samples)
        front = allocate(sensitivity)
        rows, best = [], 0.0
        points = sorted(front.spread(self.points), key=lambda point: point.loss)
        for place, point in enumerate(points, start=1):
            recipe = str(to_recipe(point, sensitivity)) or None
            facts = {"accuracy": trials.share("validation", recipe), "bytes": point.nbytes}
            best = max(best, facts["accuracy"])
            rows.append(_row(LADDER, LADDER, place, recipe, facts, best, 0))
            laboratory.tell(f"ladder {place}/{len(points)}: {point.bits:.2f} bits: accuracy {facts['accuracy']:.4g}")
        return rows


@dataclass(frozen=True)
class _Trials:
    """Measures recipes on one subject, with the draws of ``seed``, after ``training`` where there is one."""

    laboratory: Laboratory
    seed: int
    training: Training | None

    def context(self, *, trained: bool) -> dict[str, Any]:
        """Return everything but the recipe that decides a measure."""
        subject = self.laboratory.subject
        context = {"subject": subject.identity, "seed": self.seed, "study": "mixed"}
        if self.training is None or not trained:
            return context
        return context | {"training": self.training.config(subject, self.seed).binding()}

    def measured(self, recipe: str | None, folder: Path, *, trained: bool) -> dict[str, Any]:
        """Return the accuracy on validation texts, the ``bytes`` of all weights, and the device; None: float."""
        subject = self.laboratory.subject
        right = subject.right(self._model(recipe, folder, trained=trained), "validation")
        drop_weights(folder)
        facts = {"accuracy": float(right.double().mean()), "bytes": weight_bytes(subject.model(), recipe)}
        return facts | {"device": subject.device.type}

    def share(self, part: str, recipe: str | None, *, trained: bool = True) -> float:
        """Return the share of a part's texts that are right; what the journal has is not measured again."""
        settings = {**self.context(trained=trained), "recipe": recipe, "part": part}
        found = self.laboratory.journal.find(settings, "result")
        if found is None:
            folder = self.laboratory.run_of(settings)
            result = self.laboratory.compare(self._model(recipe, folder, trained=trained), part)
            drop_weights(folder)
            found = self.laboratory.journal.add(settings, result=result, made=made(self.laboratory.subject.device))
        return float(found["result"]["right"] / found["result"]["texts"])

    def _model(self, recipe: str | None, folder: Path, *, trained: bool) -> nn.Module:
        model = _quantized(self.laboratory.subject, recipe, self.seed)
        if self.training is not None and trained:
            self.training.train(model, self.laboratory.subject, self.seed, folder)
        return model.eval()


def _quantized(subject: Subject, recipe: str | None, seed: int) -> nn.Module:
    if recipe is None:
        return subject.model()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", octavo.OctavoWarning)  # settings that do harm are tried on purpose
        return quantized(subject, recipe, seed)


def weight_bytes(model: nn.Module, recipe: str | None) -> int:
    """Return the bytes of all parameters, scales included, with the formats that a recipe gives weights and biases."""
    formats: dict[str, Format] = {}
    for path, plan in Recipe.parse(recipe).plan(model).items() if recipe else ():
        for name, spec in (("weight", plan.weight), ("bias", plan.bias)):
            if spec is not None:
                formats[f"{path}.{name}"] = spec.format
    total = 0
    for name, tensor in model.named_parameters():
        total += formats[name].nbytes(tuple(tensor.shape)) if name in formats else tensor.nbytes
    return total


def chosen_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the best row of each search, of equal ones the smallest and then the first."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["group"], row["sampler"]), []).append(row)
    return [min(group, key=lambda row: (-row["accuracy"], row["bytes"], row["builds"])) for group in groups.values()]


def against_ladder(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each search: its best point, when it came, and when the ladder was as good in no more bytes.

    ``ladder_evaluations`` is None where no point of the ladder was; ``times_fewer``: evaluations of the search for each
    of the ladder's. The sensitivity pass, which runs no whole evaluation, is beside these counts.
    """
    ladder = [row for row in rows if row["group"] == LADDER]
    found = []
    for best in chosen_rows([row for row in rows if row["group"] != LADDER]):
        reached = next(
            (r["builds"] for r in ladder if r["accuracy"] >= best["accuracy"] and r["bytes"] <= best["bytes"]), None
        )
        found.append(
            {
                **{name: best[name] for name in ("group", "sampler", "accuracy", "bytes", "test")},
                "evaluations": best["builds"], "ladder_evaluations": reached,
                "times_fewer": None if reached is None else best["builds"] / reached,
            }
        )  # fmt: skip
    return found


def _row(
    group: str, sampler: str, place: int, recipe: str | None, facts: Mapping[str, Any], best: float, nearest: int
) -> dict[str, Any]:
    return {
        "group": group, "sampler": sampler, "builds": place, "accuracy": facts["accuracy"], "bytes": facts["bytes"],
        "best_so_far": best, "recipe": recipe, "test": None, "nearest": nearest,
    }  # fmt: skip


def linear_layers(model: nn.Module) -> list[str]:
    """Return the paths of the Linear layers."""
    return [path for path, module in model.named_modules() if isinstance(module, nn.Linear)]
