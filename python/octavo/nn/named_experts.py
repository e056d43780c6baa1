"""Experts of three models that transformers' decorator does not mark, known by the names of their classes.

JetMoE multiplies rows that come sorted by expert; Llama 4 gives every expert as many rows; DBRX keeps matrices of all
experts below each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from octavo.nn.expert_layers import Expert, ExpertLayers
from octavo.nn.rewriting import Origin, Rewriting, bare_copy, linear_of, register_rewriting


def _is_of(module: nn.Module, name: str) -> bool:
    kind = type(module)
    return f"{kind.__module__}.{kind.__qualname__}" == f"transformers.models.{name}" and "forward" not in vars(module)


# --- JetMoE -----------------------------------------------------------------------------------------------------------


class SortedExperts(nn.Module):
    """One linear layer for each expert, whose rows come one after another; ``experts.3`` is a child."""

    experts: nn.ModuleList

    def forward(self, inputs: Tensor, expert_size: Sequence[int]) -> Tensor:
        """Return the rows multiplied: ``[rows, in]`` to ``[rows, out]``; ``expert_size``: rows of each expert."""
        parts = inputs.split(expert_size, dim=0)
        each = torch.compiler.is_compiling()  # a compiled program reads no number of rows
        called = [layer(x) for layer, x in zip(self.experts, parts, strict=True) if each or len(x)]
        return torch.cat(called) if called else self.experts[0](inputs)


def _sorted_origins(module: Any) -> dict[str, Origin]:
    count, rows, columns = module.weight.shape
    return {
        "weight": Origin((count, rows, columns), tuple(f"experts.{n}.weight" for n in range(count)), (rows, columns))
    }


def _sorted(module: nn.Module, parts: Mapping[str, nn.Parameter]) -> nn.Module:
    new: SortedExperts = bare_copy(module, SortedExperts, ("weight",))
    new.experts = nn.ModuleList(linear_of(weight) for weight in parts.values()).train(module.training)
    return new


register_rewriting(
    Rewriting(
        "sorted experts",
        lambda module: _is_of(module, "jetmoe.modeling_jetmoe.JetMoeParallelExperts"),
        _sorted_origins,
        _sorted,
    )
)


# --- Llama 4 ----------------------------------------------------------------------------------------------------------


class EvenExperts(nn.Module):
    """Experts that all get the same number of rows; child ``3`` has ``gate_up_proj`` and ``down_proj``."""

    act_fn: nn.Module
    num_experts: int

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return the outputs: ``[experts * rows, hidden]``, those of one expert after the other."""
        parts = hidden_states.view(self.num_experts, -1, hidden_states.shape[-1])
        return torch.cat([self._expert(number, x) for number, x in enumerate(parts)])

    def _expert(self, number: int, x: Tensor) -> Tensor:
        expert: Any = self._modules[str(number)]
        gate, up = expert.gate_up_proj(x).chunk(2, dim=-1)
        y: Tensor = expert.down_proj(up * self.act_fn(gate))
        return y


def _even_origins(module: Any) -> dict[str, Origin]:
    origins = {}
    for name in ("gate_up_proj", "down_proj"):
        count, columns, rows = module._parameters[name].shape
        parts = tuple(f"{number}.{name}.weight" for number in range(count))
        origins[name] = Origin((count, columns, rows), parts, (rows, columns), is_turned=True)
    return origins


def _even(module: nn.Module, parts: Mapping[str, nn.Parameter]) -> nn.Module:
    return _with_experts(bare_copy(module, EvenExperts, ("gate_up_proj", "down_proj")), parts)


def _with_experts(new: nn.Module, parts: Mapping[str, nn.Parameter]) -> nn.Module:
    """Give a module an expert for each number, with the layers that ``parts`` are of: ``3.down_proj.weight``."""
    for part, weight in parts.items():
        number, name, _ = part.split(".")
        if number not in new._modules:
            new.add_module(number, Expert().train(new.training))
        new.get_submodule(number).add_module(name, linear_of(weight).train(new.training))
    return new


register_rewriting(
    Rewriting(
        "even experts",
        lambda module: _is_of(module, "llama4.modeling_llama4.Llama4TextExperts"),
        _even_origins,
        _even,
    )
)


# --- DBRX -------------------------------------------------------------------------------------------------------------


class GatedExperts(ExpertLayers):
    """Experts of gate ``w1``, up ``v1`` and down ``w2``, as DBRX names them; routed as :class:`ExpertLayers` does."""

    activation_fn: nn.Module
    hidden_size: int

    def forward(
        self,
        hidden_states: Tensor,
        top_k_index: Tensor | None = None,
        top_k_weights: Tensor | None = None,
        **named: Tensor | None,
    ) -> Tensor:
        """Return the sum of the experts' outputs: ``[batch, positions, hidden]``."""
        total = super().forward(hidden_states.reshape(-1, self.hidden_size), top_k_index, top_k_weights, **named)
        return total.view(len(hidden_states), -1, self.hidden_size)

    def _expert(self, number: int, x: Tensor) -> Tensor:
        expert: Any = self._modules[str(number)]
        y: Tensor = expert.w2(self.activation_fn(expert.w1(x)) * expert.v1(x))
        return y


def _gated_origins(module: Any) -> dict[str, Origin]:
    count, inner, hidden = module.num_experts, module.ffn_hidden_size, module.hidden_size
    origins = {}
    for name in ("w1", "v1", "w2"):
        parts = tuple(f"{number}.{name}.weight" for number in range(count))
        turned = name == "w2"
        shape = (hidden, inner) if turned else (inner, hidden)
        origins[f"mlp.{name}"] = Origin((count * inner, hidden), parts, shape, turned)
    return origins


def _gated(module: Any, parts: Mapping[str, nn.Parameter]) -> nn.Module:
    new = bare_copy(module, GatedExperts, ("mlp",))
    new.activation_fn = module.mlp.activation_fn
    return _with_experts(new, parts)


register_rewriting(
    Rewriting("gated experts", lambda module: _is_of(module, "dbrx.modeling_dbrx.DbrxExperts"), _gated_origins, _gated)
)
