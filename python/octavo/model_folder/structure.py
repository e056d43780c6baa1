"""The description of a model in its file's metadata: class, layers, ties, and what else its features say, as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from octavo.errors import ContainerError
from octavo.model_folder.features import FEATURES
from octavo.model_folder.features.decoded_tensors import DECODED
from octavo.model_folder.features.described_layers import LAYERS, packed_class, plain
from octavo.model_folder.features.rewritten_modules import REWRITTEN
from octavo.model_folder.stored_feature import Restoration, Stage, StoredFeature
from octavo.model_folder.weight_files import DIGESTS, STRUCTURE
from octavo.nn.former_names import current_name
from octavo.nn.registry import packed_classes
from octavo.recipe.sites import join
from octavo.storage.reading import parse_json
from octavo.tensors.packed_tensor import PackedTensor

KEY, VERSION = STRUCTURE, 1  # of the description in a file's metadata


# --- writing ----------------------------------------------------------------------------------------------------------


def describe_model(model: nn.Module, ties: Mapping[str, str]) -> dict[str, str]:
    """Return the texts in the metadata of a model's file: its description under ``KEY``, and those of features.

    ``ties``: names of tensors, and what each is tied to in the file. Raises ModelError for layers that no file holds.
    """
    structure = outline(model, {}, ties)
    texts: dict[str, str] = {}
    for feature in FEATURES:
        value = feature.describe(model)
        if value is not None:
            (texts if feature.in_metadata else structure)[feature.key] = value
    return {KEY: json.dumps(structure), **texts}


def model_metadata(description: Mapping[str, str], digests: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata of a model's file; ``description``: of :func:`describe_model`."""
    # transformers refuses weights without a format.
    return {"format": "pt", KEY: description[KEY], DIGESTS: json.dumps(digests), **description}


def model_digests(digests: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata of a further file of a model, which another one describes."""
    return {"format": "pt", DIGESTS: json.dumps(digests)}


def outline(model: nn.Module, layers: Mapping[str, Any], ties: Mapping[str, str]) -> dict[str, Any]:
    """Return the part of a description that every model has."""
    return {"version": VERSION, "class": type(model).__name__, LAYERS.key: layers, "ties": dict(ties)}


def describe_packed(model: nn.Module, tensors: Mapping[str, Tensor | PackedTensor]) -> dict[str, Any]:
    """Return the description of a float ``model`` whose ``tensors`` are stored packed, by their names in it.

    Weights that a packed layer multiplies are those of one; other packed tensors are to be decoded. Modules that are
    made of layers in the place of parameters are told as such.
    """
    layers: dict[str, Any] = {}
    for path, layer in model.named_modules(remove_duplicate=False):
        kind = next((kind for kind in packed_classes().values() if kind.accepts(layer)), packed_class(layer))
        weight = tensors.get(join(path, "weight"))
        if kind is not None and isinstance(weight, PackedTensor) and weight.ndim == 2 and weight.axis == 1:
            layers[path] = {"class": kind.stored_class(), **plain(kind.description(layer))}
    packed = {name for name, tensor in tensors.items() if isinstance(tensor, PackedTensor)}
    rest = sorted(packed - {join(path, "weight") for path in layers})
    stand_ins = REWRITTEN.describe(model)
    more = {REWRITTEN.key: stand_ins, DECODED.key: rest}
    return {**outline(model, layers, {}), **{key: value for key, value in more.items() if value}}


# --- reading ----------------------------------------------------------------------------------------------------------


def read_structure(file: Path, text: str | None) -> dict[str, Any]:
    """Return the description of a model in a file's metadata, its outline checked. Raises ContainerError."""
    if text is None:
        raise ContainerError(f"{file}: holds tensors but no model; octavo.load reads them, save_model writes models")
    structure = parse_json(text, f"{file}: the model's structure")
    try:
        if structure["version"] != VERSION:
            raise ContainerError(f"{file}: structure version {structure['version']!r}; this Octavo reads {VERSION}")
        ties = structure["ties"]
        well_formed = (
            isinstance(structure["class"], str)
            and LAYERS.is_valid(structure[LAYERS.key])
            and isinstance(ties, dict)
            and all(isinstance(name, str) for name in ties.values())
            and all(feature.is_valid(value) for feature, value in _described(structure))
        )
    except (KeyError, TypeError) as error:
        raise ContainerError(f"{file}: the model's structure cannot be read: {error!r}") from None
    if not well_formed:
        raise ContainerError(f"{file}: the model's structure has parts of other types than it must")
    structure["ties"] = {current_name(name): current_name(source) for name, source in ties.items()}
    return structure


def _described(structure: Mapping[str, Any]) -> Iterator[tuple[StoredFeature, Any]]:
    """Yield the features that a description has a value of, with it."""
    for feature in FEATURES:
        if not feature.in_metadata and feature.key in structure:
            yield feature, structure[feature.key]


def restore(
    restoration: Restoration, structure: Mapping[str, Any], metadata: Mapping[str, str], first: Stage, last: Stage
) -> None:
    """Give a model the features that its file describes, those of the stages from ``first`` to ``last``.

    Raises ContainerError for what does not fit the model.
    """
    for feature in sorted(FEATURES, key=lambda feature: feature.stage):
        if first <= feature.stage <= last:
            feature.restore(restoration, (metadata if feature.in_metadata else structure).get(feature.key))


def own_tensors(file: Path, text: str | None) -> set[str]:
    """Return the names of tensors in a file that a float model has no place for.

    ``text``: the description in the file, of whatever writer.
    """
    try:
        structure = read_structure(file, text)
    except ContainerError:  # another library's text, or none
        return set()
    return {name for feature, value in _described(structure) for name in feature.own_tensors(value)}


def float_problem(structure: Mapping[str, Any]) -> str | None:
    """Return why float weights alone would be another model; None where they are the one that is described."""
    problems = (feature.float_problem(value) for feature, value in _described(structure))
    return next((problem for problem in problems if problem is not None), None)
