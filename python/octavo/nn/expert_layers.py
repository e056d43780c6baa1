"""Batched experts of transformers as layers: one linear layer for each expert and matrix.

transformers keeps the experts of a mixture in parameters ``[experts, out, in]``, or ``[experts, in, out]``, of a module
that its decorator ``use_experts_implementation`` marks. The names of the matrices and the marks tell all that there is
to know: whether gate and up are one matrix, whether matrices are transposed, biases, a norm behind the experts, and the
activation between the matrices, which is a method of the module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from octavo.nn.rewriting import Origin, Rewriting, bare_copy, linear_of, register_rewriting
from octavo.nn.sum_linear import SumLinear

_FIRST = ("gate_up_proj", "up_proj")
_LAST = "down_proj"
_MARKS = ("has_gate", "has_bias", "is_transposed", "has_post_expert_norm")  # of transformers' decorator


class ExpertLayers(nn.Module):
    """The experts of a mixture, each a module of linear layers: child ``3`` has ``gate_up_proj`` and ``down_proj``.

    Attributes are those of the module of transformers that it stands in for, whose activation it computes. Outputs have
    its bits in float32; in half precision sums run in the dtype of the input, which a few classes widen.
    """

    experts_class: Any  # a class of transformers, whose decorator gives it _apply_gate
    act_fn: nn.Module
    post_expert_norm: nn.Module
    has_gate: bool
    has_post_expert_norm: bool
    num_experts: int

    def forward(
        self,
        hidden_states: Tensor,
        top_k_index: Tensor | None = None,
        top_k_weights: Tensor | None = None,
        *,
        router_indices: Tensor | None = None,
        routing_weights: Tensor | None = None,
    ) -> Tensor:
        """Return the sum of the outputs of the experts that each token chose, by their weights.

        ``hidden_states``: ``[tokens, hidden]``. ``top_k_index``, ``top_k_weights``: ``[tokens, k]``, of some models
        under the other two names. Experts that no token chose are not called.
        """
        chosen = router_indices if top_k_index is None else top_k_index
        weights = routing_weights if top_k_weights is None else top_k_weights
        assert chosen is not None and weights is not None  # the model routes
        total = torch.zeros_like(hidden_states)
        if torch.compiler.is_exporting() or hidden_states.is_meta:
            return self._of_all(hidden_states, chosen, weights, total)
        by_place = chosen.T  # the order of tokens that transformers has: first choices, then second ones
        for number in self._numbers(chosen):
            place, token = torch.where(by_place == number)
            y = self._expert(number, hidden_states[token]) * weights[token, place, None]
            total.index_add_(0, token, y.to(total.dtype))
        return total

    def _numbers(self, chosen: Tensor) -> Iterable[int]:
        """Return the experts to call, in order: those that were chosen; all of them in a compiled program."""
        if torch.compiler.is_compiling():
            return range(self.num_experts)
        numbers: list[int] = chosen.unique().tolist()
        return [number for number in numbers if number < self.num_experts]  # above it, a token chose none

    def _expert(self, number: int, x: Tensor) -> Tensor:
        expert: Any = self._modules[str(number)]
        if self.has_gate:
            y = self.experts_class._apply_gate(self, expert.gate_up_proj(x))
        else:
            y = self.act_fn(expert.up_proj(x))
        y = expert.down_proj(y)
        return self.post_expert_norm(y) if self.has_post_expert_norm else y

    def _of_all(self, x: Tensor, chosen: Tensor, weights: Tensor, total: Tensor) -> Tensor:
        """Compute every expert for every token: the shapes of a traced program depend on no value."""
        for number in range(self.num_experts):
            share = torch.where(chosen == number, weights, 0).sum(-1, keepdim=True)
            total = total + (self._expert(number, x) * share).to(total.dtype)
        return total


class Expert(nn.Module):
    """The layers of one expert; :class:`ExpertLayers` calls them."""


def _matrices(module: nn.Module) -> tuple[str, str] | None:
    own = module._parameters
    first = [name for name in _FIRST if own.get(name) is not None]
    return (first[0], _LAST) if len(first) == 1 and own.get(_LAST) is not None else None


def _fits(module: nn.Module) -> bool:
    values = vars(module)
    names = _matrices(module)
    if names is None or not all(isinstance(values.get(mark), bool) for mark in _MARKS):
        return False
    if getattr(module, "_is_expert_parallel", False) or "forward" in values:
        return False
    if not hasattr(type(module).forward, "__wrapped__"):  # not the forward that the decorator wraps
        return False
    if (names[0] == "gate_up_proj") != values["has_gate"]:
        return False
    known = {*names, *(f"{name}_bias" for name in names if values["has_bias"])}
    own = {name: value for name, value in module._parameters.items() if value is not None}
    experts = values.get("num_experts")
    return (
        own.keys() == known
        and all(own[name].ndim == 3 and len(own[name]) == experts for name in names)
        and all(own[name].ndim == 2 and len(own[name]) == experts for name in own.keys() - {*names})
    )


def _origins(module: Any) -> dict[str, Origin]:
    origins: dict[str, Origin] = {}
    names = _matrices(module)
    assert names is not None  # it fits
    for name in names:
        count, *sizes = module._parameters[name].shape
        rows, columns = reversed(sizes) if module.is_transposed else sizes
        parts = tuple(f"{number}.{name}.weight" for number in range(count))
        origins[name] = Origin((count, *sizes), parts, (rows, columns), module.is_transposed)
        if module.has_bias:
            biases = tuple(f"{number}.{name}.bias" for number in range(count))
            origins[f"{name}_bias"] = Origin((count, rows), biases, (rows,))
    return origins


def _build(module: Any, parts: Mapping[str, nn.Parameter]) -> nn.Module:
    names = _matrices(module)
    assert names is not None  # it fits
    new: ExpertLayers = bare_copy(module, ExpertLayers, tuple(module._parameters))
    new.experts_class = type(module)
    for number in range(module.num_experts):
        expert = Expert()
        for name in names:
            weight, bias = parts[f"{number}.{name}.weight"], parts.get(f"{number}.{name}.bias")
            expert.add_module(name, linear_of(weight, bias, nn.Linear if bias is None else SumLinear))
        new.add_module(str(number), expert.train(module.training))
    return new


register_rewriting(Rewriting("experts", _fits, _origins, _build))
