"""GPTQ and HQQ over the layers of a model."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from octavo.data.batches import Batches
from octavo.display.progress import Stages
from octavo.errors import OctavoError
from octavo.nn.quant_layer import QuantLayer
from octavo.quant.algorithms.walk import run_to, stages
from octavo.quant.calibration import Products, hooked, undisturbed
from octavo.quant.zeros import warn_of_silent


def solve_weights(model: nn.Module, layers: list[QuantLayer], batches: Batches | None, show: Stages) -> None:
    """Give layers the weights and scales that their specs' ``gptq`` or ``hqq`` find.

    GPTQ goes in the order the layers run, each from its inputs in the model with everything before it quantized: up to
    the layer the calibration data runs once more for every layer, or layers with the same input; to the end for layers
    that do not run just once in every batch. Columns go in descending order of the Hessian's diagonal, scales are
    fitted. If anything fails the weights are as they were.
    """
    before = {layer: layer.weight_matrix().detach().clone() for layer in layers}
    by_gptq = [layer for layer in layers if _is_gptq(layer)]
    try:
        with show.stage("solving for weights", len(layers)) as advance:
            for layer in layers:
                if layer not in by_gptq:
                    _solve(layer, before[layer])  # not the weight as it is: it may be tied to one that was solved
                    advance()
            if by_gptq:
                assert batches is not None  # checked before any work
                _solve_in_order(model, by_gptq, batches, advance)
    except BaseException:
        for layer, weight in before.items():
            layer.set_weight_matrix(weight)
        raise


def _solve_in_order(model: nn.Module, layers: list[QuantLayer], batches: Batches, advance: Any) -> None:
    with undisturbed(model):
        silent: list[str] = []
        for layer in layers:
            _enable(layer, False)
        for stage in stages(model, layers, batches):
            staged = cast("list[QuantLayer]", stage.layers)
            products = {layer: Products(layer) for layer in staged}

            def see(layer: QuantLayer, arguments: tuple[Tensor, ...], products: Any = products) -> None:
                x = arguments[0]
                products[layer].add(x if layer.input_quantizer is None else layer.input_quantizer(x))

            with hooked(stage.layers, see):
                run_to(model, batches, stage)
            silent += [_what(layer) for layer in staged if products[layer].n and not products[layer].sums.any()]
            for layer in staged:
                _solve(layer, layer.weight_matrix().detach(), products[layer].hessian())
                _enable(layer, True)
                advance()
        warn_of_silent(silent)


def _what(layer: QuantLayer) -> str:
    quantizer = layer.weight_quantizer
    assert quantizer is not None  # its spec asks for the method
    return f"{quantizer.what.partition(':')[0]}: input"


def _is_gptq(layer: QuantLayer) -> bool:
    quantizer = layer.weight_quantizer
    calibration = None if quantizer is None else quantizer.spec.calibration
    return calibration is not None and calibration.method == "gptq"


def _enable(layer: QuantLayer, enabled: bool) -> None:
    for quantizer in (layer.weight_quantizer, layer.bias_quantizer):
        if quantizer is not None:
            quantizer.enabled = enabled


def _solve(layer: QuantLayer, weight: Tensor, hessian: Tensor | None = None) -> None:
    from octavo import quant

    quantizer = layer.weight_quantizer
    assert quantizer is not None  # its spec asks for the method
    weight, fmt = weight.to(torch.float32), quantizer.format
    try:
        if hessian is None:
            solution = quant.hqq(weight, fmt)
        else:
            solution = quant.gptq(weight, hessian, fmt, order="descending", scale="mse")
    except OctavoError as error:
        raise type(error)(f"{quantizer.what}: {error}") from None
    solved, scales, zeros, levels = solution
    if scales is not None:  # of formats that have some
        quantizer.set_scales(scales, zeros, levels)
    layer.set_weight_matrix(solved)
