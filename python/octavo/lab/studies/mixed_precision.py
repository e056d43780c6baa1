"""The study of mixed precision: the labs' searches of a format for each layer, beside one pass of sensitivities.

Searches try settings of every layer and learn from accuracy alone. The ladder measures each layer in each format once,
allocates formats for every budget, and evaluates a few points of that front. Both see validation texts; test texts are
read for what was chosen, once.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

import octavo
from octavo.errors import SettingError
from octavo.lab.architectures import Space
from octavo.lab.architectures.samplers import Sampler
from octavo.lab.architectures.search_loop import Build, Search, run_search
from octavo.lab.architectures.trial_storage import open_storage
from octavo.lab.studies.format_sensitivity import FORMATS, sensitivity_of
from octavo.lab.studies.measured_points import Laboratory, made, quantized
from octavo.lab.studies.subject import Subject
from octavo.recipe import Recipe
from octavo.search import allocate, to_recipe
from octavo.tensors.formats import Format

LADDER = "ladder"


@dataclass(frozen=True)
class MixedPrecision:
    """The study: every sampler searches every space, ``trials`` points each; then ``points`` of the ladder's front.

    ``formats``: those that the ladder chooses from. ``samples``: training texts that it measures on. Raises
    SettingError for empty lists and numbers below 1.
    """

    samplers: tuple[str, ...] = ("tpe", "random")
    trials: int = 24
    seed: int = 0
    formats: tuple[str, ...] = FORMATS
    points: int = 8
    samples: int = 64

    def __post_init__(self) -> None:
        """Check names and numbers."""
        if not self.samplers or not self.formats or min(self.trials, self.points, self.samples) < 1:
            raise SettingError("samplers, formats, trials, points and samples; accepted: one of each, at least")
        for name in self.samplers:
            Sampler(name, self.seed)

    def run(self, laboratory: Laboratory, spaces: Mapping[str, Space], storage: Any = None) -> list[dict[str, Any]]:
        """Search the spaces, by the names of their groups, climb the ladder, and return a row for each evaluation."""
        subject, rows = laboratory.subject, []
        opened = open_storage(storage or laboratory.folder)
        context = {"subject": subject.identity, "seed": self.seed, "study": "mixed"}

        def evaluate(build: Build) -> dict[str, Any]:
            return measured(subject, build.spec["recipe"], self.seed)

        searches: dict[tuple[str, str], Search] = {}
        for group, space in spaces.items():
            for sampler in self.samplers:
                searches[group, sampler] = run_search(
                    space, evaluate, storage=opened, name=f"mixed {space.name}, {sampler} {self.seed}",
                    sampler=Sampler(sampler, self.seed), trials=self.trials, context=context, tell=laboratory.tell,
                )  # fmt: skip
        for (group, sampler), search in searches.items():
            best = iter(search.best_so_far())
            for place, trial in enumerate(search.trials, start=1):
                rows.append(_row(group, sampler, place, trial.spec["recipe"], trial.facts, next(best)))
        rows += self._ladder(laboratory)
        for row in chosen_rows(rows):
            row["test"] = self._test(laboratory, row["recipe"])
        return rows

    def _ladder(self, laboratory: Laboratory) -> list[dict[str, Any]]:
        """Return a row for each evaluated point of the front, the smallest loss first."""
        laboratory.tell("the ladder: sensitivities")
        sensitivity = sensitivity_of(laboratory, self.formats, self.samples)
        front = allocate(sensitivity)
        rows, best = [], 0.0
        points = sorted(front.spread(self.points), key=lambda point: point.loss)
        for place, point in enumerate(points, start=1):
            recipe = str(to_recipe(point, sensitivity)) or None
            facts = {**measured(laboratory.subject, recipe, self.seed), "bytes": point.nbytes}
            best = max(best, facts["accuracy"])
            rows.append(_row(LADDER, LADDER, place, recipe, facts, best))
            laboratory.tell(f"ladder {place}/{len(points)}: {point.bits:.2f} bits: accuracy {facts['accuracy']:.4g}")
        return rows

    def _test(self, laboratory: Laboratory, recipe: str | None) -> float:
        settings = {
            "study": "mixed", "subject": laboratory.subject.identity, "recipe": recipe, "seed": self.seed,
            "part": "test",
        }  # fmt: skip
        found = laboratory.journal.find(settings, "result")
        if found is None:
            model = _model(laboratory.subject, recipe, self.seed)
            facts = {"result": laboratory.compare(model, "test"), "made": made(laboratory.subject.device)}
            found = laboratory.journal.add(settings, **facts)
        return float(found["result"]["right"] / found["result"]["texts"])


def measured(subject: Subject, recipe: str | None, seed: int) -> dict[str, Any]:
    """Return the accuracy on validation texts and the ``bytes`` of all weights of a recipe; None: the float model."""
    right = subject.right(_model(subject, recipe, seed), "validation")
    return {"accuracy": float(right.double().mean()), "bytes": weight_bytes(subject.model(), recipe)}


def _model(subject: Subject, recipe: str | None, seed: int) -> nn.Module:
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
    group: str, sampler: str, place: int, recipe: str | None, facts: Mapping[str, Any], best: float
) -> dict[str, Any]:
    return {
        "group": group, "sampler": sampler, "builds": place, "accuracy": facts["accuracy"], "bytes": facts["bytes"],
        "best_so_far": best, "recipe": recipe, "test": None,
    }  # fmt: skip


def linear_layers(model: nn.Module) -> list[str]:
    """Return the paths of the Linear layers."""
    return [path for path, module in model.named_modules() if isinstance(module, nn.Linear)]
