"""A model as writers of other packages' files take it: tensors of a folder by name, read one at a time.

A folder of transformers, a model folder of ours, or another package's file. With a recipe the model is packed first, as
``octavo pack`` packs it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.errors import ContainerError, ModelError
from octavo.interchange.conversion import as_folder
from octavo.interchange.conversion_report import left_out, progress_of
from octavo.interchange.foreign_readers import reader_of
from octavo.model_folder.features.described_layers import LAYERS
from octavo.model_folder.features.rewritten_modules import REWRITTEN
from octavo.model_folder.hf_loading import load_config
from octavo.model_folder.infer_structure import skeleton
from octavo.model_folder.model_config import SIZES
from octavo.model_folder.pack_folder import OpenFolder, save_folder
from octavo.model_folder.structure import KEY, own_tensors, read_structure
from octavo.model_folder.tensor_names import Placed
from octavo.model_folder.weight_files import Checkpoint, check_target, refuse_file
from octavo.nn.former_names import current_names
from octavo.nn.registry import simulated_classes
from octavo.nn.replace_modules import replace_modules
from octavo.nn.rewriting import rewritten
from octavo.storage import folders
from octavo.storage.reading import shown
from octavo.tensors.packed_tensor import PackedTensor

if TYPE_CHECKING:
    from torch import nn

    from octavo.interchange.conversion_report import Bar
    from octavo.model_folder.pack_checkpoint import TensorReport
    from octavo.recipe import Recipe

    Check = Callable[[str, Sequence[TensorReport], Mapping[str, Any]], None]
    """Refuses what a recipe would give tensors, before they are packed: called with the class of the model, the plan
    and the configuration."""


@dataclass(frozen=True)
class ModelSource:
    """A model whose tensors are mapped, and read when they are touched.

    ``path``: as it was given. ``folder``: that its files lie in. ``model``: name of its class. ``config``: the values
    of transformers' configuration. ``tensors``: by their names in the class; those of tied parameters once. ``ties``:
    further names, and the tensor that each is. ``layers``: what the file says of packed layers, by path
    (FORMATS.md section 5). ``modules``: what it says of modules whose parameters are layers. ``reports``: of what a
    recipe packed. ``notes``: what of the model is not among the tensors.
    """

    path: Path
    folder: Path
    model: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Placed]
    ties: Mapping[str, str]
    layers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    modules: Mapping[str, Any] = field(default_factory=dict)
    reports: Sequence[TensorReport] = ()
    notes: Sequence[str] = ()


@contextmanager
def model_source(
    path: str | os.PathLike[str],
    *,
    recipe: Recipe | None = None,
    check: Check | None = None,
    bar: Bar | None = None,
    rewritten_with: str | None = None,
    takes_layers: bool = False,
) -> Iterator[ModelSource]:
    """Give the model of a folder or of another package's file, packed by ``recipe`` where one is given.

    ``check``: called with the plan of a recipe before anything is packed. ``bar``: shows the packing.
    ``rewritten_with``: name of a file; models with experts as layers are given where it lies in the folder, with
    ``takes_layers`` everywhere.

    Raises ModelError and ContainerError as :func:`octavo.load_model`, FormatError as :func:`octavo.quantize_model`.
    """
    path = Path(path)
    reader = reader_of(path)
    if reader is not None:
        with ExitStack() as stack:
            folder, notes = stack.enter_context(as_folder(reader.open(path), packed=recipe is None, bar=bar))
            model = stack.enter_context(_of_folder(folder, recipe, check, bar, rewritten_with, takes_layers))
            yield replace(model, path=path, notes=[*notes, *model.notes])
    else:
        refuse_file(path)
        with _of_folder(path, recipe, check, bar, rewritten_with, takes_layers) as model:
            yield model


@contextmanager
def _of_folder(
    path: Path,
    recipe: Recipe | None,
    check: Check | None,
    bar: Bar | None,
    rewritten_with: str | None,
    takes_layers: bool,
) -> Iterator[ModelSource]:
    source = Checkpoint.open(path)
    if recipe is None:
        takes_layers = takes_layers or (rewritten_with is not None and (path / rewritten_with).exists())
        yield _described(source, path, takes_layers) if KEY in source.metadata() else _plain(source)
        return
    opened = OpenFolder.open(source)
    planned = opened.plan(recipe)
    if check is not None:
        check(type(opened.model).__name__, planned, load_config(path)[0].to_dict())
    with folders.scratch() as place:
        folder = place / path.name
        check_target(source, folder, "", force=False)
        with progress_of(bar, "packing", opened.nbytes) as done:
            packed = opened.pack(recipe, progress=done)
        save_folder(source, folder, packed.model, force=False)
        reports, others = packed.reports, packed.left_out
        del packed, opened
        model = _described(Checkpoint.open(folder), path, takes_layers)
        yield replace(model, reports=reports, notes=[*model.notes, *left_out(others, f"a {model.model} has")])


def _described(source: Checkpoint, path: Path, takes_layers: bool) -> ModelSource:
    """Return the model of a file that describes it, such as :func:`octavo.save_model` writes.

    ``takes_layers``: also one whose parameters are layers in the file.
    """
    source.verify()
    text = source.metadata()[KEY]
    structure = read_structure(source.files[0], text)
    config = load_config(source.folder)[0].to_dict()
    layers = structure[LAYERS.key]
    simulated = next((name for name, record in layers.items() if record.get("class") in simulated_classes()), None)
    if simulated is not None:
        raise ModelError(
            f"{path}: {shown(simulated)} is a simulated layer; octavo.pack_model packs what octavo.load_model reads, "
            "octavo.save_model writes it"
        )
    modules = structure.get(REWRITTEN.key) or {}
    if (modules and not takes_layers) or config.get(SIZES):
        parts = "parameters that are layers in the file" if structure.get(REWRITTEN.key) else "compacted layers"
        raise ModelError(f"{path}: has {parts}; other packages' files hold models of unchanged classes")
    own = own_tensors(source.files[0], text)
    tensors = {
        name: tensor
        for name, tensor in current_names(source.tensors()).items()
        if name not in own and not name.rpartition(".")[0].rpartition(".")[2].endswith("_quantizer")
    }
    network = with_layers(skeleton(source.folder), modules)
    _check_shapes(path, network, tensors, structure["ties"], layers)
    rounded = sum(any(role in record for role in ("input", "output")) for record in layers.values())
    notes = [f"formats of inputs and outputs are left out; {rounded} layers have some"] if rounded else []
    return ModelSource(
        path, source.folder, structure["class"], config, tensors, structure["ties"], layers, modules, notes=notes
    )


def with_layers(network: nn.Module, modules: Mapping[str, Any]) -> nn.Module:
    """Return a model without weights, with layers in the place of the parameters of ``modules``."""
    new = {}
    for path in modules:
        module = network.get_submodule(path)
        stand_in = rewritten(module)
        if stand_in is None:
            raise ContainerError(f"{path}: layers in the file, but the model has a {type(module).__name__} there")
        new[id(module)] = stand_in
    return replace_modules(network, new)


def _plain(source: Checkpoint) -> ModelSource:
    """Return the model of a folder of transformers."""
    opened = OpenFolder.open(source)
    model, places = type(opened.model).__name__, opened.found
    _check_shapes(source.path, opened.model, places.tensors, places.ties, {})
    config = load_config(source.folder)[0].to_dict()
    notes = left_out(places.left_out, f"a {model} has")
    return ModelSource(source.path, source.folder, model, config, places.tensors, places.ties, notes=notes)


def _check_shapes(
    path: Path,
    model: nn.Module,
    tensors: Mapping[str, Placed],
    ties: Mapping[str, str],
    layers: Mapping[str, Mapping[str, Any]],
) -> None:
    """Refuse tensors of other shapes than the configuration says, missing and stray ones. Raises ContainerError."""
    state = model.state_dict(keep_vars=True)
    stray = next((name for name in tensors if name not in state), None)
    if stray is not None:
        raise ContainerError(f"{path}: {stray} has no place in this {type(model).__name__}")
    for name, value in state.items():
        tensor = tensors.get(ties.get(name, name))
        if tensor is None:
            if name in dict(model.named_parameters(remove_duplicate=False)):
                raise ContainerError(f"{path}: {name} is missing; the configuration asks for it")
            continue
        shape = tuple(value.shape)
        is_turned = (
            isinstance(tensor, PackedTensor) and layers.get(name.rpartition(".")[0], {}).get("transposed") is True
        )
        fits = math.prod(tensor.shape) == math.prod(shape) if len(shape) > 2 else tuple(tensor.shape) == shape
        if not (tuple(tensor.shape) == shape[::-1] if is_turned else fits):
            raise ContainerError(f"{path}: {name} has shape {tuple(tensor.shape)}; by the configuration it is {shape}")
