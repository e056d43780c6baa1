"""Warnings of zeros: layers that calibration saw nothing of, and weights that a format makes 0 altogether."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from octavo.errors import CalibrationWarning
from octavo.nn.quant_layer import QuantLayer
from octavo.recipe.rule import Rule

_NAMED = 6  # layers that a message names


def warn_of_silent(paths: Sequence[str]) -> None:
    """Warn of tensors that held nothing but zeros on all calibration data; ``paths`` name them."""
    if paths:
        layers = tuple(dict.fromkeys(path.partition(": ")[0] for path in paths))
        rules = "; ".join(str(Rule(name=layer, keep=True)) for layer in layers[:_NAMED])
        message = (
            f"{_few(paths)}: nothing but zeros in the calibration data, which tell no range (-1 to 1 is taken) and no "
            "Hessian (weights are rounded to nearest). Calibrate with data that reaches the layer, or keep it: "
            f"'{rules}'"
        )
        warnings.warn(CalibrationWarning(message, layers), stacklevel=2)


def warn_of_vanished(model: nn.Module, layers: Iterable[tuple[str, QuantLayer]]) -> None:
    """Warn of layers whose weight is not 0 and is nothing but 0 once it is rounded."""
    weighed = [(path, layer) for path, layer in layers if layer.weight_quantizer is not None]
    gone = tuple(path for path, layer in weighed if _vanishes(layer))
    if gone:
        quantizer = dict(weighed)[gone[0]].weight_quantizer
        assert quantizer is not None  # of those that are weighed
        which = "every quantized weight" if len(gone) == len(weighed) else _few(gone)
        message = (
            f"{which} of the {type(model).__name__} is 0 in '{quantizer.spec}': all values are below half of its "
            "smallest step; take a format with a scale, as 'int4:g32', or one with more fraction bits"
        )
        warnings.warn(CalibrationWarning(message, gone), stacklevel=2)


@torch.no_grad()
def _vanishes(layer: QuantLayer) -> bool:
    quantizer = layer.weight_quantizer
    assert quantizer is not None
    if quantizer.format.scale_type is not None and not quantizer.is_static:
        return False  # the largest value of a group sets its scale
    weight = layer.weight_matrix().detach()
    if weight.is_meta or not weight.numel() or not weight.any():
        return False
    return not quantizer(weight).any()


def _few(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return f"{', '.join(paths[:_NAMED])}{more}"
