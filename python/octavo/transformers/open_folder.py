"""A folder of Octavo, opened for a model that transformers has built without weights.

The file says which class was saved and how its layers are packed; :func:`octavo.load_model` reads it. Where
transformers builds another class of the same configuration, such as the body of a language model, the parts that both
have are taken from the saved one, and the rest is initialized as transformers does.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import ContainerError, ModelError
from octavo.model_folder.carried_files import carry_files
from octavo.model_folder.hf_loading import known
from octavo.model_folder.place_tensors import refuse_empty
from octavo.model_folder.save_load import fill_from
from octavo.model_folder.skeleton import build, drop_pooler, model_class
from octavo.model_folder.stored_tensors import main_dtype
from octavo.model_folder.structure import read_structure
from octavo.model_folder.weight_files import STRUCTURE, Checkpoint
from octavo.nn.format_layer import FormatLayer
from octavo.nn.packed_layer import PackedLayer
from octavo.nn.transformers_methods import use_our_methods


class OpenedFolder:
    """The file of weights of a folder, and the ``model`` that it is to fill.

    ``missing``: names of tensors that the model has and the file has not.
    """

    def __init__(self, model: Any, files: Sequence[str]) -> None:
        """Read what the file says, not its weights. Raises ContainerError for a file that is none of ours."""
        paths = tuple(map(Path, files))
        self._source = Checkpoint(paths[0] if len(paths) == 1 else paths[0].parent, paths)
        text = self._source.metadata().get(STRUCTURE) if paths[0].is_file() else None
        if text is None:
            raise ContainerError(
                f"{paths[0]}: {'no weights of Octavo' if paths[0].is_file() else 'not there'}; an OctavoConfig without "
                'a recipe opens what is packed already, OctavoConfig("int4:g32") packs a float model'
            )
        saved = read_structure(paths[0], text)["class"]
        names = [entry.name for entry in self._source.entries()]
        self._saved: Any = None
        self.missing: set[str] = set()
        if saved == type(model).__name__:
            drop_pooler(model, names)
            return
        architecture = known(self._source.folder, lambda library: model_class(library, saved), saved)
        if architecture is None or not isinstance(model.config, architecture.config_class):
            raise ContainerError(
                f"{paths[0]}: of a {saved}, which has no part of a {type(model).__name__}; open it with {saved}"
            )
        config = copy.deepcopy(model.config)
        self._saved = build(lambda: architecture(config))
        drop_pooler(self._saved, names)
        taken = _common(model, self._saved)
        if not taken:
            raise ContainerError(
                f"{paths[0]}: of a {saved}, which has no part of a {type(model).__name__}; open it with {saved}"
            )
        self.missing = {name for name in model.state_dict() if name.partition(".")[0] not in taken}

    def bits(self) -> dict[str, float]:
        """Return the bits of an element of every tensor of the file, scales included, by name."""
        return {entry.name: 8 * entry.nbytes / max(math.prod(entry.shape), 1) for entry in self._source.entries()}

    def fill(self, model: Any, dtype: torch.dtype | None) -> nn.Module:
        """Give the model its tensors and layers. Raises ContainerError as :func:`octavo.load_model`."""
        if self._saved is None:
            fill_from(self._source, model)
        else:
            saved = fill_from(self._source, self._saved)
            _graft(model, _counterpart(model, saved), _common(model, saved))
            use_our_methods(model)
            try:
                refuse_empty(model)
            except ModelError as error:
                raise ContainerError(
                    f"{self._source.path}: of a {type(saved).__name__}: {str(error).partition(':')[0]} of a "
                    f"{type(model).__name__} is not in it; open it with {type(saved).__name__}"
                ) from None
        carry_files(model, self._source.folder)
        if dtype is not None and dtype != main_dtype(model):
            _cast(model, dtype)
        result: nn.Module = model
        return result


def _counterpart(model: Any, saved: Any) -> Mapping[str, Any]:
    """Return the parts of a saved model by the names that ``model`` has for them."""
    prefix = model.base_model_prefix
    if prefix in model._modules and prefix not in saved._modules:
        return {prefix: saved}
    if prefix in saved._modules and prefix not in model._modules:
        saved = saved._modules[prefix]
    return {**saved._parameters, **saved._buffers, **saved._modules}


def _common(model: Any, saved: Any) -> set[str]:
    """Return the names of the parts, parameters and buffers that a model can take from a saved one."""
    parts = _counterpart(model, saved)
    own = {**model._parameters, **model._buffers, **model._modules}
    return {name for name, part in own.items() if part is not None and _is_like(part, parts.get(name))}


def _is_like(part: Any, other: Any) -> bool:
    if isinstance(part, nn.Module):
        return type(part).__name__ == type(other).__name__ or isinstance(other, FormatLayer)
    return isinstance(other, Tensor) and part.shape == other.shape


def _graft(model: Any, parts: Mapping[str, Any], names: set[str]) -> None:
    for registry in (model._parameters, model._buffers, model._modules):
        registry.update({name: parts[name] for name in names & registry.keys()})


def _cast(model: Any, dtype: torch.dtype) -> None:
    """Cast a model as transformers casts one that it reads: parts that it holds in float32 stay so."""
    from transformers.core_model_loading import build_glob_alternation

    plan = list(model._get_dtype_plan(dtype))
    search = build_glob_alternation(plan)[0].search if plan else None

    def stays(name: str) -> bool:
        return search is not None and search(name) is not None

    for path, module in model.named_modules():
        if isinstance(module, PackedLayer) and not stays(f"{path}.weight"):
            module.to(dtype)
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_floating_point() and not stays(f"{path}.{name}"):
                parameter.data = parameter.data.to(dtype)
