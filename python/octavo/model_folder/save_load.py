"""Models in folders: packed and simulated layers, written and read without pickle and without a dense copy."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from octavo.errors import ContainerError, DTypeError, FormatError, ModelError
from octavo.lora import adapters
from octavo.model_folder.carried_files import carry_files, replaced_files, write_files
from octavo.model_folder.companion_files import measurements
from octavo.model_folder.folded_layers import FOLDED, attach_folded
from octavo.model_folder.hf_loading import CONFIG
from octavo.model_folder.infer_structure import fitting, infer_structure, own_skeleton
from octavo.model_folder.model_config import SHAPE, config_text, described, own_model
from octavo.model_folder.skeleton import build, build_from_config, drop_pooler
from octavo.model_folder.stored_tensors import PACKED_STATE, stored_state
from octavo.model_folder.structure import (
    DECODED,
    KEY,
    MASKED,
    VERSION,
    attach_masks,
    build_layer,
    describe_layer,
    describe_packed,
    described_layers,
    fits,
    read_structure,
    simulated_plan,
)
from octavo.model_folder.weight_files import CONFIGURATIONS, DIGESTS, OF_TENSORS, PACKED_NAME, RECIPE, Checkpoint, held
from octavo.nn import PackedLayer, attention
from octavo.nn.folded_norm import folded_norms
from octavo.nn.former_names import current_names
from octavo.nn.input_threshold import input_thresholds
from octavo.nn.masks import masked_layers
from octavo.nn.meta_tensors import refuse_meta
from octavo.prune.sizes import KEY as SIZES
from octavo.prune.sizes import note_sizes, shrink, sizes_of
from octavo.quant.apply_recipe import prepare_model
from octavo.quant.transformers_methods import use_our_methods
from octavo.recipe.note import note_recipe, noted_recipe
from octavo.storage import files, folders
from octavo.storage.arguments import checks_arguments
from octavo.tensors import container
from octavo.tensors.packed_tensor import PackedTensor


@checks_arguments
def save_model(model: nn.Module, path: str | os.PathLike[str], *, overwrite: bool = True) -> None:
    """Write a model to a folder: ``model.octavo.safetensors``, and ``config.json`` of a model of transformers or ours.

    Packed weights are in the file as ``LAYER.weight``, with their format; every other tensor of the state dict under
    its name; tied tensors once. Its metadata say which layers are packed or simulated, and how, and the recipe where
    one gave the whole model its formats. The folder appears complete or not at all: of one that is there, weights and
    configuration are replaced in one step, whatever ends the process, measurements of the old weights
    (``accuracy.json``) removed, and other files kept. What belongs to a model beside its weights (tokenizer, chat
    templates, processors, licenses) is written, too: from the folder that :func:`load_model` read it from, or that
    ``from_pretrained`` did, the Hub's cache included; the latter's not where ``path`` has a tokenizer already.
    ``overwrite=False`` refuses a folder that is there.

    Raises DTypeError for what is no module; ModelError for what a file cannot hold: adapters, state that is no tensor;
    ContainerError where the path is a file or holds weights under another name; FileExistsError and other OSErrors.
    """
    target = Path(path)
    _check_target(target, overwrite)
    stored = _collect(model)
    with folders.whole(
        target,
        owned={PACKED_NAME, *CONFIGURATIONS, SHAPE, *measurements(target), *replaced_files(model, target)},
        overwrite=overwrite,
    ) as folder:
        _write(model, folder, stored, target)


def save_weights(model: nn.Module, file: Path, metadata: Mapping[str, str]) -> None:
    """Write the file of :func:`save_model` alone, with more metadata. Raises as it does."""
    _save_weights(_collect(model), file, metadata)


@checks_arguments
def load_model(
    path: str | os.PathLike[str], model: nn.Module | Callable[[], nn.Module] | None = None, *, mmap: bool = False
) -> nn.Module:
    """Return the model of a folder (or file) that :func:`save_model` or ``octavo pack`` wrote, in evaluation mode.

    ``model``: the model to fill, or a function without arguments that makes it, whose dense weights are then never
    allocated; layers are replaced by what the file holds. None: a model of transformers or a network that a
    package registers (:mod:`octavo.model_folder.subject_registry`), built from the folder's ``config.json``, without
    code from the folder; of the former also what transformers wrote, in one file or in shards, whose weights keep their
    dtypes; of the latter also what
    ``octavo lab train``, ``compress`` and ``unpack`` wrote. Tensors that are packed in no layer, such as those of an
    LSTM, are decoded. ``mmap``: map the file instead of reading it, as :func:`octavo.load`.

    Raises ContainerError where the file is not valid or is of another model, naming the tensor or layer; ModelError
    where the model cannot be built; DTypeError for a ``model`` that is neither; OSError. A model given may be filled in
    part then. Source: FORMATS.md section 5.
    """
    source = Checkpoint.open(path)
    loaded = _load(source, model, mmap)
    if source.is_folder:
        carry_files(loaded, source.path)
    return loaded


def _load(source: Checkpoint, model: nn.Module | Callable[[], nn.Module] | None, mmap: bool) -> nn.Module:
    metadata = source.metadata()
    text = metadata.get(KEY)
    own = own_model(source.folder) if model is None or text is None else None
    if text is None and own is None and model is None and source.has_config:
        return _load_undescribed(source, mmap)
    if len(source.files) != 1 and text is None:
        raise ContainerError(f"{source.path}: {len(source.files)} files of weights; save_model writes one")
    if not mmap:
        source.verify()
    file = source.files[0]
    # Folders of our networks that nothing describes, such as those of 0.1, are told by their configuration.
    structure = None if text is None and own is not None else read_structure(file, text)
    if model is None and own is not None:
        model = own_skeleton(own, source)
    elif model is None:
        assert structure is not None  # no network of ours
        model = build_from_config(source.folder, structure["class"], source)
        drop_pooler(model, [entry.name for entry in source.entries()])
        if any(path.endswith(f".{attention.CHILD}") for path in structure["layers"]):
            attention.attach(model)
    elif not isinstance(model, nn.Module):
        model = build(model)
    if structure is not None and SIZES in structure:
        note_sizes(shrink(model, structure[SIZES], str(file)), structure[SIZES])
    tensors = current_names(source.tensors(mmap=mmap))
    return _filled(model, structure or describe_packed(model, tensors), tensors, file, metadata.get(RECIPE))


def fill_folder(model: nn.Module, folder: Path) -> None:
    """Write what :func:`save_model` writes into a folder that is there and being filled. Raises as it does."""
    _write(model, folder, _collect(model), folder)


# --- writing --------------------------------------------------------------------------------------------------------


def _write(model: nn.Module, folder: Path, stored: _Stored, target: Path) -> None:
    _save_weights(stored, folder / PACKED_NAME)
    write_config(model, folder)
    write_files(model, folder, target)


def _check_target(target: Path, overwrite: bool) -> None:
    if target.exists() and not target.is_dir():
        raise ContainerError(f"{target}: a file; models are written to a folder")
    others = [name for name in held(target) if name != PACKED_NAME] if target.is_dir() else []
    if others:
        raise ContainerError(f"{target}: holds {others[0]}, and {PACKED_NAME} beside it would be ambiguous")
    if not overwrite and target.is_dir() and any(target.iterdir()):
        raise FileExistsError(f"{target} exists; overwrite=True replaces the model in it")


@dataclass(frozen=True)
class _Stored:
    """What a file holds: the tensors, the description of the model, and its recipe where one is known."""

    tensors: dict[str, Tensor | PackedTensor]
    structure: dict[str, Any]
    recipe: str | None


def _collect(model: nn.Module) -> _Stored:
    _refuse_adapters(model)
    _refuse_thresholds(model)
    refuse_meta(model, "save_model")
    values, ties = stored_state(model)
    for name, value in values.items():
        if not isinstance(value, Tensor | PackedTensor):
            raise ModelError(f"{name}: state that is a {type(value).__name__}; files hold tensors alone")
    return _Stored(values, describe_model(model, ties), noted_recipe(model))


def describe_model(model: nn.Module, ties: Mapping[str, str]) -> dict[str, Any]:
    """Return what the file of a model says about it; ``ties``: names of tensors, and what each is tied to in the file.

    Raises ModelError for layers that no file holds.
    """
    described = {path: describe_layer(path, layer) for path, layer in described_layers(model).items()}
    structure = {"version": VERSION, "class": type(model).__name__, "layers": described, "ties": dict(ties)}
    if masked := [_join(path, name) for path, _, own in masked_layers(model) for name in own.names()]:
        structure[MASKED] = masked
    if folded := folded_norms(model):
        structure[FOLDED] = folded
    if (sizes := sizes_of(model)) is not None and getattr(model, "config", None) is None:
        structure[SIZES] = sizes
    return structure


def model_metadata(structure: Mapping[str, Any], recipe: str | None, digests: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata of a model's file."""
    # transformers refuses weights without a format.
    told = {"format": "pt", KEY: json.dumps(structure), DIGESTS: json.dumps(digests)}
    return told if recipe is None else {**told, RECIPE: recipe}


def _save_weights(stored: _Stored, file: Path, more: Mapping[str, str] | None = None) -> None:
    others = {key: value for key, value in (more or {}).items() if key not in OF_TENSORS}
    told = model_metadata(stored.structure, stored.recipe, container.digests(stored.tensors))
    container.save(stored.tensors, file, metadata={**others, **told})


def _refuse_adapters(model: nn.Module) -> None:
    path = next(iter(adapters(model)), None)
    if path is not None:
        raise ModelError(
            f"{path}: has adapters; octavo.lora.save_adapters saves them, fuse and commit make them part of the weights"
        )


def _refuse_thresholds(model: nn.Module) -> None:
    path = next((path for path, _, _ in input_thresholds(model)), None)
    if path is not None:
        raise ModelError(
            f"{path}: has its inputs pruned, which files do not hold; octavo.prune.restore_activations takes that off"
        )


def write_config(model: nn.Module, folder: Path) -> None:
    """Write the configuration of a model of transformers, and that of its generation, or that of a network of ours."""
    if (own := described(model)) is not None:
        files.write(folder / CONFIG, config_text(*own))
        return
    for name in ("config", "generation_config"):
        config = getattr(model, name, None)
        if config is not None and callable(getattr(config, "save_pretrained", None)):
            config = copy.deepcopy(config)
            if name == "config":
                config.architectures = [type(model).__name__]
            config.save_pretrained(folder)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


# --- reading --------------------------------------------------------------------------------------------------------


def _load_undescribed(source: Checkpoint, mmap: bool) -> nn.Module:
    """Return the model of a folder whose file does not describe it: of transformers, or of ``octavo pack`` of 0.1."""
    what = f"{source.files[0]}: holds tensors but no model"
    try:
        model, found = fitting(source, source.tensors(mmap=mmap))
    except (ContainerError, ModelError) as error:
        raise type(error)(f"{what}: {error}; octavo.load reads the tensors") from None
    try:
        structure = infer_structure(model, found)
    except ContainerError as error:
        raise ContainerError(f"{what}: {error}; octavo pack {source.path} -o NEW writes the model") from None
    for name, tensor in found.tensors.items():
        if isinstance(tensor, Tensor):
            found.tensors[name] = found.value(name)
    return _filled(model, structure, found.tensors, source.path, None)


def _filled(
    model: nn.Module,
    structure: dict[str, Any],
    tensors: dict[str, Tensor | PackedTensor],
    what: Path,
    recipe: str | None,
) -> nn.Module:
    """Return a model with the tensors of a file, in evaluation mode; ``what`` names the file in errors."""
    try:
        filled = _fill(model, structure, tensors).eval()
    except ContainerError as error:
        raise error if str(error).startswith(str(what)) else ContainerError(f"{what}: {error}") from None
    note_recipe(filled, recipe)
    use_our_methods(filled)
    return filled


def _fill(model: nn.Module, structure: dict[str, Any], tensors: dict[str, Tensor | PackedTensor]) -> nn.Module:
    for name, source in structure["ties"].items():
        if source not in tensors or name in tensors:
            raise ContainerError(f"{name}: tied to {source}, which must be in the file, and {name} itself not")
    tensors = _decoded(structure.get(DECODED, ()), tensors)
    held_by_name = tensors | {name: tensors[source] for name, source in structure["ties"].items()}
    layers = structure["layers"]
    attach_folded(model, structure.get(FOLDED, ()), held_by_name)
    for path in layers:
        _submodule(model, path)
    try:
        model = prepare_model(model, simulated_plan(layers), inplace=True)
    except (DTypeError, FormatError) as error:
        raise ContainerError(f"{error}, which the file has otherwise") from None
    used: set[str] = set()
    replaced: dict[int, nn.Module] = {}
    for path, record in layers.items():
        skeleton = _submodule(model, path)
        inside = _below(path, held_by_name)
        if id(skeleton) not in replaced:
            replaced[id(skeleton)] = build_layer(path, record, skeleton, inside)
        layer = replaced[id(skeleton)]
        used.update(_join(path, name) for name in inside if name in _own_names(layer))
        if not path:
            model = layer
        else:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, layer)
    attach_masks(model, structure.get(MASKED, ()))
    used |= assign_plain(model, structure["ties"], held_by_name, used)
    stray = sorted(held_by_name.keys() - used)
    if stray:
        raise ContainerError(f"{stray[0]}: has no place in this {type(model).__name__} ({len(stray)} such tensors)")
    refuse_empty(model)
    return model


def _decoded(names: Iterable[str], tensors: Mapping[str, Tensor | PackedTensor]) -> dict[str, Tensor | PackedTensor]:
    """Return the tensors with ``names`` decoded, which are packed for their bytes and multiplied by no layer."""
    plain: dict[str, Tensor | PackedTensor] = {}
    for name in names:
        tensor = tensors.get(name)
        if not isinstance(tensor, PackedTensor):
            raise ContainerError(f"{name}: {'missing' if tensor is None else 'not packed'}, expected a packed tensor")
        plain[name] = tensor.decode()
    return {**tensors, **plain}


def _submodule(model: nn.Module, path: str) -> nn.Module:
    try:
        return model.get_submodule(path)
    except AttributeError:
        raise ContainerError(
            f"{path}: a quantized layer in the file, but this {type(model).__name__} has none"
        ) from None


def _below(path: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    prefix = f"{path}." if path else ""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _own_names(layer: nn.Module) -> set[str]:
    """Names of the tensors that :func:`build_layer` has taken from the file."""
    taken = {name for name in layer.state_dict() if "_quantizer." in name}
    return taken | {"weight", "bias"} if isinstance(layer, PackedLayer) else taken


def assign_plain(
    model: nn.Module, ties: Mapping[str, str], tensors: Mapping[str, Tensor | PackedTensor], done: Collection[str]
) -> set[str]:
    """Put plain tensors in their places but those of ``done``, tied ones as one object. Return their names."""
    packed = [path for path, layer in model.named_modules(remove_duplicate=False) if isinstance(layer, PackedLayer)]
    own = {_join(path, name) for path in packed for name in PACKED_STATE}
    assigned: dict[str, Tensor] = {}
    places = model.state_dict(keep_vars=True)
    for name, place in places.items():
        if name in done or name in own:
            continue
        if name not in tensors:
            raise ContainerError(f"{name}: missing")
        value = tensors[name]
        if not isinstance(value, Tensor) or not isinstance(place, Tensor) or value.shape != place.shape:
            raise ContainerError(f"{name}: {_kind(value)}, but the model has a plain {_kind(place)} there")
        if not fits(value.dtype, place.dtype):
            raise ContainerError(f"{name}: dtype {value.dtype}, but the model has {place.dtype} there")
        source = ties.get(name, name)
        if source not in assigned:
            is_parameter = isinstance(place, nn.Parameter)
            assigned[source] = nn.Parameter(value, requires_grad=place.requires_grad) if is_parameter else value
        path, _, last = name.rpartition(".")
        owner = model.get_submodule(path)
        registry: dict[str, Any] = owner._parameters if last in owner._parameters else owner._buffers
        registry[last] = assigned[source]
    return {name for name in places if name not in own}


def _kind(value: object) -> str:
    if isinstance(value, PackedTensor):
        return repr(value)
    return f"tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def refuse_empty(model: nn.Module) -> None:
    """Refuse a model with tensors that neither the file nor its own code gave a value."""
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.device.type == "meta":
            raise ModelError(
                f"{name}: not in the file, and without a value in a model built on no memory; give load_model a model "
                "instead of a function that makes one"
            )
