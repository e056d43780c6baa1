"""Sizes of a compacted model in its configuration: in the class's own fields if possible, otherwise in our entry."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from octavo.prune.removal import Counts
from octavo.prune.sizes import NUMBERS, OF_WEIGHTS, note_sizes, sizes_between, sizes_of
from octavo.prune.stack_depth import skeleton_of

_NEURONS = ("intermediate_size", "n_inner", "d_ff", "ffn_dim", "hidden_dim", "feed_forward", "feedforward")
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")


def configure(model: nn.Module, dense: nn.Module, counts: Iterable[Counts]) -> None:
    """Store the sizes of a compacted model in its configuration, or on the model if it has none.

    ``dense``: the model before, with as many layers. If every layer has the same sizes, fields of the configuration are
    set, provided that the class builds the same shapes from them.
    """
    config = getattr(model, "config", None)
    base = None if config is None else _try(model, config)
    if base is None:  # no configuration from which the model can be built
        former, new = sizes_of(model) or {}, sizes_between(dense, model) or {}
        note_sizes(model, {part: {**former.get(part, {}), **new.get(part, {})} for part in {**former, **new}} or None)
        return
    sizes = sizes_between(base, model)
    for fields in _fields(config, list(counts)):
        trial = _with(config, fields)
        built = None if trial is None else _try(model, trial)
        if built is not None and _is_cut(built, model) and _entries(sizes_between(built, model)) < _entries(sizes):
            sizes = sizes_between(built, model)
            if dataclasses.is_dataclass(config):
                model.config = config = trial
            else:
                for name, value in fields.items():
                    setattr(config, name, value)
    note_sizes(model, sizes)


def _is_cut(base: nn.Module, model: nn.Module) -> bool:
    """Whether no weight of a model is larger than in ``base``, and its modules have the same numeric attributes."""
    most = {name: tensor.shape for name, tensor in base.named_parameters(remove_duplicate=False)}
    shapes = [(tensor.shape, most[name]) for name, tensor in model.named_parameters(remove_duplicate=False)]
    if any(one > other for own, whole in shapes for one, other in zip(own, whole, strict=True)):
        return False
    for path, module in model.named_modules(remove_duplicate=False):
        reference, own = vars(base.get_submodule(path)), vars(module)
        for name in own.keys() & reference.keys() - {*NUMBERS, *OF_WEIGHTS, "training"}:
            if isinstance(own[name], int | float) and own[name] != reference[name]:  # such as the divisor of scores
                return False
    return True


def _entries(sizes: Mapping[str, Any] | None) -> int:
    return sum(len(part) for part in (sizes or {}).values())


def _fields(config: Any, counts: list[Counts]) -> list[dict[str, Any]]:
    """Return candidate fields of a configuration for the numbers of neurons and heads, if all layers have as many."""
    candidates = []
    neurons = {(one.before, one.after) for one in counts if one.kind == "neuron"}
    for before, after in neurons:
        candidates.append({name: after for name in _NEURONS if getattr(config, name, None) == before})
        candidates.append({"n_inner": after} if getattr(config, "n_inner", 0) is None else {})
    heads = {one for one in counts if one.kind == "head"}
    for one in heads if len(heads) == 1 else ():
        fields = {name: one.after for name in _HEADS if getattr(config, name, None) == one.before}
        width = getattr(config, "hidden_size", None)
        if getattr(config, "num_key_value_heads", None) == one.shared_before:
            fields["num_key_value_heads"] = one.shared_after
        if isinstance(width, int):
            fields["head_dim"] = getattr(config, "head_dim", None) or width // one.before
        candidates.append(fields)
    return [fields for fields in candidates if fields]


def _with(config: Any, fields: Mapping[str, Any]) -> Any:
    """Return a configuration with other fields, as it is when it has been written and read; None where it refuses."""
    try:
        if dataclasses.is_dataclass(config) and not hasattr(config, "to_dict"):
            return dataclasses.replace(config, **fields)  # type: ignore[type-var]
        trial = copy.deepcopy(config)
        for name, value in fields.items():
            setattr(trial, name, value)
        return type(config).from_dict(trial.to_dict())
    except Exception:  # classes of other libraries may raise anything for sizes that they do not support
        return None


def _try(model: nn.Module, config: Any) -> nn.Module | None:
    """Build the model's class from a configuration; None if the result lacks parameters of the model by name."""
    try:
        skeleton = skeleton_of(model, config)
    except Exception:
        return None
    names = {name for name, _ in skeleton.named_parameters(remove_duplicate=False)}
    own = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return skeleton if own <= names else None
