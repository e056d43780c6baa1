"""Removal of layers from a stack: the stack, the indices of later layers, and the count in the configuration."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

_COUNTS = ("num_hidden_layers", "n_layer", "num_layers")
_BY_SIDE = {
    "decoder": ("num_decoder_layers", "decoder_layers"),
    "encoder": ("num_encoder_layers", "encoder_layers"),
}


def remove_layers(model: nn.Module, stack: str, layers: Sequence[str]) -> list[str]:
    """Remove the layers with these paths from a stack, but never all of them; return the removed paths.

    Nothing is removed if the configuration has no field for the number of layers, or if layers compute with their
    index.
    """
    modules = model.get_submodule(stack)
    assert isinstance(modules, nn.ModuleList)
    gone = {int(path.rpartition(".")[2]) for path in layers}
    if len(gone) == len(modules):
        gone.discard(0)
    config = getattr(model, "config", None)
    if not gone or getattr(config, "scale_attn_by_inverse_layer_idx", False):
        return []
    remaining = [number for number in range(len(modules)) if number not in gone]
    if config is not None:
        name = _count_of(config, stack, len(modules))
        if name is None or not _describes(model, config, stack, name, remaining):
            return []
        _set(config, name, remaining, len(modules))
        owner = getattr(model.get_submodule(stack.rpartition(".")[0]), "config", config)
        if owner is not config and (own := _count_of(owner, "", len(modules))) is not None:
            _set(owner, own, remaining, len(modules))
    for number, before in enumerate(remaining):
        for module in modules[before].modules():
            if vars(module).get("layer_idx") == before:
                vars(module)["layer_idx"] = number
    parent = model.get_submodule(stack.rpartition(".")[0])
    setattr(parent, stack.rpartition(".")[2], nn.ModuleList(modules[number] for number in remaining))
    return [f"{stack}.{number}" for number in sorted(gone)]


def _count_of(config: Any, stack: str, count: int) -> str | None:
    """Return the field of a configuration that counts the layers of a stack."""
    sides = [name for part in stack.split(".") for name in _BY_SIDE.get(part, ())]
    return next((name for name in (*sides, *_COUNTS) if getattr(config, name, None) == count), None)


def _set(config: Any, name: str, remaining: Sequence[int], count: int) -> None:
    """Set the number of layers, and shorten lists that have a value for each layer."""
    setattr(config, name, len(remaining))
    for key, value in list(vars(config).items()):
        if isinstance(value, list) and len(value) == count and key not in ("architectures",):
            setattr(config, key, [value[number] for number in remaining])


def _describes(model: nn.Module, config: Any, stack: str, name: str, remaining: Sequence[int]) -> bool:
    """Whether a model built from the configuration with fewer layers differs only in the last layers of this stack."""
    try:
        trial = copy.deepcopy(config)
        before = {path for path, _ in skeleton_of(model, trial).named_parameters()}
        _set(trial, name, remaining, len(model.get_submodule(stack)))  # type: ignore[arg-type]
        after = {path for path, _ in skeleton_of(model, trial).named_parameters()}
    except Exception:  # classes of other libraries may raise anything for sizes that they do not support
        return False
    missing = {path for path in before if path.startswith(f"{stack}.")} - after
    return before - after == missing and {int(path[len(stack) + 1 :].split(".")[0]) for path in missing} == set(
        range(len(remaining), len(model.get_submodule(stack)))  # type: ignore[arg-type]
    )


def skeleton_of(model: nn.Module, config: Any) -> nn.Module:
    """Return a model of the same class with another configuration, without memory for its weights."""
    with torch.device("meta"):
        return type(model)(config)
