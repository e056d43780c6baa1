"""The sizes of a compacted model: its differences from the model that its configuration alone describes.

Plain values, stored in ``config.json`` under :data:`KEY`, or in the file of weights if there is no configuration::

    {"weights": {"encoder.0.attention.query.weight": [64, 128], ...},
     "numbers": {"encoder.0.attention": {"heads": 2}},
     "heads": {"encoder.block.0.layer.0.SelfAttention": [0, 3]}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import ContainerError
from octavo.recipe.sites import join
from octavo.storage.reading import shown

KEY = "octavo_sizes"
NUMBERS = (
    "num_attention_heads", "num_heads", "n_heads", "n_head", "heads", "nhead", "num_key_value_heads",
    "num_key_value_groups", "all_head_size", "inner_dim", "split_size", "intermediate_size",
)  # fmt: skip
"""Attributes of modules with their numbers of heads and neurons."""
_PARTS = ("weights", "numbers", "heads")
OF_WEIGHTS = {"out_features": 0, "in_features": 1, "nf": 1, "nx": 0}
"""Size attributes of layers, with the dimension of the weight that each describes."""


def sizes_of(model: nn.Module) -> dict[str, Any] | None:
    """Return the sizes of a compacted model, None for other models."""
    sizes = getattr(getattr(model, "config", None), KEY, None) or vars(model).get(KEY)
    return sizes if isinstance(sizes, dict) else None


def note_sizes(model: nn.Module, sizes: Mapping[str, Any] | None) -> None:
    """Store the sizes of a compacted model in its configuration if that is saved, otherwise on the model."""
    config = getattr(model, "config", None)
    holder = config if hasattr(config, "save_pretrained") else model
    if sizes is not None:
        setattr(holder, KEY, dict(sizes))
    elif KEY in vars(holder):
        delattr(holder, KEY)


def sizes_between(dense: nn.Module, compact: nn.Module) -> dict[str, Any] | None:
    """Return the sizes that turn a model like ``dense`` into one like ``compact``; None for equal sizes.

    Both have the same modules and parameters by name.
    """
    before = {name: tuple(tensor.shape) for name, tensor in dense.named_parameters(remove_duplicate=False)}
    weights = {
        name: list(tensor.shape)
        for name, tensor in compact.named_parameters(remove_duplicate=False)
        if tuple(tensor.shape) != before[name]
    }
    numbers: dict[str, dict[str, int]] = {}
    heads: dict[str, list[int]] = {}
    for path, module in compact.named_modules(remove_duplicate=False):
        attributes, former = vars(module), vars(dense.get_submodule(path))
        changed = {
            name: attributes[name] for name in NUMBERS if name in attributes and attributes[name] != former.get(name)
        }
        if changed:
            numbers[path] = changed
        if isinstance(module, SelectedHeads):
            heads[path] = module.kept_heads.tolist()
    parts = {"weights": weights, "numbers": numbers, "heads": heads}
    return {name: part for name, part in parts.items() if part} or None


def shrink(model: nn.Module, sizes: Any, label: str) -> nn.Module:
    """Cut the parameters of a model to ``sizes`` and set its numbers; the values become meaningless.

    Raises ContainerError, beginning with ``label``, for sizes that do not belong to this model or enlarge it.
    """
    if not isinstance(sizes, dict) or not all(
        name in _PARTS and isinstance(part, dict) for name, part in sizes.items()
    ):
        raise ContainerError(f"{label}: {KEY} is {shown(sizes)}; accepted are objects under {', '.join(_PARTS)}")
    parameters = dict(model.named_parameters(remove_duplicate=False))
    modules = dict(model.named_modules(remove_duplicate=False))
    sizes = _of_this(sizes, model, parameters)
    for name, shape in sizes.get("weights", {}).items():
        parameter = parameters.get(name)
        fits = parameter is not None and _is_smaller(shape, tuple(parameter.shape))
        if parameter is None or not fits:
            has = "no such weight" if parameter is None else f"the shape {tuple(parameter.shape)} at the most"
            raise ContainerError(
                f"{label}: {KEY}: {shown(name)} is {shown(shape)}; this {type(model).__name__} has {has}"
            )
        resize(parameter, parameter.data[tuple(slice(size) for size in shape)])
    for path, heads in sizes.get("heads", {}).items():
        module = modules.get(path)
        whole = selectable_heads(module)
        if module is None or whole is None or not _are_heads(heads, whole):
            raise ContainerError(f"{label}: {KEY}: the heads of {shown(path)} are {shown(heads)}, which no model has")
        select_heads(module, heads, whole)
    for path, numbers in sizes.get("numbers", {}).items():
        attributes = vars(modules[path]) if path in modules else {}
        for name, value in numbers.items() if isinstance(numbers, dict) else [("", numbers)]:
            most = attributes.get(name) if name in NUMBERS else None
            if type(value) is not int or type(most) is not int or not 1 <= value <= most:
                raise ContainerError(f"{label}: {KEY}: {shown(join(path, name))} is {shown(value)}, which no model has")
            setattr(modules[path], name, value)
    fit_layers(model)
    return model


def _of_this(sizes: dict[str, Any], model: nn.Module, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
    """Translate sizes to the names of ``model``, if they are of its base model, or of a model that contains it."""
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    names = [name for name in sizes.get("weights", {}) if name not in parameters]
    if prefix == "." or not names:
        return sizes
    if all(f"{prefix}{name}" in parameters for name in names):
        return {part: {f"{prefix}{name}": one for name, one in entries.items()} for part, entries in sizes.items()}
    if any(name.startswith(prefix) for name in names):
        inside = {part: [name for name in entries if name.startswith(prefix)] for part, entries in sizes.items()}
        return {
            part: {name.removeprefix(prefix): sizes[part][name] for name in names} for part, names in inside.items()
        }
    return sizes


def _is_smaller(shape: Any, whole: tuple[int, ...]) -> bool:
    is_shape = isinstance(shape, list) and all(type(size) is int for size in shape) and len(shape) == len(whole)
    return is_shape and all(1 <= size <= most for size, most in zip(shape, whole, strict=True))


def _are_heads(heads: Any, whole: int) -> bool:
    if not isinstance(heads, list) or not heads or not all(type(head) is int for head in heads):
        return False
    return heads == sorted(set(heads)) and heads[0] >= 0 and heads[-1] < whole


def resize(parameter: nn.Parameter, values: Tensor) -> None:
    """Replace the values of a parameter by values of another size, in place, so that all references see them."""
    parameter.data = values.contiguous() if values.is_meta else values.clone(memory_format=torch.contiguous_format)
    parameter.grad = None


def fit_layers(model: nn.Module) -> None:
    """Update the size attributes of every layer from its weight."""
    for module in model.modules():
        attributes = vars(module)
        weight = module._parameters.get("weight")
        if weight is not None and weight.ndim == 2:
            for name, dim in OF_WEIGHTS.items():
                if type(attributes.get(name)) is int:
                    attributes[name] = weight.shape[dim]


# --- attention whose scores have a bias that another layer computes for all heads -------------------------------------


class SelectedHeads(nn.Module):
    """T5's attention with a subset of its heads, which it selects from the bias that one layer computes for all heads.

    A mixin before the class of the attention. ``kept_heads``: int64, its heads among ``all_heads``.
    """

    kept_heads: Tensor
    all_heads: int

    def compute_bias(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the bias of the scores of the remaining heads, ``[1, heads, T, S]``."""
        return super().compute_bias(*args, **kwargs)[:, self.kept_heads]  # type: ignore[misc]

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        position_bias: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Attend; the bias is that of all heads, as argument and as result.

        ``kwargs``: other arguments of the class; its cache is ``cache`` from transformers 5.24 on, ``past_key_values``
        before.
        """
        whole = position_bias
        past: int | Tensor = 0
        cache = kwargs.get("cache")
        cache = kwargs.get("past_key_values") if cache is None else cache
        if whole is None and cache is not None:
            past = cache.get_seq_length(self.layer_idx)
            past = past.clone() if isinstance(past, Tensor) else past  # the cache counts in place
        out, own, *rest = super().forward(
            hidden_states,
            mask=mask,
            key_value_states=key_value_states,
            position_bias=None if whole is None else whole[:, self.kept_heads],
            **kwargs,
        )
        if whole is None and self.has_relative_attention_bias:
            whole = super().compute_bias(own.shape[2], own.shape[3], device=own.device, past_seen_tokens=past)  # type: ignore[misc]
        elif whole is None:
            whole = own.new_zeros(1, self.all_heads, *own.shape[2:])
        return (out, whole, *rest)


def selectable_heads(module: nn.Module | None) -> int | None:
    """Return the number of heads in the score bias of a T5 attention; None for other modules."""
    if module is None or not hasattr(module, "compute_bias") or not hasattr(module, "has_relative_attention_bias"):
        return None
    whole = vars(module).get("all_heads", vars(module).get("n_heads"))
    return whole if type(whole) is int else None


def select_heads(module: nn.Module, heads: list[int], whole: int) -> None:
    """Make an attention select ``heads`` of a bias for ``whole`` heads."""
    if not isinstance(module, SelectedHeads):
        module.__class__ = _selecting(type(module))
    module.register_buffer("kept_heads", torch.tensor(heads), persistent=False)
    vars(module)["all_heads"] = whole


_classes: dict[type, type] = {}


def _selecting(cls: type[nn.Module]) -> type[nn.Module]:
    if cls not in _classes:
        _classes[cls] = type(cls.__name__, (SelectedHeads, cls), {"__module__": cls.__module__})
    return _classes[cls]
