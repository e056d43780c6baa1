"""Folders whose file does not describe the model: the class is that of ``config.json``, of transformers or ours, and
tensors of transformers go by the names that it gives them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from octavo.errors import ContainerError
from octavo.late_binding import late
from octavo.model_folder.features.described_layers import packed_class, plain
from octavo.model_folder.features.rewritten_modules import REWRITTEN, origins_of
from octavo.model_folder.hf_loading import CONFIG, extent_of, foreign, known, load_config
from octavo.model_folder.model_config import OwnModel, own_model
from octavo.model_folder.quantization_entry import ENTRY, refuse_packing
from octavo.model_folder.size_limits import Extent
from octavo.model_folder.skeleton import build, build_class, build_from_config, drop_pooler, model_class
from octavo.model_folder.structure import outline, read_structure
from octavo.model_folder.tensor_names import Places, Stored, places
from octavo.model_folder.weight_files import STRUCTURE, Checkpoint, held, layers_of
from octavo.prune.sizes import KEY as SIZES
from octavo.prune.sizes import shrink
from octavo.recipe.sites import Site, join, model_sites
from octavo.tensors.packed_tensor import FLOATS, PackedTensor


def skeleton(folder: Path) -> nn.Module:
    """Return the model that a folder describes, on the meta device: its layers, without weights.

    Of a packed or simulated model the class is the one that the file of weights names, of other weights that of
    :func:`model_of`, of a configuration alone the first that it names. Another package's file or folder gives the model
    whose weights are all decoded. Raises as :func:`model_of`.
    """
    if (reader := late("foreign_reader")(folder)) is not None:
        return cast("nn.Module", reader.open(folder).as_floats().skeleton())
    source = Checkpoint.open(folder) if held(folder) else None
    if source is not None and not layers_of(source):
        return model_of(source)[0]
    if (own := own_model(folder)) is not None:
        return own_skeleton(own, source)
    if source is not None:
        structure = read_structure(source.files[0], source.metadata()[STRUCTURE])
        model = build_from_config(folder, structure["class"], source)
        drop_pooler(model, [entry.name for entry in source.entries()])
        return _with_dtypes(model, source)
    config, values = load_config(folder)
    return build_class(folder, _architectures(folder, config)[0], config, extent_of(source, folder, values))


def model_of(source: Checkpoint) -> tuple[nn.Module, Places]:
    """Return the model of a folder whose layers no file describes, without weights, and the tensors by their names.

    A network of ours, or a model of transformers (:func:`fitting`). Raises ModelError where transformers or
    ``config.json`` is missing, ContainerError where transformers does not know the model, or naming a weight that is
    missing.
    """
    own = own_model(source.folder)
    if own is None:
        return fitting(source, source.tensors())
    model, tensors = own_skeleton(own, source), source.tensors()
    names = model.state_dict()
    missing = next((name for name in names if name not in tensors), None)
    if missing is not None:
        raise ContainerError(f"{source.folder}: {missing} is missing; the configuration asks for it")
    left_out = tuple(name for name in tensors if name not in names)
    dtypes = {name: tensors[name].dtype for name in names}
    return model, Places({name: tensors[name] for name in names}, {}, (), left_out, dtypes)


def own_skeleton(own: OwnModel, source: Checkpoint | None) -> nn.Module:
    """Return a network of ours on the meta device. Raises ContainerError for sizes beyond those of its weights."""
    what, values = str(own.file), own.config.as_dict()
    if source is None:
        return build(own.make, Extent(what, values))
    return _with_dtypes(build(own.make, Extent.of(source.entries(), what, values)), source)


def _with_dtypes(model: nn.Module, source: Checkpoint) -> nn.Module:
    """Give the parameters of a model without weights the float dtypes that they have in the file."""
    named = {str(dtype).removeprefix("torch."): dtype for dtype in FLOATS}
    dtypes = {entry.name: named[entry.dtype] for entry in source.entries() if entry.dtype in named}
    if STRUCTURE in (metadata := source.metadata()):
        modules = read_structure(source.files[0], metadata[STRUCTURE]).get(REWRITTEN.key) or {}
        for path, origins in origins_of(modules).items():  # a parameter is of the dtype of its parts
            dtypes |= {
                join(path, name): dtypes[part]
                for name, origin in origins.items()
                if (part := join(path, origin.parts[0])) in dtypes
            }
    for name, place in model.named_parameters(remove_duplicate=False):
        if place.dtype in FLOATS and dtypes.get(name, place.dtype) != place.dtype:
            place.data = place.data.to(dtypes[name])
    return model


def fitting(
    source: Checkpoint, tensors: Mapping[str, Stored], *, is_unpacked: bool = False
) -> tuple[nn.Module, Places]:
    """Return the model of a folder without memory for its weights, and the tensors by their names in it.

    The class is the first of those that ``config.json`` names of which no weight is missing, else the usual one of that
    configuration. ``tensors``: those of ``source``. ``is_unpacked``: they are as transformers has them once it has
    undone the packing that ``quantization_config`` names. Raises ModelError where transformers or ``config.json`` is
    missing, ContainerError where transformers does not know the model, or naming a weight that is missing.
    """
    folder = source.folder
    config, values = load_config(folder)
    if is_unpacked and hasattr(config, ENTRY):
        delattr(config, ENTRY)
    refuse_packing(folder, getattr(config, ENTRY, None))
    lacking = []
    for architecture in _architectures(folder, config):
        with _default_dtype(_dtype(config, tensors)):
            model = build_class(folder, architecture, config, extent_of(source, folder, values))
        found = places(model, tensors, folder)
        if drop_pooler(model, found.tensors):
            found = places(model, tensors, folder)
        if not found.missing:
            return model, found
        lacking.append((len(found.missing), found.missing[0], architecture.__name__))
    count, name, kind = min(lacking)
    raise ContainerError(f"{folder}: {name} is missing ({count} of the weights of a {kind}); save the whole model")


def filled_compact(architecture: Any, config: Any, tensors: Mapping[str, Stored], folder: Path) -> nn.Module:
    """Return a compacted model of transformers with float32 weights; those that ``tensors`` lacks are drawn anew.

    Raises ContainerError for tensors of other shapes than its sizes say.
    """
    with foreign(folder, what="model"):
        model: nn.Module = architecture(config).float()
        shrink(model, getattr(config, SIZES), str(folder / CONFIG))
        found = places(model, tensors, folder)
        model.load_state_dict({name: found.value(name) for name in found.tensors}, strict=False)
    return model


def _architectures(folder: Path, config: Any) -> list[Any]:
    """Return the classes that a configuration may be of, the likeliest first. Raises ContainerError for none."""
    given = getattr(config, "architectures", None)
    named = [name for name in given if isinstance(name, str)] if isinstance(given, list | tuple) else []

    def find(transformers: Any) -> list[Any]:
        usual = transformers.MODEL_MAPPING.get(type(config), None)
        # A mapping gives several classes for a few configurations; the first is the usual one.
        usual = usual[0] if isinstance(usual, tuple) else usual
        found = [*(model_class(transformers, name) for name in named[:8]), usual]
        return [one for one in dict.fromkeys(found) if one is not None and isinstance(config, one.config_class)]

    classes = known(folder, find, "model")
    if not classes:
        what = named[0] if named else type(config).__name__
        raise ContainerError(f"{folder / CONFIG}: a {what} is no model that transformers builds")
    return classes


def _dtype(config: Any, tensors: Mapping[str, Stored]) -> torch.dtype:
    """Return the dtype in which transformers loads a model: that of its configuration, else of its first tensor."""
    given = getattr(config, "dtype", None)
    given = getattr(torch, given, None) if isinstance(given, str) else given
    if isinstance(given, torch.dtype) and given in (*FLOATS, torch.float64):
        return given
    return next((tensor.dtype for tensor in tensors.values() if tensor.dtype in FLOATS), torch.float32)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Let constructors allocate in a dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def infer_structure(model: nn.Module, found: Places) -> dict[str, Any]:
    """Return the description that :func:`octavo.save_model` would write of a model with these tensors.

    Raises ContainerError for a packed tensor that no packed layer has: of a norm, or with blocks along another axis.
    """
    layers: dict[str, Any] = {}
    sites = packable(model)
    for name, tensor in found.tensors.items():
        if not isinstance(tensor, PackedTensor):
            continue
        for one in (name, *(tied for tied, first in found.ties.items() if first == name)):
            path = one.rpartition(".")[0]
            if one not in sites or not as_layer(sites[one], tensor):
                raise ContainerError(
                    f"{one}: packed as {tensor!r}, which no layer of a {type(model).__name__} multiplies"
                )
            layer = model.get_submodule(path)
            kind = packed_class(layer)
            assert kind is not None
            layers[path] = {"class": kind.stored_class(), **plain(kind.description(layer))}
    return outline(model, layers, found.ties)


def packable(model: nn.Module) -> dict[str, Site]:
    """Return the weights that packed layers can hold, by every name they have."""
    found: dict[str, Site] = {}
    for site in model_sites(model):
        if site.role == "weight" and site.name == "weight" and site.problem is None:
            found |= {f"{path}.weight" if path else "weight": site for path in site.paths}
    return found


def as_layer(site: Site, tensor: PackedTensor) -> bool:
    """Whether a packed tensor is the weight of a layer as :func:`octavo.pack_model` packs it."""
    return tensor.ndim == 2 and tensor.axis == 1 and site.axis == -1 and site.shape == tensor.shape
