"""A gated linear recurrence: a state of one number a channel, whose decay the input chooses; no attention, no cache."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from octavo.lab.language.gpt.mixing_context import MixingContext
from octavo.lab.language.techniques import number, register


@dataclass(frozen=True, kw_only=True)
class GatedRecurrence:
    """``h_t = a_t h_{t-1} + sqrt(1 - a_t ** 2) (value x_t)``, channel by channel, and ``out(silu(gate x) * h)``.

    ``a_t = exp(-2 r sigmoid(decay x_t))`` with a learned rate r a channel: at first half-lives from 1 to ``longest``
    positions, evenly by their logarithm. Nothing non-linear stands between two states, so training scans all positions
    at once. Source: De et al. 2024, section 2.4, without the gate of the input.
    """

    longest: float = 512.0

    def __post_init__(self) -> None:
        """Check the field."""
        number(self, "longest", least=1, most=1e9)


@register("mixer", "gated_recurrence", GatedRecurrence, examples=(GatedRecurrence(),), lags=(0, 1, 7, 20))
class GatedRecurrenceMixer(nn.Module):
    """:class:`GatedRecurrence` as a mixer. Its state has as many numbers as the width, at any length."""

    keeps_documents = True
    reads_on = True
    takes_values = False
    rate_base: Tensor

    def __init__(self, config: GatedRecurrence, width: int) -> None:
        """Make the projections and the rates."""
        super().__init__()
        self.config = config
        self.value, self.gate = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.decay, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.rate = nn.Parameter(torch.empty(width))
        self.rules = {f"{name}.weight": "matrix" for name in ("value", "gate", "decay")}
        self.rules |= {"out.weight": "output", "rate": "zero"}
        half_lives = config.longest ** (torch.arange(width) / max(width - 1, 1))
        self.register_buffer("rate_base", math.log(2) / half_lives, persistent=False)

    def forward(self, x_BTD: Tensor, context: MixingContext) -> Tensor:
        """Return the mixed vectors ``[B, T, D]``; the scan is in float32 whatever the precision of the run."""
        keep_BTD, fresh_BTD = self._terms(x_BTD)
        if (told := context.documents_BT) is not None:
            begins_BT = functional.pad(told[:, 1:] != told[:, :-1], (1, 0))
            keep_BTD = keep_BTD.masked_fill(begins_BT[..., None], 0.0)
        return self._joined(scan(keep_BTD, fresh_BTD), x_BTD)

    def read_on(self, x_BSD: Tensor, rows: Any, context: MixingContext, most: int, back: int) -> tuple[Tensor, Any]:
        """Return the output of the next positions, ``[B, S, D]``, and the state after them, which forgets nothing."""
        keep_BSD, fresh_BSD = self._terms(x_BSD)
        numbers = context.documents_BT
        before = None if rows is None or numbers is None else rows["document"]
        if numbers is not None:
            begins_BS = numbers != torch.cat([numbers[:, :1] if before is None else before, numbers[:, :-1]], 1)
            keep_BSD = keep_BSD.masked_fill(begins_BS[..., None], 0.0)
        if rows is not None:
            fresh_BSD = torch.cat([fresh_BSD[:, :1] + keep_BSD[:, :1] * rows["state"], fresh_BSD[:, 1:]], 1)
        states_BSD = scan(keep_BSD, fresh_BSD)
        after = {"state": states_BSD[:, -1:], "document": None if numbers is None else numbers[:, -1:]}
        return self._joined(states_BSD, x_BSD), after

    def first_state(self, batch: int, device: torch.device) -> Any:
        """Return a state of zeros, of no document."""
        return {"state": torch.zeros(batch, self.out.in_features, device=device), "document": None}

    def step(self, x_BD: Tensor, state: Any, context: MixingContext) -> tuple[Tensor, Any]:
        """Return the output of the next position, and the state after it."""
        keep_BD, fresh_BD = self._terms(x_BD)
        told, before = context.documents_BT, state["document"]
        if told is not None and before is not None:
            keep_BD = keep_BD.masked_fill(told != before, 0.0)
        state_BD = keep_BD * state["state"] + fresh_BD
        return self._joined(state_BD, x_BD), {"state": state_BD, "document": told}

    def _terms(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return what a state is multiplied by and what is added to it, float32."""
        value, decay = self.value(x).float(), self.decay(x).float()
        log_keep = -2 * self.rate_base * self.rate.float().exp() * torch.sigmoid(decay)
        # 1 - a ** 2 by expm1: of a near 1 no digits are left otherwise.
        return log_keep.exp(), torch.sqrt(-torch.expm1(2 * log_keep)) * value

    def _joined(self, state: Tensor, x: Tensor) -> Tensor:
        gate = functional.silu(self.gate(x))
        return self.out(state.to(gate.dtype) * gate)


class _Scan(torch.autograd.Function):
    """The recurrence over positions, and backwards its own kind; states and factors alone are kept for it."""

    @staticmethod
    def forward(ctx: Any, keep_BTD: Tensor, fresh_BTD: Tensor) -> Tensor:
        """Return all states."""
        states_BTD = _doubled(keep_BTD, fresh_BTD)
        ctx.save_for_backward(keep_BTD, states_BTD)
        return states_BTD

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Return the gradients: that of a state is handed to the one before, times its factor."""
        keep_BTD, states_BTD = ctx.saved_tensors
        later_BTD = functional.pad(keep_BTD[:, 1:], (0, 0, 0, 1))
        given_BTD = _doubled(later_BTD.flip(1), grads[0].flip(1)).flip(1)
        return given_BTD * functional.pad(states_BTD[:, :-1], (0, 0, 1, 0)), given_BTD


def scan(keep_BTD: Tensor, fresh_BTD: Tensor) -> Tensor:
    """Return the states ``h_t = keep_t h_{t-1} + fresh_t`` from ``h_{-1} = 0`` on, ``[B, T, D]``."""
    states: Tensor = _Scan.apply(keep_BTD, fresh_BTD)
    return states


def _doubled(keep_BTD: Tensor, fresh_BTD: Tensor) -> Tensor:
    """Return the states by ``log2 T`` rounds, each of which joins twice as many positions (Hillis and Steele 1986)."""
    reach = 1
    while reach < fresh_BTD.shape[1]:
        back = (0, 0, reach, 0)
        fresh_BTD = fresh_BTD + keep_BTD * functional.pad(fresh_BTD[:, :-reach], back)
        keep_BTD = keep_BTD * functional.pad(keep_BTD[:, :-reach], back)
        reach *= 2
    return fresh_BTD
