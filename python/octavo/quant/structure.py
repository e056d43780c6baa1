"""What a file says about a model's layers: their classes, geometry and quantisers, as JSON, and the layers again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from octavo.errors import ContainerError, ModelError, OctavoError
from octavo.nn import (
    PackedConv1d,
    PackedConv2d,
    PackedEmbedding,
    PackedLayer,
    PackedLinear,
    Quantiser,
    QuantLayer,
)
from octavo.quant.recipe.rule import read_spec
from octavo.quant.recipe.sites import is_transposed
from octavo.quant.spec import ROLES, LayerPlan, Spec
from octavo.tensor import PackedTensor

_PACKED = {kind.__name__: kind for kind in (PackedLinear, PackedEmbedding, PackedConv1d, PackedConv2d)}
_SIMULATED = ("QuantLinear", "QuantTransposedLinear", "QuantEmbedding", "QuantConv1d", "QuantConv2d")


def describe_layer(path: str, layer: PackedLayer | QuantLayer) -> dict[str, Any]:
    """Return what JSON holds of a layer: its class, geometry and quantisers. Raises ModelError for another class."""
    kind = type(layer).__name__
    if kind not in _PACKED and kind not in _SIMULATED:
        raise ModelError(f"{path}: files hold no {kind}; accepted are {', '.join([*_PACKED, *_SIMULATED])}")
    record: dict[str, Any] = {"class": kind}
    if isinstance(layer, PackedLayer) and (geometry := plain(layer.geometry(layer))):
        record["geometry"] = geometry
    for role in ROLES:
        quantiser = getattr(layer, f"{role}_quantiser", None)
        if quantiser is not None:
            record[role] = _describe_spec(quantiser.spec, quantiser.enabled)
    return record


def plain(value: Any) -> Any:
    """Return a value as JSON gives it back: tuples become lists."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple | list) else value


def _describe_spec(spec: Spec, enabled: bool) -> dict[str, Any]:
    record: dict[str, Any] = {"format": str(spec.format)}
    if spec.calibration is not None:
        record["calibration"] = str(spec.calibration)
    if spec.scale != "floor":
        record["scale"] = spec.scale
    return record if enabled else {**record, "enabled": False}


def simulated_plan(layers: Mapping[str, Mapping[str, Any]]) -> dict[str, LayerPlan]:
    """Return the plan of the simulated layers among ``layers``, by path. Raises ContainerError for another class."""
    plan = {}
    for path, record in layers.items():
        kind = record.get("class")
        if kind in _SIMULATED:
            plan[path] = LayerPlan(**{role: _read_spec(path, record[role]) for role in ROLES if role in record})
        elif kind not in _PACKED:
            raise ContainerError(f"{path}: unknown layer class {kind!r}")
    return plan


def build_layer(
    path: str, record: Mapping[str, Any], skeleton: nn.Module, tensors: Mapping[str, Tensor | PackedTensor]
) -> nn.Module:
    """Return the layer that ``record`` describes, in the place of ``skeleton``: a simulated one is there already.

    ``tensors``: those of the file below ``path``, by their names inside the layer. Raises ContainerError naming the
    tensor or layer where they do not fit.
    """
    kind = record["class"]
    layer = _build_packed(path, _PACKED[kind], record, skeleton, tensors) if kind in _PACKED else skeleton
    for role in ROLES:
        quantiser = getattr(layer, f"{role}_quantiser", None)
        if quantiser is not None:
            quantiser.enabled = record[role].get("enabled", True) is True
            _fill(path, f"{role}_quantiser", quantiser, tensors)
    return layer


def _build_packed(
    path: str,
    kind: type[PackedLayer],
    record: Mapping[str, Any],
    skeleton: nn.Module,
    tensors: Mapping[str, Tensor | PackedTensor],
) -> PackedLayer:
    rows = _matrix_shape(path, kind, skeleton)
    weight, bias = tensors.get("weight"), tensors.get("bias")
    if not isinstance(weight, PackedTensor):
        raise ContainerError(
            f"{path}.weight: {'missing' if weight is None else 'not packed'}, expected a packed tensor"
        )
    if weight.shape != rows or weight.axis != 1:
        raise ContainerError(f"{path}.weight: {weight!r}, but the model's layer has shape {rows}")
    if (bias is None) != (getattr(skeleton, "bias", None) is None):
        raise ContainerError(f"{path}.bias: {'missing' if bias is None else 'the layer of this model has none'}")
    if bias is not None and (isinstance(bias, PackedTensor) or tuple(bias.shape) != rows[:1]):
        raise ContainerError(f"{path}.bias: shape {tuple(bias.shape)}, expected a plain {rows[:1]}")
    geometry = kind.geometry(skeleton)
    if record.get("geometry", {}) != plain(geometry):
        raise ContainerError(
            f"{path}: saved with {record.get('geometry')}, but the model's layer has {plain(geometry)}"
        )
    given: dict[str, Any] = {} if bias is None else {"bias": bias}
    for role in ("input", "output"):
        if role in record:
            quantiser = Quantiser(_read_spec(path, record[role]), axis=kind.axis(skeleton), what=f"{path}: {role}")
            given[f"{role}_quantiser"] = quantiser
    try:
        layer = kind(weight, **geometry, **given)
    except (OctavoError, TypeError) as error:
        raise ContainerError(f"{path}: {error}") from None
    return layer.train(skeleton.training)


def _matrix_shape(path: str, kind: type[PackedLayer], skeleton: nn.Module) -> tuple[int, int]:
    """Return ``(N, K)`` of the layer that is replaced."""
    if isinstance(skeleton, kind):
        return skeleton.weight.shape
    if kind is PackedLinear and is_transposed(skeleton):
        return skeleton.weight.shape[1], skeleton.weight.shape[0]
    if not kind.accepts(skeleton):
        raise ContainerError(f"{path}: saved as {kind.__name__}, but the model has a {type(skeleton).__name__} there")
    first, *rest = skeleton.weight.shape
    return first, math.prod(rest)


def _read_spec(path: str, record: Any) -> Spec:
    try:
        text = record["format"]
        if "calibration" in record:
            text = f"{text}@{record['calibration']}"
        spec = read_spec(text)
        return Spec(spec.format, spec.calibration, record.get("scale", "floor"))
    except (OctavoError, KeyError, TypeError, AttributeError) as error:
        raise ContainerError(f"{path}: {record!r} is no format of a tensor: {error}") from None


def _fill(path: str, name: str, quantiser: nn.Module, tensors: Mapping[str, Tensor | PackedTensor]) -> None:
    """Give a quantiser the scales of the file."""
    prefix = f"{name}."
    state = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    packed = next((key for key, value in state.items() if isinstance(value, PackedTensor)), None)
    if packed is not None:
        raise ContainerError(f"{path}.{name}.{packed}: packed, expected a plain tensor")
    try:
        quantiser.load_state_dict(state)
    except (RuntimeError, OctavoError) as error:
        raise ContainerError(f"{path}.{name}: {error}") from None
