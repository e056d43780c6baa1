"""One layer's weight or input in a format, as quantize_model would round it, while the model stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from octavo.errors import FormatError, OctavoError
from octavo.graph.tensor_statistics import Statistics
from octavo.nn.quant_layer import QuantLayer
from octavo.nn.quantizer import Quantizer
from octavo.nn.registry import kind_of
from octavo.quant.activation_scales import activation_scales
from octavo.quant.algorithms.gptq import gptq
from octavo.quant.algorithms.hqq import hqq
from octavo.quant.apply_recipe import calibrate_weight
from octavo.recipe.fit import misfit
from octavo.recipe.sites import Site
from octavo.recipe.spec import LayerPlan, Spec


def simulated(layer: nn.Module, spec: Spec | None, what: str) -> QuantLayer:
    """Return a simulated layer over the same Parameter, its weight rounded to ``spec``."""
    kind = kind_of(layer)
    assert kind is not None  # groups hold such layers alone
    made: QuantLayer = kind.simulated.from_layer(layer, LayerPlan(weight=spec), what)
    return made


def rounded_weight(model: nn.Module, site: Site, spec: Spec, hessian: Callable[[], Tensor]) -> Tensor | None:
    """Return the weight of a layer in a format, in its shape and dtype; None where it cannot have it.

    ``hessian``: gives the layer's Hessian ``[K, K]``, asked for by gptq alone.
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
            found = (
                hqq(own, spec.format)
                if method == "hqq"
                else gptq(own, hessian(), spec.format, order="descending", scale="mse")
            )
            matrix = found.weight.to(matrix.dtype)
            if found.scales is not None:
                quantizer.set_scales(found.scales, found.zeros, found.levels)
        elif quantizer.wants_scales:
            calibrate_weight(layer)
        return layer._weight_of(quantizer(matrix)).detach().contiguous()
    except FormatError:
        return None
    except OctavoError as error:
        error.add_note(f"while {site.path} was rounded to '{spec}'")
        raise


def input_quantizer(site: Site, spec: Spec, seen: Statistics | None) -> Quantizer | None:
    """Return what rounds the input of a layer; None where it cannot have the format."""
    if misfit("input", spec) is not None:
        return None
    what = f"{site.module}: input"
    try:
        made = Quantizer(spec, what=what)
        if made.wants_scales:
            if seen is None:
                return None
            made.set_scales(*activation_scales(spec, seen, what))
    except FormatError:
        return None
    return made


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
    given: Tensor = args[0] if args else next(iter(kwargs.values()))
    return given
