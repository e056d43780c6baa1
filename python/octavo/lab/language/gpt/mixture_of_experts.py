"""Feed-forward networks of several experts, of which a gate chooses a few for every token; none is ever dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import SettingError
from octavo.lab.language.gpt.expert_gates import LinearGate, OperatorGate
from octavo.lab.language.gpt.feed_forwards import GeluFeedForward, GeluMLP
from octavo.lab.language.gpt.mixing_context import MixingContext
from octavo.lab.language.gpt.routed_experts import RoutedExperts
from octavo.lab.language.techniques import choice, number, register, whole


@dataclass(frozen=True, kw_only=True)
class MixtureOfExperts:
    """``sum over chosen experts of p_e f_e(x)``: each an MLP of ``factor`` times the width, p a softmax of scores.

    ``chosen``: experts of a token; one alone is weighted by its own probability (Fedus et al. 2022), several by theirs
    over their sum. ``route``: scores are of the ``token``, or of its ``context``, the mean of the positions before it.
    ``balance``, what keeps experts busy: ``loss``, ``balance_weight`` times ``experts sum of f_e P_e``, the shares of
    tokens and of probability, which is 1 where they are even; ``bias``, a number a score that only the choice sees,
    which every training pass moves by ``bias_rate`` towards even loads (Wang et al. 2024); or ``none``. ``z_weight``:
    of the squared logarithm of the scores' sum, whatever the balance. Losses are added in training, never in
    evaluation.
    """

    experts: int = 8
    chosen: int = 1
    factor: float = 4.0
    route: str = "token"
    balance: str = "loss"
    balance_weight: float = 0.01
    z_weight: float = 1e-3
    bias_rate: float = 1e-3

    def __post_init__(self) -> None:
        """Check every field."""
        whole(self, "experts", least=1, most=4096)
        whole(self, "chosen", least=1, most=4096)
        if self.chosen > self.experts:
            raise SettingError(f"chosen is {self.chosen}; accepted are 1 to experts, {self.experts}")
        number(self, "factor", least=1e-3, most=1024)
        choice(self, "route", ("token", "context"))
        choice(self, "balance", ("loss", "bias", "none"))
        for name in ("balance_weight", "z_weight", "bias_rate"):
            number(self, name, least=0, most=1e3)


@dataclass(frozen=True, kw_only=True)
class GatedExperts(MixtureOfExperts):
    """:class:`MixtureOfExperts` whose gate is a DeepONet: ``rank`` products of the context's and the token's.

    ``route`` is no field of choice here: both take part.
    """

    rank: int = 4

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        whole(self, "rank", least=1, most=4096)
        if self.route != "token":
            raise SettingError(f"route is {self.route!r}; accepted is 'token': this gate reads token and context")


class MixtureFeedForward(RoutedExperts):
    """A mixture as a network of a block. It reads the context, and decodes by :meth:`step`."""

    reads_context = True

    def __init__(self, config: MixtureOfExperts, width: int, gate: LinearGate | OperatorGate) -> None:
        """Make the experts."""
        super().__init__(config, config.experts)
        self.gate = gate
        self.experts = nn.ModuleList(
            [GeluFeedForward(GeluMLP(factor=config.factor), width) for _ in range(config.experts)]
        )

    def forward(self, x_BTD: Tensor, context: MixingContext) -> Tensor:
        """Return ``[B, T, D]``."""
        return self._mixed(x_BTD.flatten(0, 1), self.gate(x_BTD, context).flatten(0, 1)).view_as(x_BTD)

    def first_state(self, batch: int, device: torch.device) -> Any:
        """Return the gate's state before the first position."""
        return self.gate.first_state(batch)

    def step(self, x_BD: Tensor, state: Any, context: MixingContext) -> tuple[Tensor, Any]:
        """Return the output of the next position, and the state after it."""
        scores_BE, state = self.gate.step(x_BD, state, context)
        return self._mixed(x_BD, scores_BE), state

    def _mixed(self, x_ND: Tensor, scores_NE: Tensor) -> Tensor:
        chosen_Nk, weight_Nk = self.routes(scores_NE)
        training = self.training and torch.is_grad_enabled()
        out_ND = torch.zeros_like(x_ND)
        for number_, expert in enumerate(self.experts):
            rows_M, place_M = (chosen_Nk == number_).nonzero(as_tuple=True)
            if not len(rows_M) and not training:
                continue  # in training an expert without a token gets a gradient of zeros, as every parameter has one
            told_MD = expert(x_ND[rows_M]) * weight_Nk[rows_M, place_M, None]
            out_ND = out_ND.index_add(0, rows_M, told_MD.to(out_ND.dtype))
        return out_ND


@register(
    "ffn",
    "mixture_of_experts",
    MixtureOfExperts,
    examples=(
        MixtureOfExperts(experts=3, factor=1.0),
        MixtureOfExperts(experts=3, chosen=2, factor=1.0, route="context", balance="bias"),
    ),
    off=((MixtureOfExperts(experts=1, balance_weight=0.0, z_weight=0.0), GeluMLP()),),
)
def mixture_of_experts(config: MixtureOfExperts, width: int) -> MixtureFeedForward:
    """Return the network of a :class:`MixtureOfExperts`."""
    return MixtureFeedForward(config, width, LinearGate(width, config.experts, reads_before=config.route == "context"))


@register(
    "ffn",
    "gated_experts",
    GatedExperts,
    examples=(GatedExperts(experts=3, chosen=2, factor=1.0, rank=2),),
    off=((GatedExperts(experts=1, balance_weight=0.0, z_weight=0.0), GeluMLP()),),
)
def gated_experts(config: GatedExperts, width: int) -> MixtureFeedForward:
    """Return the network of a :class:`GatedExperts`."""
    return MixtureFeedForward(config, width, OperatorGate(width, config.experts, config.rank))
