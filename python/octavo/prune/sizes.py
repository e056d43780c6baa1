"""The sizes of a compacted model: what differs from the model that its configuration alone describes.

Plain values, which ``config.json`` holds under :data:`KEY`, or the file of weights where there is no configuration::

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
"""Attributes of modules that count their heads and neurons."""
_PARTS = ("weights", "numbers", "heads")
OF_WEIGHTS = {"out_features": 0, "in_features": 1, "nf": 1, "nx": 0}
"""Sizes that layers keep beside their weight: the dimension of the weight that each is."""


def sizes_of(model: nn.Module) -> dict[str, Any] | None:
    """Return the sizes of a compacted model, None of any other."""
    held = getattr(getattr(model, "config", None), KEY, None) or vars(model).get(KEY)
    return held if isinstance(held, dict) else None


def note_sizes(model: nn.Module, sizes: Mapping[str, Any] | None) -> None:
    """Keep the sizes of a compacted model where what writes its configuration finds them."""
    config = getattr(model, "config", None)
    holder = config if hasattr(config, "save_pretrained") else model
    if sizes is not None:
        setattr(holder, KEY, dict(sizes))
    elif KEY in vars(holder):
        delattr(holder, KEY)


def sizes_between(dense: nn.Module, compact: nn.Module) -> dict[str, Any] | None:
    """Return the sizes that make a model as ``dense`` is into one as ``compact`` is; None where there is nothing to do.

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
        held, former = vars(module), vars(dense.get_submodule(path))
        changed = {name: held[name] for name in NUMBERS if name in held and held[name] != former.get(name)}
        if changed:
            numbers[path] = changed
        if isinstance(module, SelectedHeads):
            heads[path] = module.kept_heads.tolist()
    parts = {"weights": weights, "numbers": numbers, "heads": heads}
    return {name: part for name, part in parts.items() if part} or None


def shrink(model: nn.Module, sizes: Any, what: str) -> nn.Module:
    """Cut the parameters of a model to ``sizes`` and set its numbers; values are no longer of any meaning.

    Raises ContainerError, which begins with ``what``, for sizes that are not those of this model or that grow it.
    """
    if not isinstance(sizes, dict) or not all(
        name in _PARTS and isinstance(part, dict) for name, part in sizes.items()
    ):
        raise ContainerError(f"{what}: {KEY} is {shown(sizes)}; accepted are objects under {', '.join(_PARTS)}")
    parameters = dict(model.named_parameters(remove_duplicate=False))
    modules = dict(model.named_modules(remove_duplicate=False))
    sizes = _of_this(sizes, model, parameters)
    for name, shape in sizes.get("weights", {}).items():
        parameter = parameters.get(name)
        fits = parameter is not None and _is_smaller(shape, tuple(parameter.shape))
        if parameter is None or not fits:
            has = "no such weight" if parameter is None else f"the shape {tuple(parameter.shape)} at the most"
            raise ContainerError(
                f"{what}: {KEY}: {shown(name)} is {shown(shape)}; this {type(model).__name__} has {has}"
            )
        resize(parameter, parameter.data[tuple(slice(size) for size in shape)])
    for path, kept in sizes.get("heads", {}).items():
        module = modules.get(path)
        whole = selectable_heads(module)
        if module is None or whole is None or not _are_heads(kept, whole):
            raise ContainerError(f"{what}: {KEY}: the heads of {shown(path)} are {shown(kept)}, which no model has")
        select_heads(module, kept, whole)
    for path, numbers in sizes.get("numbers", {}).items():
        held = vars(modules[path]) if path in modules else {}
        for name, value in numbers.items() if isinstance(numbers, dict) else [("", numbers)]:
            most = held.get(name) if name in NUMBERS else None
            if type(value) is not int or type(most) is not int or not 1 <= value <= most:
                raise ContainerError(f"{what}: {KEY}: {shown(join(path, name))} is {shown(value)}, which no model has")
            setattr(modules[path], name, value)
    fit_layers(model)
    return model


def _of_this(sizes: dict[str, Any], model: nn.Module, parameters: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return sizes by the names in ``model``, where they are of the model inside it, or of one that it is inside of."""
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    names = [name for name in sizes.get("weights", {}) if name not in parameters]
    if prefix == "." or not names:
        return sizes
    if all(f"{prefix}{name}" in parameters for name in names):
        return {part: {f"{prefix}{name}": one for name, one in held.items()} for part, held in sizes.items()}
    if any(name.startswith(prefix) for name in names):
        inside = {part: [name for name in held if name.startswith(prefix)] for part, held in sizes.items()}
        return {
            part: {name.removeprefix(prefix): sizes[part][name] for name in names} for part, names in inside.items()
        }
    return sizes


def _is_smaller(shape: Any, whole: tuple[int, ...]) -> bool:
    is_shape = isinstance(shape, list) and all(type(size) is int for size in shape) and len(shape) == len(whole)
    return is_shape and all(1 <= size <= most for size, most in zip(shape, whole, strict=True))


def _are_heads(kept: Any, whole: int) -> bool:
    if not isinstance(kept, list) or not kept or not all(type(head) is int for head in kept):
        return False
    return kept == sorted(set(kept)) and kept[0] >= 0 and kept[-1] < whole


def resize(parameter: nn.Parameter, values: Tensor) -> None:
    """Give a parameter other values, of another size; whoever holds it holds the new ones."""
    parameter.data = values.contiguous() if values.is_meta else values.clone(memory_format=torch.contiguous_format)
    parameter.grad = None


def fit_layers(model: nn.Module) -> None:
    """Let every layer say the sizes that its weight has."""
    for module in model.modules():
        held = vars(module)
        weight = module._parameters.get("weight")
        if weight is not None and weight.ndim == 2:
            for name, dim in OF_WEIGHTS.items():
                if type(held.get(name)) is int:
                    held[name] = weight.shape[dim]


# --- attention whose scores have a bias that another layer makes for all heads ----------------------------------------


class SelectedHeads(nn.Module):
    """An attention of T5 with some of its heads: it takes its own of the bias that one layer makes for all.

    Stands before the class of the attention. ``kept_heads``: int64, the heads that it has among ``all_heads``.
    """

    kept_heads: Tensor
    all_heads: int

    def compute_bias(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the bias of the scores of the heads that are kept, ``[1, heads, T, S]``."""
        return super().compute_bias(*args, **kwargs)[:, self.kept_heads]  # type: ignore[misc]

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        position_bias: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Attend; take and return the bias of all heads.

        ``kwargs``: what else the class takes, under its own names; its cache is ``cache`` from transformers 5.24 on,
        ``past_key_values`` before.
        """
        whole = position_bias
        past: int | Tensor = 0
        cache = kwargs.get("cache")
        cache = kwargs.get("past_key_values") if cache is None else cache
        if whole is None and cache is not None:
            past = cache.get_seq_length(self.layer_idx)
            past = past.clone() if isinstance(past, Tensor) else past  # of a cache that counts in place
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
    """Return how many heads the attention of a T5 has in the bias of its scores; None of other modules."""
    if module is None or not hasattr(module, "compute_bias") or not hasattr(module, "has_relative_attention_bias"):
        return None
    whole = vars(module).get("all_heads", vars(module).get("n_heads"))
    return whole if type(whole) is int else None


def select_heads(module: nn.Module, kept: list[int], whole: int) -> None:
    """Let an attention take the ``kept`` heads of a bias for ``whole`` ones."""
    if not isinstance(module, SelectedHeads):
        module.__class__ = _selecting(type(module))
    module.register_buffer("kept_heads", torch.tensor(kept), persistent=False)
    vars(module)["all_heads"] = whole


_classes: dict[type, type] = {}


def _selecting(cls: type[nn.Module]) -> type[nn.Module]:
    if cls not in _classes:
        _classes[cls] = type(cls.__name__, (SelectedHeads, cls), {"__module__": cls.__module__})
    return _classes[cls]
