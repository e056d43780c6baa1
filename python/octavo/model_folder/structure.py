"""What a file says about a model's layers: their classes, geometry and quantizers, as JSON, and the layers again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from octavo.errors import ContainerError, FormatError, ModelError, OctavoError
from octavo.model_folder.folded_layers import FOLDED
from octavo.model_folder.weight_files import STRUCTURE
from octavo.nn import PackedLayer, Quantizer
from octavo.nn.format_layer import FormatLayer
from octavo.nn.former_names import current_name
from octavo.nn.int32_bias import Int32Bias
from octavo.nn.masks import ATTRIBUTE, masks_of, watch_tied
from octavo.nn.registry import format_layers, kind_of, packed_classes, simulated_classes
from octavo.nn.stored_scales import format_text
from octavo.recipe.rule import read_spec
from octavo.recipe.sites import join
from octavo.recipe.spec import ROLES, LayerPlan, Spec
from octavo.storage.reading import parse_json
from octavo.tensors.packed_tensor import FLOATS, SCALE_DTYPES, PackedTensor

KEY, VERSION = STRUCTURE, 1  # of the description in a file's metadata
DECODED = "decoded"
"""Key in it of the names of tensors that are packed and the weight of no packed layer, such as those of an LSTM."""

MASKED = "masked"
"""Key in it of the names of pruned parameters; the packed bits of ``LAYER.weight`` are ``LAYER.masks.weight``."""

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


def describe_packed(model: nn.Module, tensors: Mapping[str, Tensor | PackedTensor]) -> dict[str, Any]:
    """Return the description of a float ``model`` whose ``tensors`` are stored packed, by their names in it.

    Weights that a packed layer multiplies are those of one; other packed tensors are to be decoded.
    """
    layers: dict[str, Any] = {}
    for path, layer in model.named_modules(remove_duplicate=False):
        kind = next((kind for kind in packed_classes().values() if kind.accepts(layer)), None)
        weight = tensors.get(join(path, "weight"))
        if kind is not None and isinstance(weight, PackedTensor) and weight.ndim == 2 and weight.axis == 1:
            layers[path] = {"class": kind.stored_class(), **plain(kind.description(layer))}
    packed = {name for name, tensor in tensors.items() if isinstance(tensor, PackedTensor)}
    rest = sorted(packed - {join(path, "weight") for path in layers})
    record = {"version": VERSION, "class": type(model).__name__, "layers": layers, "ties": {}}
    return {**record, DECODED: rest} if rest else record


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


def read_structure(file: Path, text: str | None) -> dict[str, Any]:
    """Return the description of a model in a file's metadata, its outline checked. Raises ContainerError."""
    if text is None:
        raise ContainerError(f"{file}: holds tensors but no model; octavo.load reads them, save_model writes models")
    structure = parse_json(text, f"{file}: the model's structure")
    try:
        if structure["version"] != VERSION:
            raise ContainerError(f"{file}: structure version {structure['version']!r}; this Octavo reads {VERSION}")
        layers, ties = structure["layers"], structure["ties"]
        well_formed = (
            isinstance(structure["class"], str)
            and isinstance(layers, dict)
            and all(isinstance(record, dict) for record in layers.values())
            and all(isinstance(record.get("disabled", []), list) for record in layers.values())
            and isinstance(ties, dict)
            and all(isinstance(name, str) for name in ties.values())
            and all(isinstance(structure.get(key, []), list) for key in (DECODED, FOLDED, MASKED))
            and all(isinstance(name, str) for key in (DECODED, FOLDED, MASKED) for name in structure.get(key, []))
        )
    except (KeyError, TypeError) as error:
        raise ContainerError(f"{file}: the model's structure cannot be read: {error!r}") from None
    if not well_formed:
        raise ContainerError(f"{file}: the model's structure has parts of other types than it must")
    structure["ties"] = {current_name(name): current_name(source) for name, source in ties.items()}
    return structure


def mask_names(file: Path, text: str | None) -> set[str]:
    """Return the names of the masks among the tensors of a file whose description is ``text``, of whatever writer."""
    try:
        structure = read_structure(file, text)
    except ContainerError:  # another library's text, or none
        return set()
    split = (name.rpartition(".") for name in structure.get(MASKED, ()))
    return {f"{join(path, ATTRIBUTE)}.{last}" for path, _, last in split}


def attach_masks(model: nn.Module, names: Iterable[str]) -> None:
    """Give the parameters of these names masks, to be filled. Raises ContainerError for a name of none."""
    for name in names:
        path, _, last = name.rpartition(".")
        try:
            layer = model.get_submodule(path)
            parameter = layer.get_parameter(last)
            masks_of(layer, path or type(model).__name__).put(
                layer, last, torch.ones(parameter.shape, dtype=torch.bool)
            )
        except (AttributeError, ModelError) as error:
            raise ContainerError(f"{name}: pruned in the file, and no parameter to mask here: {error}") from None
    watch_tied(model)


def fits(stored: torch.dtype, wanted: torch.dtype) -> bool:
    """Whether a tensor of a file may take a place of a model: a float of ours for another, else the same dtype."""
    return stored == wanted or (stored in FLOATS and wanted in FLOATS)


def simulated_plan(layers: Mapping[str, Mapping[str, Any]]) -> dict[str, LayerPlan]:
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
    _check_scales(f"{path}.weight", weight.scales)
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
        _check_scales(f"{path}.{name}", state.get(part), part, signed=learned)
    try:
        quantizer.load_state_dict(state)
    except (RuntimeError, OctavoError) as error:
        raise ContainerError(f"{path}.{name}: {error}") from None


def _check_scales(owner: str, scales: Tensor | None, part: str = "scales", *, signed: bool = False) -> None:
    """Refuse float scales that no encoder writes. Raises ContainerError."""
    if scales is None or not scales.is_floating_point():
        return
    if not bool(torch.isfinite(scales).all()):
        raise ContainerError(f"{owner}.{part}: NaN or infinity among them; scales are finite")
    if not signed and bool((scales < 0).any()):
        raise ContainerError(f"{owner}.{part}: negative values among them; scales are at least 0")
