"""Forward passes of MASE's quantized linear layers, driven by its configuration dictionaries."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from octavo.errors import FormatError, ShapeError
from octavo.lab.mase._common import check_tensor
from octavo.lab.mase.binary import binary_quantizer, residual_sign_quantizer
from octavo.lab.mase.block import block_fp_quantizer, block_log_quantizer, block_minifloat_quantizer
from octavo.lab.mase.integer import integer_floor_quantizer, integer_quantizer
from octavo.lab.mase.microscaling import mxfp_quantizer, mxint_hardware, mxint_quantizer
from octavo.lab.mase.minifloat import log_quantizer, minifloat_denorm_quantizer, minifloat_ieee_quantizer

Settings = Mapping[str, Any]
Quantizer = Callable[[Tensor, Callable[[str], Any], bool], Tensor]
"""Quantizes a tensor by the settings of its role, looked up by name; the flag tells activations from parameters."""


def linear_forward(layer: str, x: Tensor, weight: Tensor, bias: Tensor | None, config: Settings) -> Tensor:
    """`linear(q(x), q(weight), q(bias))` as MASE's module `layer` computes it.

    `layer`: the module's name, such as `LinearInteger`; `LAYERS` lists them. `x`: (..., inputs), `weight`: (outputs,
    inputs), `bias`: (outputs) or None. Returns (..., outputs).
    `config`: MASE's dictionary, whose keys begin with `data_in_`, `weight_` and `bias_`; keys this module does not use
    are ignored. `LinearInteger` also rounds its result where `data_out_width` is given, and takes `floor`.
    `LinearBinary` binarizes its weight only, and neither it nor `LinearBinaryScaling` scales anything.

    Raises FormatError for an unknown layer or a missing key, ShapeError, and what the quantizers raise.
    Source: MASE `chop.nn.quantized.modules.linear`.
    """
    if layer not in LAYERS:
        raise FormatError(f"linear_forward: unknown layer {layer!r}; accepted are {', '.join(LAYERS)}")
    check_tensor("linear_forward", "x", x, least_dims=1)
    check_tensor("linear_forward", "weight", weight, least_dims=2)
    if weight.ndim != 2 or x.shape[-1] != weight.shape[1]:
        raise ShapeError(f"linear_forward: x {tuple(x.shape)} and weight {tuple(weight.shape)} do not fit")
    return LAYERS[layer](x, weight, bias, config)


def _uniform(quantizer: Quantizer, x: Tensor, weight: Tensor, bias: Tensor | None, config: Settings) -> Tensor:
    """The same family for all three roles."""
    x = quantizer(x, _role(config, "data_in"), True)
    weight = quantizer(weight, _role(config, "weight"), False)
    bias = None if bias is None else quantizer(bias, _role(config, "bias"), False)
    return torch.nn.functional.linear(x, weight, bias)


def _integer(x: Tensor, weight: Tensor, bias: Tensor | None, config: Settings) -> Tensor:
    rounding = integer_floor_quantizer if config.get("floor") else integer_quantizer

    def quantizer(tensor: Tensor, get: Callable[[str], Any], activation: bool) -> Tensor:
        return rounding(tensor, get("width"), get("frac_width"))

    result = _uniform(quantizer, x, weight, bias, config)
    return quantizer(result, _role(config, "data_out"), True) if "data_out_width" in config else result


def _binary(x: Tensor, weight: Tensor, bias: Tensor | None, config: Settings) -> Tensor:
    return torch.nn.functional.linear(x, binary_quantizer(weight), bias)


def _binary_residual(x: Tensor, weight: Tensor, bias: Tensor | None, config: Settings) -> Tensor:
    levels = _role(config, "data_in")("levels")
    quantized = residual_sign_quantizer(levels, None, x)
    return torch.nn.functional.linear(quantized.sum(dim=0) if levels > 1 else quantized, binary_quantizer(weight), bias)


def _role(config: Settings, role: str) -> Callable[[str], Any]:
    def get(key: str) -> Any:
        if f"{role}_{key}" in config:
            return config[f"{role}_{key}"]
        if key == "exponent_bias":  # MASE's only optional setting
            return None
        raise FormatError(f"linear_forward: the configuration has no key '{role}_{key}'")

    return get


def _settings(function: Callable[..., Tensor], names: Mapping[str, str]) -> Quantizer:
    """A quantizer that calls `function` with the settings `names` maps to its arguments."""
    return lambda tensor, get, activation: function(tensor, **{argument: get(key) for key, argument in names.items()})


def _blocked(function: Callable[..., Tensor], *names: str) -> Quantizer:
    """The same for block formats, which never block the batch dimension of activations."""

    def quantizer(tensor: Tensor, get: Callable[[str], Any], activation: bool) -> Tensor:
        return function(tensor, skip_first_dim=activation, **{name: get(name) for name in (*names, "block_size")})

    return quantizer


def _hardware(tensor: Tensor, get: Callable[[str], Any], activation: bool) -> Tensor:
    widths = {"width": get("width"), "exponent_width": get("exponent_width")}
    return mxint_hardware(tensor, widths, get("parallelism"))


def _same(*names: str) -> dict[str, str]:
    return dict(zip(names, names, strict=True))


_MINIFLOAT = _same("width", "exponent_width", "exponent_bias")
_MXINT = {"block_size": "block_size", "width": "element_bits"}
_MXFP = {"block_size": "block_size", "exponent_width": "element_exp_bits", "frac_width": "element_frac_bits"}

LAYERS: dict[str, Callable[[Tensor, Tensor, Tensor | None, Settings], Tensor]] = {
    "LinearInteger": _integer,
    "LinearMinifloatDenorm": partial(_uniform, _settings(minifloat_denorm_quantizer, _MINIFLOAT)),
    "LinearMinifloatIEEE": partial(_uniform, _settings(minifloat_ieee_quantizer, _MINIFLOAT)),
    "LinearLog": partial(_uniform, _settings(log_quantizer, _same("width", "exponent_bias"))),
    "LinearBlockFP": partial(_uniform, _blocked(block_fp_quantizer, *_MINIFLOAT)),
    "LinearBlockMinifloat": partial(
        _uniform, _blocked(block_minifloat_quantizer, "width", "exponent_width", "exponent_bias_width")
    ),
    "LinearBlockLog": partial(_uniform, _blocked(block_log_quantizer, "width", "exponent_bias_width")),
    "LinearBinary": _binary,
    "LinearBinaryScaling": partial(_uniform, lambda tensor, get, activation: binary_quantizer(tensor)),
    "LinearBinaryResidualSign": _binary_residual,
    "LinearMXIntHardware": partial(_uniform, _hardware),
    "LinearMXInt": partial(_uniform, _settings(mxint_quantizer, _MXINT)),
    "LinearMXFP": partial(_uniform, _settings(mxfp_quantizer, _MXFP)),
}
"""The modules that `linear_forward` knows, by MASE's name."""
