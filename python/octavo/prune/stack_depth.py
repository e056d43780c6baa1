"""Taking layers out of a stack: the stack, the numbers of the layers that follow, and the configuration's count."""

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
    """Take the layers with these paths out of a stack, but never all; return the paths of those that went.

    None go where the model has a configuration that cannot say how many there are, or whose layers compute by number.
    """
    held = model.get_submodule(stack)
    assert isinstance(held, nn.ModuleList)
    gone = {int(path.rpartition(".")[2]) for path in layers}
    if len(gone) == len(held):
        gone.discard(0)
    config = getattr(model, "config", None)
    if not gone or getattr(config, "scale_attn_by_inverse_layer_idx", False):
        return []
    kept = [number for number in range(len(held)) if number not in gone]
    if config is not None:
        name = _count_of(config, stack, len(held))
        if name is None or not _describes(model, config, stack, name, kept):
            return []
        _set(config, name, kept, len(held))
        owner = getattr(model.get_submodule(stack.rpartition(".")[0]), "config", config)
        if owner is not config and (own := _count_of(owner, "", len(held))) is not None:
            _set(owner, own, kept, len(held))
    for number, before in enumerate(kept):
        for module in held[before].modules():
            if vars(module).get("layer_idx") == before:
                vars(module)["layer_idx"] = number
    parent = model.get_submodule(stack.rpartition(".")[0])
    setattr(parent, stack.rpartition(".")[2], nn.ModuleList(held[number] for number in kept))
    return [f"{stack}.{number}" for number in sorted(gone)]


def _count_of(config: Any, stack: str, count: int) -> str | None:
    """Return the field of a configuration that counts the layers of a stack."""
    sides = [name for part in stack.split(".") for name in _BY_SIDE.get(part, ())]
    return next((name for name in (*sides, *_COUNTS) if getattr(config, name, None) == count), None)


def _set(config: Any, name: str, kept: Sequence[int], count: int) -> None:
    """Write down how many layers there are, and cut lists that have a value for each."""
    setattr(config, name, len(kept))
    for key, value in list(vars(config).items()):
        if isinstance(value, list) and len(value) == count and key not in ("architectures",):
            setattr(config, key, [value[number] for number in kept])


def _describes(model: nn.Module, config: Any, stack: str, name: str, kept: Sequence[int]) -> bool:
    """Whether a model built from the configuration with fewer layers has them in this stack, and the rest as before."""
    try:
        trial = copy.deepcopy(config)
        before = {path for path, _ in skeleton_of(model, trial).named_parameters()}
        _set(trial, name, kept, len(model.get_submodule(stack)))  # type: ignore[arg-type]
        after = {path for path, _ in skeleton_of(model, trial).named_parameters()}
    except Exception:  # whatever a class of another library raises at sizes that it does not take
        return False
    missing = {path for path in before if path.startswith(f"{stack}.")} - after
    return before - after == missing and {int(path[len(stack) + 1 :].split(".")[0]) for path in missing} == set(
        range(len(kept), len(model.get_submodule(stack)))  # type: ignore[arg-type]
    )


def skeleton_of(model: nn.Module, config: Any) -> nn.Module:
    """Return a model of the same class with another configuration, without memory for its weights."""
    with torch.device("meta"):
        return type(model)(config)
