"""Scales of pruned weights, chosen again from the remaining values."""

from __future__ import annotations

from torch import nn

from octavo.errors import OctavoError
from octavo.nn.quant_layer import QuantLayer
from octavo.quant.apply_recipe import calibrate_weight

# Methods whose weights are on the grid of their scales already; additional zeros are on the grid too.
_SOLVED = ("gptq", "hqq")


def rescale(layer: nn.Module, path: str) -> None:
    """Choose the static scales of a simulated layer's weight again, by its calibration or by the rule of its format.

    Dynamic scales need no update. Scales of gptq and hqq do not change. Learned scales remain the same Parameter, with
    new values. Raises NonFiniteError for weights that are not finite.
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
