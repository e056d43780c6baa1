"""Where the tensors of a checkpoint go in a model of transformers: names in the file to names in the state dict."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from octavo.errors import ContainerError
from octavo.model_folder.hf_loading import foreign
from octavo.model_folder.merged_tensors import MergedTensor, in_order
from octavo.nn.rewriting import Origin, RewrittenFrom
from octavo.recipe.sites import join
from octavo.tensors.packed_tensor import FLOATS, PackedTensor

Stored = Tensor | PackedTensor
"""A tensor of a checkpoint."""
Placed = Tensor | PackedTensor | MergedTensor
"""A tensor of a model: one of a checkpoint, or one that is made of several."""


@dataclass(frozen=True)
class Places:
    """What a checkpoint holds for a model.

    ``tensors``: by name in the model's state dict; those of a tied parameter once, under the first of its names that
    the checkpoint has. ``ties``: other names of such parameters, each with the name that is in ``tensors``.
    ``missing``: names of the state dict without a tensor. ``left_out``: float tensors that the model has no place for;
    tables of integers, such as positions, a model makes itself. ``dtypes``: those that the model has, by name in the
    state dict.
    """

    tensors: dict[str, Placed]
    ties: dict[str, str]
    missing: tuple[str, ...]
    left_out: tuple[str, ...]
    dtypes: dict[str, torch.dtype]

    def __contains__(self, name: str) -> bool:
        """Whether there is a tensor for a name of the state dict."""
        return self.ties.get(name, name) in self.tensors

    def stored(self, name: str) -> Placed:
        """Return the tensor of a name as the checkpoint has it."""
        return self.tensors[self.ties.get(name, name)]

    def value(self, name: str) -> Tensor:
        """Return the tensor of a name as the float model has it: decoded, and in the model's dtype."""
        stored, dtype = self.stored(name), self.dtypes[name]
        tensor = (
            stored.decode()
            if isinstance(stored, PackedTensor)
            else stored.tensor()
            if isinstance(stored, MergedTensor)
            else stored
        )
        return tensor.to(dtype) if tensor.is_floating_point() and dtype.is_floating_point else tensor

    def split(self, modules: Mapping[str, RewrittenFrom]) -> Places:
        """Return the places in a model whose ``modules``, by path, are made of layers: parameters as their parts."""
        whole = {
            join(path, name): (path, origin)
            for path, source in modules.items()
            for name, origin in source.origins.items()
        }
        tensors: dict[str, Placed] = {}
        ties: dict[str, str] = {}
        dtypes = dict(self.dtypes)
        for name in (*self.tensors, *self.ties):
            first, own = self.ties.get(name), whole.get(name)
            names = [name] if own is None else [join(own[0], part) for part in own[1].parts]
            dtypes |= dict.fromkeys(names, self.dtypes[name])
            if first is not None and _is_like(own, whole.get(first)):
                holder = whole.get(first)
                holders = [first] if holder is None else [join(holder[0], part) for part in holder[1].parts]
                ties |= zip(names, holders, strict=True)
            elif own is None:
                tensors[name] = self.stored(name)
            else:
                pieces = _pieces(name, self.stored(name), own[1])
                tensors |= {join(own[0], part): piece for part, piece in pieces.items()}
        return replace(self, tensors=tensors, ties=ties, dtypes=dtypes)


_Owner = tuple[str, Origin]
"""The path of a rewritten module, and where a parameter of it went."""


def _is_like(own: _Owner | None, other: _Owner | None) -> bool:
    """Whether two tied parameters stay tied: neither is made of other tensors than it was, or both of the same."""
    is_whole = (own is None or own[1].is_whole) and (other is None or other[1].is_whole)
    return is_whole or (own is not None and other is not None and own[1].part_shape == other[1].part_shape)


def _pieces(name: str, tensor: Placed, origin: Origin) -> Mapping[str, Placed]:
    """Return the tensors of layers that a parameter is made of, by their names in the module."""
    if isinstance(tensor, PackedTensor):
        raise ContainerError(
            f"{name}: packed as {tensor!r}, which no layer multiplies; octavo unpack makes it plain, octavo pack packs "
            "the layers that it is made of"
        )
    if tuple(tensor.shape) != origin.shape:
        raise ContainerError(f"{name}: shape {tuple(tensor.shape)}, but the model has {origin.shape} there")
    if isinstance(tensor, Tensor):
        return origin.split(tensor)
    parts = None if origin.is_turned else tensor.parts()
    if parts is not None and len(parts) == len(origin.parts) and parts[0].shape == origin.part_shape:
        return dict(zip(origin.parts, parts, strict=True))
    return origin.split(tensor.tensor())


def places(model: nn.Module, tensors: Mapping[str, Stored], folder: Path) -> Places:
    """Return where ``tensors`` go in ``model``, by the names that transformers gives them when it loads a checkpoint.

    A tied parameter of which the checkpoint has two different tensors is untied in ``model``, and parameters that a
    class computes with in float32 have that dtype there, as transformers does.
    Raises ContainerError for two tensors of one name, and where transformers computes weights from several tensors.
    """
    state: dict[str, Any] = model.state_dict(keep_vars=True)
    with foreign(folder, what="names of weights"):
        renamed, rules = _renamed(model, list(tensors), state, folder)
    found: dict[str, Placed] = {}
    found |= _merged(model, {name: (renamed[name], rule) for name, rule in rules.items()}, tensors, state, folder)
    left_out = []
    for name, tensor in tensors.items():
        place = renamed[name]
        if name in rules:
            continue
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
    with foreign(folder, what="names of weights"):
        _set_float32(model)
        told = _known(model, left_out)
    held_now = model.state_dict(keep_vars=True)
    dtypes = {name: value.dtype for name, value in held_now.items() if isinstance(value, Tensor)}
    return Places(found, ties, tuple(missing), told, dtypes)


Rule = tuple[Any, str]
"""A converter of transformers, and the pattern of it that a name matches."""


def _merged(
    model: Any,
    computed: Mapping[str, tuple[str, Rule]],
    tensors: Mapping[str, Stored],
    state: Mapping[str, Any],
    folder: Path,
) -> dict[str, MergedTensor]:
    """Return the tensors of the model that are made of several; ``computed``: place and rule by name in the checkpoint.

    Those that lack some of theirs are left out. Raises ContainerError for packed ones.
    """
    by_place: dict[str, dict[str, list[str]]] = {}
    rules: dict[str, Any] = {}
    for name, (place, (rule, pattern)) in computed.items():
        if isinstance(tensors[name], PackedTensor):
            raise ContainerError(
                f"{folder}: transformers computes {place} from {name}, which is packed; octavo unpack comes first"
            )
        by_place.setdefault(place, {}).setdefault(pattern, []).append(name)
        rules[place] = rule
    merged: dict[str, MergedTensor] = {}
    for place, patterns in by_place.items():
        shape = tuple(state[place].shape)
        sources = {
            pattern: [(name, cast("Tensor", tensors[name])) for name in in_order(names)]
            for pattern, names in patterns.items()
        }
        elements = sum(tensor.numel() for parts in sources.values() for _, tensor in parts)
        if elements == math.prod(shape):
            merged[place] = MergedTensor(place, shape, sources, rules[place], model, folder)
    return merged


def _renamed(
    model: Any, names: Iterable[str], state: dict[str, Any], folder: Path
) -> tuple[dict[str, str], dict[str, Rule]]:
    """Return the name in the model of each tensor, by transformers' own rules, and the rules that merge some."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    rules = get_model_conversion_mapping(model)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    prefix = model.base_model_prefix or None
    by_pattern = {pattern: rule for rule in converters for pattern in rule.source_patterns}
    renamed: dict[str, str] = {}
    merging: dict[str, Rule] = {}
    for name in names:
        place, computed = rename_source_key(name, renamings, converters, prefix, state)
        if name in state and (computed is not None or place not in state):  # it has the model's name already
            place, computed = name, None
        if computed is not None and place in state and len(by_pattern[computed].target_patterns) == 1:
            merging[name] = by_pattern[computed], computed
        elif computed is not None:
            raise ContainerError(
                f"{folder}: transformers computes {place} from {name} and other tensors; load the model with it, then "
                "octavo.quantize_model, pack_model and save_model"
            )
        renamed[name] = place
    return renamed, merging


def _known(model: Any, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names without those that transformers leaves out in silence, such as masks of attention."""
    patterns = [re.compile(pattern) for pattern in model._keys_to_ignore_on_load_unexpected or ()]
    return tuple(name for name in names if not any(pattern.search(name) for pattern in patterns))


def _set_float32(model: Any) -> None:
    """Give parameters in half precision that transformers holds in float32 that dtype."""
    from transformers.core_model_loading import build_glob_alternation

    for dtype in (torch.float16, torch.bfloat16):
        if patterns := list(model._get_dtype_plan(dtype)):
            search = build_glob_alternation(patterns)[0].search
            for name, place in model.named_parameters():
                if place.dtype == dtype and search(name):
                    place.data = place.data.float()


def _same(a: Placed, b: Placed) -> bool:
    if isinstance(a, MergedTensor) or isinstance(b, MergedTensor):
        return a is b
    if isinstance(a, PackedTensor) or isinstance(b, PackedTensor):
        return isinstance(a, PackedTensor) and isinstance(b, PackedTensor) and a == b
    if a.is_meta or b.is_meta:  # stands for values that another reader decodes
        return a is b
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)


def _untie(model: nn.Module, name: str) -> None:
    path, _, last = name.rpartition(".")
    owner = model.get_submodule(path)
    if last in owner._parameters:
        held = owner._parameters[last]
        assert held is not None
        owner._parameters[last] = nn.Parameter(torch.empty_like(held), requires_grad=held.requires_grad)
