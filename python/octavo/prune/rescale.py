"""Scales of pruned weights: chosen again, from what is left of the weight."""

from __future__ import annotations

from torch import nn

from octavo.errors import OctavoError
from octavo.nn.quant_layer import QuantLayer
from octavo.quant.apply_recipe import calibrate_weight

# Their weights lie on the grid of their scales already, and so do those weights with more zeros.
_SOLVED = ("gptq", "hqq")


def rescale(layer: nn.Module, path: str) -> None:
    """Choose the fixed scales of a simulated layer's weight again: as its calibration says, or as they were frozen.

    Scales that are chosen from each tensor follow by themselves; those of gptq and hqq stay. Learned ones stay the
    Parameter they are, with new values. Raises NonFiniteError for weights that are not finite.
    """
    quantizer = getattr(layer, "weight_quantizer", None)
    if not isinstance(layer, QuantLayer) or quantizer is None or not quantizer.is_static:
        return
    calibration = quantizer.spec.calibration
    if calibration is not None:
        if calibration.method not in _SOLVED:
            calibrate_weight(layer)
        return
    try:
        quantizer.clear_scales()
        packed = quantizer.encode(layer.weight_matrix().detach())
    except OctavoError as error:
        raise type(error)(f"{path}: {error}") from None
    quantizer.set_scales(packed.scales, packed.zeros, packed.levels)
