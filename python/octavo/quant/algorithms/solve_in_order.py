"""GPTQ and HQQ over the layers of a model."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from octavo.data.batches import Batches
from octavo.display.progress import Stages
from octavo.errors import CalibrationError, OctavoError
from octavo.nn.linear import QuantLinear
from octavo.nn.quant_layer import QuantLayer
from octavo.ops.codec import encode
from octavo.quant.algorithms.gptq import Factors, solved
from octavo.quant.algorithms.solution import Solution
from octavo.quant.algorithms.walk import Stage, Walk
from octavo.quant.calibration import Products, hooked, undisturbed
from octavo.quant.zeros import warn_of_silent

# Bytes of the sums of products of experts that are gathered in one run; further experts cost a run more.
_MOST_BYTES = 1 << 30


def solve_weights(model: nn.Module, layers: list[QuantLayer], batches: Batches | None, show: Stages) -> list[str]:
    """Give layers the weights and scales that their specs' ``gptq`` or ``hqq`` find.

    Returns the layers of experts that no batch reached, which gptq rounds to nearest.

    GPTQ goes in the order the layers run, each from its inputs in the model with everything before it quantized. For
    every layer, or layers with the same input, the calibration data runs up to it once more, from the last block that
    is solved whole (:class:`~octavo.quant.algorithms.walk.Walk`); through the whole model for layers that do not run
    just once in every batch. One matrix of all experts of a mixture is solved together. Columns go in descending order
    of the Hessian's diagonal, scales are fitted. If anything fails the weights are as they were.
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
                return _solve_in_order(model, by_gptq, batches, advance)
    except BaseException:
        for layer, weight in before.items():
            layer.set_weight_matrix(weight)
        raise
    return []


def _solve_in_order(model: nn.Module, layers: list[QuantLayer], batches: Batches, advance: Any) -> list[str]:
    with undisturbed(model):
        silent: list[str] = []
        unreached: list[str] = []
        for layer in layers:
            _enable(layer, False)
        walk = Walk(model, layers, batches, inputs_alone=True)
        for stage in _parts(walk.stages):
            products = walk.run_to(stage, functools.partial(_products, stage))
            staged = cast("list[QuantLayer]", stage.layers)
            silent += [_what(layer) for layer in staged if products[layer].n and not products[layer].sums.any()]
            factors: dict[Products, Factors] = {}
            for layer in staged:
                sums = products[layer]
                if not sums.n and stage.mixture is not None:
                    unreached.append(_what(layer).partition(":")[0])
                    _round(layer)
                    _enable(layer, True)
                    walk.done(layer)
                    advance()
                    continue
                if sums not in factors:
                    with _naming(layer):
                        hessian = sums.hessian()
                        factors[sums] = Factors(hessian, len(hessian), order="descending")
                _solve(layer, layer.weight_matrix().detach(), factors[sums])
                _enable(layer, True)
                walk.done(layer)
                advance()
        warn_of_silent(silent)
        return unreached


def _parts(stages: list[Stage]) -> Iterator[Stage]:
    """Yield stages, those of many experts in parts whose sums of products fit in a bound of memory."""
    for stage in stages:
        if stage.mixture is None:
            yield stage
            continue
        layers = cast("list[QuantLayer]", stage.layers)
        columns = max(layer.weight_matrix().shape[1] for layer in layers)
        count = max(1, _MOST_BYTES // (8 * columns * columns))
        for start in range(0, len(layers), count):
            yield stage._replace(layers=stage.layers[start : start + count])


@contextmanager
def _products(stage: Stage) -> Iterator[dict[nn.Module, Products]]:
    """Yield the sums of products of the inputs that layers get inside: one for all that read the same numbers."""
    layers = cast("list[QuantLayer]", stage.layers)
    kinds: dict[Any, Products] = {}
    products: dict[nn.Module, Products] = {}
    for layer in layers:
        alone = layer.input_quantizer is not None or not stage.alike or not isinstance(layer, QuantLinear)
        products[layer] = kinds.setdefault(id(layer) if alone else None, Products(layer))
    first = {id(products[layer]): layer for layer in reversed(layers)}

    def see(layer: QuantLayer, arguments: tuple[Tensor, ...]) -> None:
        if first[id(products[layer])] is layer:
            x = arguments[0]
            products[layer].add(x if layer.input_quantizer is None else layer.input_quantizer(x))

    with hooked(layers, see):
        yield products


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


@contextmanager
def _naming(layer: QuantLayer) -> Iterator[None]:
    """Have errors name the layer's weight."""
    quantizer = layer.weight_quantizer
    assert quantizer is not None  # its spec asks for the method
    try:
        yield
    except CalibrationError:  # names it
        raise
    except OctavoError as error:
        raise type(error)(f"{quantizer.what}: {error}") from None


def _round(layer: QuantLayer) -> None:
    """Round a weight to nearest, under the codec's rule."""
    quantizer = layer.weight_quantizer
    assert quantizer is not None  # its spec asks for the method
    with _naming(layer):
        _set(layer, Solution.of(encode(layer.weight_matrix().detach().to(torch.float32), quantizer.format)))


def _solve(layer: QuantLayer, weight: Tensor, factors: Factors | None = None) -> None:
    from octavo import quant

    quantizer = layer.weight_quantizer
    assert quantizer is not None  # its spec asks for the method
    weight, fmt = weight.to(torch.float32), quantizer.format
    with _naming(layer):
        solution = quant.hqq(weight, fmt) if factors is None else solved(weight, factors, fmt, scale="mse")
    _set(layer, solution)


def _set(layer: QuantLayer, solution: Solution) -> None:
    quantizer = layer.weight_quantizer
    assert quantizer is not None  # its spec asks for the method
    values, scales, zeros, levels = solution
    if scales is not None:  # of formats that have some
        quantizer.set_scales(scales, zeros, levels)
    layer.set_weight_matrix(values)
