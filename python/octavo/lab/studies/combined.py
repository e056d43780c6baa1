"""The combined study: the best recipe that is found, then pruning, each with and without training after it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.errors import SettingError
from octavo.lab.studies.format_sensitivity import FORMATS, check_formats, sensitivity_of
from octavo.lab.studies.lora_ranks import Tuning
from octavo.lab.studies.measured_points import Laboratory, Point
from octavo.lab.studies.pruning import MASE, Cut, PrunedPoint
from octavo.lab.studies.ptq_qat import FAMILIES
from octavo.lab.studies.result_rows import grouped, summary
from octavo.lab.studies.subject import ClassifierSubject, Subject
from octavo.recipe import Recipe
from octavo.search import allocate, to_recipe

BASELINES = (MASE,)
_WIDTH = 8  # bits of the baseline's weights, inputs and biases
_LEAST = 0.6  # of the budget: assignments with fewer bits are not judged


@dataclass(frozen=True)
class Combined:
    """The study: a recipe of at most ``budget`` bits a parameter, then ``sparsity`` by magnitude in each layer.

    The recipe comes from the sensitivities of ``formats`` on ``samples`` training texts: the best assignments of up to
    ``tries`` budgets are compared on validation texts, and the closest to the float model is taken. ``tuning``: the
    training after it, by every model, the float one too. ``baseline``: MASE's settings, 8 bits with fractions by hand,
    weights and activations pruned together. Raises SettingError for numbers out of range, FormatError for
    formats that cannot be read.
    """

    budget: float = 4.5
    formats: tuple[str, ...] = FORMATS
    sparsity: float = 0.5
    seeds: int = 2
    tuning: Tuning = field(default_factory=Tuning)
    samples: int = 64
    tries: int = 6
    baseline: str | None = None

    def __post_init__(self) -> None:
        """Check before a model is loaded."""
        if not (math.isfinite(self.budget) and self.budget > 0):
            raise SettingError(f"a budget of {self.budget} bits; accepted are numbers above 0")
        if not 0 < self.sparsity < 1:
            raise SettingError(f"sparsity {self.sparsity:g}; accepted are shares above 0 and below 1")
        if not self.formats or min(self.seeds, self.samples, self.tries) < 1:
            raise SettingError("formats, seeds, samples and tries; accepted: one of each, at least")
        if self.baseline not in (None, *BASELINES):
            raise SettingError(f"unknown baseline {self.baseline!r}; accepted are {', '.join(BASELINES)}")
        check_formats(self.formats)

    def run(self, laboratory: Laboratory) -> list[dict[str, Any]]:
        """Find the recipe, measure all models on test texts, and return the rows of the table."""
        recipe = self.recipe(laboratory)
        laboratory.tell(f"recipe: {recipe}")
        records = laboratory.measure_all(self.points(recipe))
        return rows(records, laboratory.subject)

    def recipe(self, laboratory: Laboratory) -> str:
        """Return the text of the best recipe within the budget; chosen on validation texts."""
        laboratory.tell("sensitivity of every layer to every format")
        sensitivity = sensitivity_of(laboratory, self.formats, self.samples)
        front = allocate(sensitivity)
        within = [front.at(bits=self.budget), *front.spread(self.tries, bits=(_LEAST * self.budget, self.budget))]
        texts = {str(to_recipe(point, sensitivity)): point for point in within if point.bits <= self.budget}
        judged = []
        for number, (text, point) in enumerate(texts.items(), start=1):
            distance = laboratory.judge(Point({"study": "combined"}, "ptq", text, samples=self.samples))["distance"]
            laboratory.tell(f"[{number}/{len(texts)}] {point.bits:.2f} bits: distance {distance} on validation texts")
            judged.append((math.inf if distance is None else distance, point.nbytes, text))
        return min(judged)[2]

    def points(self, recipe: str) -> list[PrunedPoint]:
        """Return all points, the float32 model first; what no seed changes is measured once."""
        cuts = [
            Cut(),
            Cut("magnitude", sparsity=self.sparsity),
            Cut(recipe=recipe),
            Cut("magnitude", sparsity=self.sparsity, recipe=recipe),
        ]
        if self.baseline:
            cuts.append(Cut(MASE, sparsity=self.sparsity, recipe=FAMILIES[MASE].recipe(_WIDTH)))
        made = []
        for cut in cuts:
            seeds = self.seeds if cut.recipe else 1
            made += [PrunedPoint(cut, None, seed) for seed in range(seeds)]
            made += [PrunedPoint(cut, self.tuning, seed) for seed in range(self.seeds)]
        return made


def rows(records: Sequence[dict[str, Any]], subject: Subject) -> list[dict[str, Any]]:
    """Return one row for each model, before and after training; the first record is that of the float32 model."""
    assert isinstance(subject, ClassifierSubject)  # the command takes no other
    names, found = ("criterion", "sparsity", "recipe", "tuned"), []
    for key, group in grouped(records, names).items():
        told = dict(zip(names, key, strict=True))
        bits = (
            32.0 if told["recipe"] is None else Recipe.parse(told["recipe"]).explain(subject.model()).totals.bits_of_all
        )
        found.append({"model": model_name(told), **told, **summary(group, records[0]), "bits": bits})
    return found


def model_name(cut: dict[str, Any]) -> str:
    """Return what a row is called: ``quantized, 50% pruned``."""
    parts = ["quantized"] * (cut["recipe"] is not None) + [f"{cut['sparsity']:.0%} pruned"] * (cut["sparsity"] > 0)
    name = ", ".join(parts) or "fp32"
    return f"{MASE}: {name}" if cut["criterion"] == MASE else name
