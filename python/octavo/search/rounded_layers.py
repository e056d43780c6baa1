"""One layer's weight or input in a format, as quantize_model would round it; the model is not changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import FormatError, OctavoError
from octavo.graph.tensor_statistics import Statistics
from octavo.nn.quant_layer import QuantLayer
from octavo.nn.quantizer import Quantizer
from octavo.nn.registry import kind_of
from octavo.ops.codec import encode
from octavo.quant.activation_scales import activation_scales
from octavo.quant.algorithms.gptq import gptq
from octavo.quant.algorithms.hqq import hqq
from octavo.quant.algorithms.solution import Solution
from octavo.quant.algorithms.solve_in_order import Beside
from octavo.quant.apply_recipe import calibrate_weight
from octavo.recipe.fit import misfit
from octavo.recipe.sites import Site
from octavo.recipe.spec import LayerPlan, Spec


def simulated(layer: nn.Module, spec: Spec | None, label: str) -> QuantLayer:
    """Return a simulated layer over the same Parameter, its weight rounded to ``spec``; errors name ``label``."""
    kind = kind_of(layer)
    assert kind is not None  # groups hold such layers alone
    simulation: QuantLayer = kind.simulated.from_layer(layer, LayerPlan(weight=spec), label)
    return simulation


def rounded_weight(model: nn.Module, site: Site, spec: Spec, hessian: Callable[[], Tensor | None]) -> Tensor | None:
    """Return the weight of a layer rounded to a format, in its shape and dtype; None if it cannot have the format.

    ``hessian``: returns the layer's Hessian ``[K, K]``; called only for gptq, which rounds to nearest where it is None.
    """
    method = None if spec.calibration is None else spec.calibration.method
    if misfit("weight", spec) is not None or (method == "gptq" and site.is_lookup):
        return None
    try:
        layer = simulated(model.get_submodule(site.module), spec, site.module)
        quantizer = layer.weight_quantizer
        assert quantizer is not None  # spec asks for it
        matrix = layer.weight_matrix().detach()
        if method in ("gptq", "hqq"):
            own = matrix.float()
            moments = hessian() if method == "gptq" else None
            if moments is not None:
                solution = gptq(own, moments, spec.format, order="descending", scale="mse")
            elif method == "gptq":
                solution = Solution.of(encode(own, spec.format))
            else:
                solution = hqq(own, spec.format)
            matrix = solution.weight.to(matrix.dtype)
            if solution.scales is not None:
                quantizer.set_scales(solution.scales, solution.zeros, solution.levels)
        elif quantizer.wants_scales:
            calibrate_weight(layer)
        return layer._weight_of(quantizer(matrix)).detach().contiguous()
    except FormatError:
        return None
    except OctavoError as error:
        error.add_note(f"while {site.path} was rounded to '{spec}'")
        raise


def input_quantizer(site: Site, spec: Spec, seen: Statistics | None) -> Quantizer | None:
    """Return the quantizer of a layer's input; None if it cannot have the format."""
    if misfit("input", spec) is not None:
        return None
    label = f"{site.module}: input"
    try:
        quantizer = Quantizer(spec, what=label)
        if quantizer.wants_scales:
            if seen is None:
                return None
            quantizer.set_scales(*activation_scales(spec, seen, label))
    except FormatError:
        return None
    return quantizer


def rounds_input(quantizer: Quantizer) -> Callable[..., Any]:
    """Return a forward pre-hook, with keywords, that rounds the tensor a layer multiplies."""

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return (quantizer(args[0]), *args[1:]), kwargs
        name = next(iter(kwargs))
        return args, {**kwargs, name: quantizer(kwargs[name])}

    return hook


def input_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return the tensor that a layer is called with."""
    tensor: Tensor = args[0] if args else next(iter(kwargs.values()))
    return tensor


@contextmanager
def rounded_once(model: nn.Module) -> Iterator[None]:
    """Have layers of a simulated model whose weight is a matrix round it once inside, not in every pass.

    Only those in float32 whose weight no other module has, and of floats that are not rounded themselves: the same
    bits. Rounded weights lie in mapped files beyond 256 MiB.
    """
    put = Beside()
    before: list[tuple[Tensor, Tensor, Quantizer]] = []
    users = Counter(id(one) for module in model.modules() for one in module.parameters(recurse=False))
    try:
        for layer in model.modules():
            if not isinstance(layer, QuantLayer) or layer.input_quantizer is not None:
                continue
            quantizer = layer.weight_quantizer
            if quantizer is None or not quantizer.enabled:
                continue
            weight, matrix = layer._own("weight"), layer.weight_matrix()
            is_matrix = matrix.shape == weight.shape and matrix.stride() == weight.stride()
            if is_matrix and weight.dtype == torch.float32 and users[id(weight)] == 1 and weight.is_cpu:
                before.append((weight, weight.data, quantizer))
                put(layer, quantizer(matrix).detach())
                quantizer.enabled = False
        yield
    finally:
        for weight, values, quantizer in before:
            weight.data = values
            quantizer.enabled = True
