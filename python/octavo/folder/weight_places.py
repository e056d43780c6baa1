"""Where the tensors of a checkpoint go in a model of transformers: names in the file to names in the state dict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import ContainerError
from octavo.folder.transformers_door import foreign
from octavo.tensor import FLOATS, PackedTensor

Stored = Tensor | PackedTensor


@dataclass(frozen=True)
class Places:
    """What a checkpoint holds for a model.

    ``tensors``: by name in the model's state dict; those of a tied parameter once, under the first of its names that
    the checkpoint has. ``ties``: other names of such parameters, each with the name that is in ``tensors``.
    ``missing``: names of the state dict without a tensor. ``left_out``: float tensors that the model has no place for;
    tables of integers, such as positions, a model makes itself.
    """

    tensors: dict[str, Stored]
    ties: dict[str, str]
    missing: tuple[str, ...]
    left_out: tuple[str, ...]


def places(model: nn.Module, tensors: Mapping[str, Stored], folder: Path) -> Places:
    """Return where ``tensors`` go in ``model``, by the names that transformers gives them when it loads a checkpoint.

    A tied parameter of which the checkpoint has two different tensors is untied in ``model``, as transformers does.
    Raises ContainerError for two tensors of one name, and where transformers computes weights from several tensors.
    """
    state: dict[str, Any] = model.state_dict(keep_vars=True)
    with foreign(folder, what="names of weights"):
        renamed = _renamed(model, list(tensors), state, folder)
    found: dict[str, Stored] = {}
    left_out = []
    for name, tensor in tensors.items():
        place = renamed[name]
        if place not in state:
            if tensor.dtype in FLOATS:
                left_out.append(name)
        elif place in found:
            raise ContainerError(
                f"{folder}: two tensors are {place} of the model, one of them {name}; keep one of them"
            )
        else:
            found[place] = tensor
    groups: dict[int, list[str]] = {}
    for name, value in state.items():
        groups.setdefault(id(value), []).append(name)
    ties: dict[str, str] = {}
    missing: list[str] = []
    for names in groups.values():
        held = [name for name in names if name in found]
        if not held:
            missing += names
            continue
        for name in names:
            if name in held[1:] and not _same(found[held[0]], found[name]):
                _untie(model, name)
            elif name != held[0]:
                ties[name] = held[0]
                found.pop(name, None)
    return Places(found, ties, tuple(missing), tuple(left_out))


def _renamed(model: Any, names: Iterable[str], state: dict[str, Any], folder: Path) -> dict[str, str]:
    """Return the name in the model of each tensor, by transformers' own rules."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    rules = get_model_conversion_mapping(model)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    renamed = {}
    for name in names:
        place, computed = rename_source_key(name, renamings, converters, model.base_model_prefix or None, state)
        if computed is not None and name not in state:
            raise ContainerError(
                f"{folder}: transformers computes {place} from {name} and other tensors; load the model with it, then "
                "octavo.quantize_model, pack_model and save_model"
            )
        renamed[name] = name if computed is not None else place
    return renamed


def _same(a: Stored, b: Stored) -> bool:
    if isinstance(a, PackedTensor) or isinstance(b, PackedTensor):
        return isinstance(a, PackedTensor) and isinstance(b, PackedTensor) and a == b
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)


def _untie(model: nn.Module, name: str) -> None:
    path, _, last = name.rpartition(".")
    owner = model.get_submodule(path)
    if last in owner._parameters:
        held = owner._parameters[last]
        assert held is not None
        owner._parameters[last] = nn.Parameter(torch.empty_like(held), requires_grad=held.requires_grad)
