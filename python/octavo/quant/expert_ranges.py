"""Experts that no token of the calibration data reached: ranges of the other experts, and a warning that names them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from torch import nn

from octavo.errors import CalibrationWarning
from octavo.graph.tensor_statistics import Statistics
from octavo.recipe.expert_families import expert_family, experts_of

_NAMED = 6  # experts that a message names


def share_ranges(statistics: Sequence[tuple[str, Statistics]]) -> list[str]:
    """Give the activations of experts that saw nothing what those of the other experts saw, for the same matrix.

    ``statistics``: with the names of layers or activations. Returns the paths of the layers that got others'. Where no
    expert saw anything, nothing changes.
    """
    families: dict[str, Statistics] = {}
    for name, seen in statistics:
        if seen.count and (family := expert_family(name)) is not None:
            families.setdefault(family, Statistics()).join(seen)
    unreached = []
    for name, seen in statistics:
        family = None if seen.count else expert_family(name)
        if family in families:
            seen.join(families[family])
            unreached.append(name.partition(": ")[0])
    return unreached


def warn_of_unreached(model: nn.Module, layers: Sequence[str]) -> None:
    """Warn of experts that no calibration data reached; ``layers``: paths of their layers."""
    experts = tuple(experts_of(layers))
    if not experts:
        return
    more = f" and {len(experts) - _NAMED} more" if len(experts) > _NAMED else ""
    message = (
        f"{type(model).__name__}: no token of the calibration data reached {', '.join(experts[:_NAMED])}{more}: gptq "
        "rounds their weights to nearest, and their inputs have the ranges of the other experts. Calibrate with more "
        "text, or leave these experts as they are in the recipe"
    )
    warnings.warn(CalibrationWarning(message, experts), stacklevel=5)
