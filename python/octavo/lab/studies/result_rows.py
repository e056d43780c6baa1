"""Turns the records of a study into rows: means over seeds, bits, differences with their standard error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import nn

from octavo.recipe import Recipe
from octavo.train.intervals import paired_error, spread


def draws(recipe: str) -> bool:
    """Tell whether the scales of a recipe depend on the calibration texts; else all seeds give the same numbers."""
    for rule in Recipe.parse(recipe).rules:
        for role, spec in rule.gives:
            if spec is not None and spec.calibration and (role != "weight" or spec.calibration.method == "gptq"):
                return True
    return False


def grouped(records: Sequence[dict[str, Any]], names: tuple[str, ...]) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Return the records that differ in nothing but their seed together, by the settings called ``names``."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(tuple(record["settings"][name] for name in names), []).append(record)
    return groups


def summary(group: Sequence[dict[str, Any]], fp32: dict[str, Any]) -> dict[str, Any]:
    """Return mean accuracy over the seeds of a group, its interval, and the difference to the float32 model's record.

    Accuracies are shares, differences points of percent. ``paired_error_points``: standard error of the difference
    from the test texts on which the two models disagree, of the first seed.
    """
    results, base = [record["result"] for record in group], fp32["result"]
    found, first = spread([result["right"] / result["texts"] for result in results]), results[0]
    return {
        "seeds": found.count,
        "accuracy": found.mean,
        "sd": found.sd,
        "half_interval_95": found.half,
        "difference_points": 100 * (found.mean - base["right"] / base["texts"]),
        "paired_error_points": 100 * paired_error(first["lost"], first["gained"], first["texts"]),
        "texts": first["texts"],
        "recipe": group[0]["settings"]["recipe"],
    }


def weight_bits(model: nn.Module, recipe: str) -> float | None:
    """Return the average bits of a weight, scales included, over the weights that ``recipe`` quantizes."""
    bits = elements = 0
    modules = dict(model.named_modules())
    for path, plan in Recipe.parse(recipe).plan(model).items():
        if plan.weight is not None:
            shape = tuple(modules[path].weight.shape)
            bits += 8 * plan.weight.format.nbytes(shape)
            elements += math.prod(shape)
    return bits / elements if elements else None
