"""Experts that no token of the calibration data reached: ranges of the other experts, and a warning that names them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from torch import nn

from octavo.errors import CalibrationWarning
from octavo.graph.tensor_statistics import Statistics
from octavo.nn.expert_families import expert_family, experts_of
from octavo.nn.quantizer import Quantizer

_NAMED = 6  # experts that a message names


def share_ranges(statistics: Mapping[Quantizer, Statistics]) -> list[str]:
    """Give the quantizers of experts that saw nothing what those of the other experts saw, for the same matrix.

    Returns the paths of their layers. Where no expert saw anything, nothing changes.
    """
    families: dict[str, Statistics] = {}
    for quantizer, seen in statistics.items():
        if seen.count and (family := expert_family(quantizer.what)) is not None:
            families.setdefault(family, Statistics()).join(seen)
    unreached = []
    for quantizer, seen in statistics.items():
        family = None if seen.count else expert_family(quantizer.what)
        if family in families:
            seen.join(families[family])
            unreached.append(quantizer.what.partition(": ")[0])
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
    warnings.warn(CalibrationWarning(message, experts), stacklevel=4)
