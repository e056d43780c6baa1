"""Modules that are stand_in of layers in the place of parameters of their own, such as experts of a mixture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from octavo.errors import ContainerError
from octavo.model_folder.stored_feature import Restoration, Stage, StoredFeature, is_names
from octavo.nn.replace_modules import replace_modules
from octavo.nn.rewriting import Origin, made_from, rewritten, rewritten_modules
from octavo.recipe.sites import join

KEY = "rewritten"
_DIMENSIONS = 8  # of a parameter
_MOST = 2**40  # of a size


def _describe(model: nn.Module) -> dict[str, Any] | None:
    """Return for each module the rewriting, and where its parameters went: what unpacking needs to know."""
    return {
        path: {"as": stand_in.name, "tensors": {name: _record(origin) for name, origin in stand_in.origins.items()}}
        for path, stand_in in rewritten_modules(model)
    } or None


def _record(origin: Origin) -> dict[str, Any]:
    record: dict[str, Any] = {
        "shape": list(origin.shape), "part_shape": list(origin.part_shape), "parts": list(origin.parts)
    }  # fmt: skip
    return {**record, "turned": True} if origin.is_turned else record


def _is_valid(modules: Any) -> bool:
    return isinstance(modules, dict) and all(
        isinstance(record, dict)
        and isinstance(record.get("as"), str)
        and isinstance(record.get("tensors"), dict)
        and all(_is_origin(value) for value in record["tensors"].values())
        for record in modules.values()
    )


def _is_origin(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and all(_are_sizes(value.get(key)) for key in ("shape", "part_shape"))
        and is_names(value.get("parts"))
        and len(value["parts"]) > 0
        and isinstance(value.get("turned", False), bool)
        and (len(value["part_shape"]) == 2 or not value.get("turned"))
    )


def _are_sizes(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= _DIMENSIONS
        and all(type(size) is int and 0 <= size < _MOST for size in value)
    )


def origins_of(modules: Mapping[str, Any]) -> dict[str, dict[str, Origin]]:
    """Return where the parameters of each module went, from a valid value of a file."""
    return {
        path: {
            name: Origin(
                tuple(value["shape"]), tuple(value["parts"]), tuple(value["part_shape"]), value.get("turned", False)
            )
            for name, value in record["tensors"].items()
        }
        for path, record in modules.items()
    }


def _restore(restoration: Restoration, modules: Any) -> None:
    if not modules:
        return
    model = restoration.model
    origins = origins_of(modules)
    new: dict[int, nn.Module] = {}
    for path, record in modules.items():
        try:
            module = model.get_submodule(path)
        except AttributeError:
            raise ContainerError(
                f"{path}: {record['as']} in the file, but this {type(model).__name__} has none"
            ) from None
        stand_in = module if made_from(module) is not None else rewritten(module)
        source = None if stand_in is None else made_from(stand_in)
        if stand_in is None or source is None or source.name != record["as"]:
            raise ContainerError(
                f"{path}: {record['as']} in the file, but the model has a {type(module).__name__} there"
            )
        if dict(source.origins) != origins[path]:
            raise ContainerError(f"{path}: {record['as']} of other tensors in the file than in this model")
        new[id(module)] = stand_in
        _split(restoration, path, origins[path])
    restoration.model = replace_modules(model, new)


def _split(restoration: Restoration, path: str, origins: Mapping[str, Origin]) -> None:
    """Take parameters apart that transformers' ``save_pretrained`` has written whole."""
    for name, origin in origins.items():
        whole = restoration.tensors.get(join(path, name))
        if whole is None:
            continue
        if not isinstance(whole, Tensor) or tuple(whole.shape) != origin.shape:
            raise ContainerError(f"{join(path, name)}: {tuple(whole.shape)}, but the model has {origin.shape} there")
        parts = {join(path, part): values for part, values in origin.split(whole).items()}
        rest = {other: tensor for other, tensor in restoration.tensors.items() if other != join(path, name)}
        restoration.tensors = {**rest, **parts}


REWRITTEN = StoredFeature(KEY, Stage.MODULES, describe=_describe, is_valid=_is_valid, restore=_restore)
"""Its value: the rewriting of each module by its path, and where its parameters went."""
