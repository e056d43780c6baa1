"""What a file says about a model's layers: their classes, geometry and quantizers, as JSON, and the layers again."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from octavo.errors import ContainerError, DTypeError, FormatError, ModelError, OctavoError
from octavo.model_folder.stored_feature import Restoration, Stage, StoredFeature
from octavo.nn import PackedLayer, Quantizer
from octavo.nn.format_layer import FormatLayer
from octavo.nn.former_names import current_name
from octavo.nn.int32_bias import Int32Bias
from octavo.nn.registry import format_layers, kind_of, packed_classes, simulated_classes
from octavo.nn.replace_modules import replace_modules
from octavo.nn.stored_scales import format_text
from octavo.quant.apply_recipe import prepare_model
from octavo.recipe.rule import read_spec
from octavo.recipe.sites import join
from octavo.recipe.spec import ROLES, LayerPlan, Spec
from octavo.tensors.packed_tensor import FLOATS, SCALE_DTYPES, PackedTensor

# Dtypes of what a quantizer holds.
_STATE = {
    "scales": tuple(dict.fromkeys(SCALE_DTYPES.values())),
    "zeros": (torch.uint8,),
    "levels": (torch.float32,),
    "format": (torch.uint8,),
}


def described_layers(model: nn.Module) -> dict[str, FormatLayer]:
    """Return the layers that a file describes, by every path they have; not those inside another one."""
    return dict(format_layers(model, duplicates=True))


def describe_layer(path: str, layer: FormatLayer) -> dict[str, Any]:
    """Return what JSON holds of a layer: its class, geometry and quantizers. Raises ModelError for another class."""
    kind, accepted = layer.stored_class(), [*packed_classes(), *simulated_classes()]
    if kind not in accepted:
        raise ModelError(f"{path}: files hold no {kind}; accepted are {', '.join(accepted)}")
    record: dict[str, Any] = {"class": kind}
    if isinstance(layer, PackedLayer):
        record |= plain(layer.description(layer))
    for role, quantizer in layer.role_quantizers().items():
        record[role] = _describe_spec(cast("Quantizer | Int32Bias", quantizer).spec)
    disabled = [name for name, part in _quantizers(layer).items() if not part.enabled]
    return {**record, "disabled": disabled} if disabled else record


def _quantizers(layer: nn.Module) -> dict[str, Quantizer | Int32Bias]:
    """Return every quantizer of a layer by its name in it."""
    return {name: part for name, part in layer.named_modules() if isinstance(part, Quantizer | Int32Bias)}


def packed_class(layer: nn.Module) -> type[PackedLayer] | None:
    """Return the class of the packed form of a float layer, None where it has none."""
    kind = kind_of(layer)
    return None if kind is None else kind.packed


def plain(value: Any) -> Any:
    """Return a value as JSON gives it back: tuples become lists."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple | list) else value


def _describe_spec(spec: Spec) -> dict[str, Any]:
    record: dict[str, Any] = {"format": str(spec.format)}
    if spec.calibration is not None:
        record["calibration"] = str(spec.calibration)
    if spec.scale != "floor":
        record["scale"] = spec.scale
    return record


def _simulated_plan(layers: Mapping[str, Mapping[str, Any]]) -> dict[str, LayerPlan]:
    """Return the plan of the simulated layers among ``layers``, by path. Raises ContainerError for another class."""
    plan = {}
    packed, simulated = packed_classes(), simulated_classes()
    for path, record in layers.items():
        kind = record.get("class")
        if isinstance(kind, str) and kind in simulated:
            plan[path] = LayerPlan(**{role: _read_spec(path, record[role]) for role in ROLES if role in record})
        elif not isinstance(kind, str) or kind not in packed:
            raise ContainerError(f"{path}: unknown layer class {kind!r}")
    return plan


def build_layer(
    path: str, record: Mapping[str, Any], skeleton: nn.Module, tensors: Mapping[str, Tensor | PackedTensor]
) -> nn.Module:
    """Return the layer that ``record`` describes, in the place of ``skeleton``: a simulated one is there already.

    ``tensors``: those of the file below ``path``, by their names inside the layer. Raises ContainerError naming the
    tensor or layer where they do not fit.
    """
    kind = packed_classes().get(record["class"])
    layer = skeleton if kind is None else _build_packed(path, kind, record, skeleton, tensors)
    disabled = {current_name(name) for name in record.get("disabled", ()) if isinstance(name, str)}
    for name, quantizer in _quantizers(layer).items():
        quantizer.enabled = name not in disabled
        _fill(path, name, quantizer, tensors)
    return layer


def _build_packed(
    path: str,
    kind: type[PackedLayer],
    record: Mapping[str, Any],
    skeleton: nn.Module,
    tensors: Mapping[str, Tensor | PackedTensor],
) -> PackedLayer:
    rows = kind.matrix_shape(skeleton)
    if rows is None:
        raise ContainerError(
            f"{path}: saved as {kind.stored_class()}, but the model has a {type(skeleton).__name__} there"
        )
    weight, bias = tensors.get("weight"), tensors.get("bias")
    if not isinstance(weight, PackedTensor):
        raise ContainerError(
            f"{path}.weight: {'missing' if weight is None else 'not packed'}, expected a packed tensor"
        )
    if weight.shape != rows or weight.axis != 1:
        raise ContainerError(f"{path}.weight: {weight!r}, but the model's layer has shape {rows}")
    _check_scales(f"{path}.weight", weight.scales, signed=weight.format.family in _SIGNED)
    _check_scales(f"{path}.weight", weight.levels, "levels")
    if (bias is None) != (getattr(skeleton, "bias", None) is None):
        raise ContainerError(f"{path}.bias: {'missing' if bias is None else 'the layer of this model has none'}")
    if bias is not None and (isinstance(bias, PackedTensor) or tuple(bias.shape) != rows[:1]):
        raise ContainerError(f"{path}.bias: shape {tuple(bias.shape)}, expected a plain {rows[:1]}")
    if bias is not None and bias.dtype not in (*FLOATS, torch.int32):  # int32: steps of an integer product
        raise ContainerError(f"{path}.bias: dtype {bias.dtype}; accepted are int32, {', '.join(map(str, FLOATS))}")
    geometry = kind.geometry(skeleton)
    if record.get("geometry", {}) != plain(geometry):
        raise ContainerError(
            f"{path}: saved with {record.get('geometry')}, but the model's layer has {plain(geometry)}"
        )
    given: dict[str, Any] = {} if bias is None else {"bias": bias}
    for role in ("input", "output"):
        if role in record:
            quantizer = Quantizer(_read_spec(path, record[role]), axis=kind.axis(skeleton), what=f"{path}: {role}")
            given[f"{role}_quantizer"] = quantizer
    try:
        layer = kind(weight, **geometry, **given)
    except (OctavoError, TypeError) as error:
        raise ContainerError(f"{path}: {error}") from None
    layer.stand_for(skeleton, path or type(skeleton).__name__)
    return layer.train(skeleton.training)


def _read_spec(path: str, record: Any) -> Spec:
    try:
        text = record["format"]
        if "calibration" in record:
            text = f"{text}@{record['calibration']}"
        spec = read_spec(text)
        if spec is None:
            raise FormatError(f"{text!r} is no format")
        return Spec(spec.format, spec.calibration, record.get("scale", "floor"))
    except (OctavoError, KeyError, TypeError, AttributeError) as error:
        raise ContainerError(f"{path}: {record!r} is no format of a tensor: {error}") from None


def _fill(path: str, name: str, quantizer: Quantizer | Int32Bias, tensors: Mapping[str, Tensor | PackedTensor]) -> None:
    """Give a quantizer the scales of the file."""
    prefix = f"{name}."
    state: dict[str, Tensor] = {}
    for key, value in tensors.items():
        if key.startswith(prefix):
            if isinstance(value, PackedTensor):
                raise ContainerError(f"{path}.{name}.{key.removeprefix(prefix)}: packed, expected a plain tensor")
            state[key.removeprefix(prefix)] = value
    if "format" in state and (text := format_text(state["format"])) != str(quantizer.spec.format):
        raise ContainerError(
            f"{path}.{name}.format: scales of '{text}', but the structure says '{quantizer.spec.format}'"
        )
    # Learned scales act by their magnitude; training may have turned one around.
    learned = quantizer.spec.calibration is not None and quantizer.spec.calibration.method == "lsq"
    for part, dtypes in _STATE.items():
        if part in state and state[part].dtype not in dtypes:
            accepted = ", ".join(map(str, dtypes))
            raise ContainerError(f"{path}.{name}.{part}: dtype {state[part].dtype}; accepted are {accepted}")
    for part in ("scales", "levels"):
        _check_scales(
            f"{path}.{name}", state.get(part), part, signed=learned or quantizer.spec.format.family in _SIGNED
        )
    try:
        quantizer.load_state_dict(state)
    except (RuntimeError, OctavoError) as error:
        raise ContainerError(f"{path}.{name}: {error}") from None


#: Families whose scales may be negative.
_SIGNED = ("fullrange", "affine")


def _check_scales(owner: str, scales: Tensor | None, part: str = "scales", *, signed: bool = False) -> None:
    """Refuse float scales that no encoder writes. Raises ContainerError."""
    if scales is None or not scales.is_floating_point() or not scales.numel():
        return
    low, high = torch.aminmax(scales.detach())  # one pass, which NaN goes through
    if not (math.isfinite(low.item()) and math.isfinite(high.item())):
        raise ContainerError(f"{owner}.{part}: NaN or infinity among them; scales are finite")
    if not signed and low.item() < 0:
        raise ContainerError(f"{owner}.{part}: negative values among them; scales are at least 0")


# --- the feature ------------------------------------------------------------------------------------------------------


def _describe(model: nn.Module) -> dict[str, Any]:
    return {path: describe_layer(path, layer) for path, layer in described_layers(model).items()}


def _is_valid(layers: Any) -> bool:
    return (
        isinstance(layers, dict)
        and all(isinstance(record, dict) for record in layers.values())
        and all(isinstance(record.get("disabled", []), list) for record in layers.values())
    )


def _restore(restoration: Restoration, records: Any) -> None:
    tensors = restoration.by_name()
    model = restoration.model
    for path in records:
        _submodule(model, path)
    try:
        model = prepare_model(model, _simulated_plan(records), inplace=True)
    except (DTypeError, FormatError) as error:
        raise ContainerError(f"{error}, which the file has otherwise") from None
    replaced: dict[int, nn.Module] = {}
    below = _below(records, tensors)
    for path, record in records.items():
        skeleton = _submodule(model, path)
        inside = below[path]
        if id(skeleton) not in replaced:
            replaced[id(skeleton)] = build_layer(path, record, skeleton, inside)
        layer = replaced[id(skeleton)]
        restoration.placed.update(join(path, name) for name in inside if name in _own_names(layer))
    restoration.model = replace_modules(model, replaced)


def _submodule(model: nn.Module, path: str) -> nn.Module:
    try:
        return model.get_submodule(path)
    except AttributeError:
        raise ContainerError(
            f"{path}: a quantized layer in the file, but this {type(model).__name__} has none"
        ) from None


def _below(paths: Iterable[str], tensors: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return for each path the tensors below it, by their names there."""
    below: dict[str, dict[str, Any]] = {path: {} for path in paths}
    for name, value in tensors.items():
        if "" in below:
            below[""][name] = value
        for dot in re.finditer(r"\.", name):
            if (path := name[: dot.start()]) in below:
                below[path][name[dot.end() :]] = value
    return below


def _own_names(layer: nn.Module) -> set[str]:
    """Names of the tensors that :func:`build_layer` has taken from the file."""
    taken = {name for name in layer.state_dict() if "_quantizer." in name}
    return taken | {"weight", "bias"} if isinstance(layer, PackedLayer) else taken


LAYERS = StoredFeature("layers", Stage.LAYERS, describe=_describe, is_valid=_is_valid, restore=_restore)
"""Its value: class, geometry and quantizers of each layer by its paths."""
