"""Sparse experts of different architectures: a gate sends every token to one or a few mixers, which see no others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import SettingError
from octavo.lab.language.gpt.attention_mixer import Attention
from octavo.lab.language.gpt.expert_gates import LinearGate, OperatorGate
from octavo.lab.language.gpt.feed_forwards import GeluFeedForward, GeluMLP
from octavo.lab.language.gpt.fourier_operator import AFNO
from octavo.lab.language.gpt.gated_convolution import GatedConvolution
from octavo.lab.language.gpt.gated_recurrence import GatedRecurrence
from octavo.lab.language.gpt.mixing_context import MixingContext
from octavo.lab.language.gpt.routed_experts import RoutedExperts
from octavo.lab.language.techniques import choice, number, register, technique_of, whole

_KINDS = ("attention", "gated_recurrence", "afno", "gated_convolution", "mlp")


@dataclass(frozen=True, kw_only=True)
class SparseMixers:
    """``sum over chosen experts of p_e mixer_e``: each expert reads the tokens that were sent to it, in their order.

    To an expert these tokens are a sequence of their own, with positions of their own, so its work is that of the
    tokens it was sent. ``kinds``: ``attention`` with ``heads``, ``gated_recurrence``, ``afno`` with ``chunk``,
    ``gated_convolution``, or ``mlp``, which mixes nothing. The gate is a switch, linear in the token. ``chosen``,
    ``balance``, ``balance_weight``, ``z_weight``, ``bias_rate``: as :class:`MixtureOfExperts` has them.
    """

    kinds: tuple[str, ...] = _KINDS
    heads: int = 12
    chunk: int = 64
    chosen: int = 1
    balance: str = "loss"
    balance_weight: float = 0.01
    z_weight: float = 1e-3
    bias_rate: float = 1e-3

    def __post_init__(self) -> None:
        """Check every field."""
        if not self.kinds or any(kind not in _KINDS for kind in self.kinds):
            raise SettingError(f"kinds is {self.kinds!r}; accepted are {', '.join(_KINDS)}, one or more")
        whole(self, "heads", least=1)
        whole(self, "chunk", least=2)
        whole(self, "chosen", least=1, most=len(self.kinds))
        choice(self, "balance", ("loss", "bias", "none"))
        for name in ("balance_weight", "z_weight", "bias_rate"):
            number(self, name, least=0, most=1e3)


@dataclass(frozen=True, kw_only=True)
class GatedSparseMixers(SparseMixers):
    """:class:`SparseMixers` behind a DeepONet: ``rank`` products of the context's branch and the token's trunk."""

    rank: int = 4

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        whole(self, "rank", least=1, most=4096)


class PositionMLP(nn.Module):
    """An expert that mixes nothing: an MLP of each position."""

    keeps_documents = True
    takes_values = False

    def __init__(self, width: int) -> None:
        """Make the network."""
        super().__init__()
        self.network = GeluFeedForward(GeluMLP(), width)

    def forward(self, x_BTD: Tensor, context: MixingContext) -> Tensor:
        """Return the vectors ``[B, T, D]``."""
        fed_BTD: Tensor = self.network(x_BTD)
        return fed_BTD

    def first_state(self, batch: int, device: torch.device) -> Any:
        """Return no state."""
        return None

    def step(self, x_BD: Tensor, state: Any, context: MixingContext) -> tuple[Tensor, Any]:
        """Return the output of the next position, and no state."""
        return self.network(x_BD), None


class SparseMixer(RoutedExperts):
    """:class:`SparseMixers` as a mixer.

    Sequences of a batch send different numbers of tokens to an expert; the shorter ones are filled up behind their last
    token, where causal mixers see nothing of it.
    """

    takes_values = False

    def __init__(self, config: SparseMixers, width: int, gate: LinearGate | OperatorGate) -> None:
        """Make the experts."""
        super().__init__(config, len(config.kinds))
        self.gate = gate
        self.experts = nn.ModuleList([_expert(kind, config, width) for kind in config.kinds])

    @property
    def keeps_documents(self) -> bool:
        """Whether all experts do."""
        return all(bool(expert.keeps_documents) for expert in self.experts)

    def forward(self, x_BTD: Tensor, context: MixingContext) -> Tensor:
        """Return the mixed vectors ``[B, T, D]``."""
        shape = (*x_BTD.shape[:2], -1)
        routes = self.routes(self.gate(x_BTD, context).flatten(0, 1))
        chosen_BTk, weight_BTk = (part.view(shape) for part in routes)
        out_BTD = torch.zeros_like(x_BTD)
        for number_, expert in enumerate(self.experts):
            weight_BT = (weight_BTk * (chosen_BTk == number_)).sum(-1)
            sent_BT = (chosen_BTk == number_).any(-1)
            count_B1 = sent_BT.sum(1, keepdim=True)
            longest = int(count_B1.max())
            if not longest and not (self.training and torch.is_grad_enabled()):
                continue  # in training an expert without a token gets a gradient of zeros
            # Those that were sent first, in their order; what follows them has the weight 0.
            places_BK = (~sent_BT).to(torch.uint8).argsort(dim=1, stable=True)[:, : max(longest, 1)]
            order_K = torch.arange(places_BK.shape[1], device=x_BTD.device)
            weight_BK = weight_BT.gather(1, places_BK) * (order_K < count_B1)
            index_BKD = places_BK[..., None].expand(-1, -1, x_BTD.shape[2])
            documents = None if context.documents_BT is None else context.documents_BT.gather(1, places_BK)
            mixed_BKD = expert(x_BTD.gather(1, index_BKD), MixingContext(order_K, documents, context.window))
            out_BTD = out_BTD.scatter_add(1, index_BKD, (mixed_BKD * weight_BK[..., None]).to(out_BTD.dtype))
        return out_BTD

    def first_state(self, batch: int, device: torch.device) -> Any:
        """Return the gate's state, and for every sequence the states of the experts and their numbers of tokens."""
        rows = [[(expert.first_state(1, device), 0) for expert in self.experts] for _ in range(batch)]  # type: ignore[operator]
        return {"gate": self.gate.first_state(batch), "rows": rows}

    def step(self, x_BD: Tensor, state: Any, context: MixingContext) -> tuple[Tensor, Any]:
        """Return the output of the next position, and the states after it; experts that are not chosen stay."""
        scores_BE, gate = self.gate.step(x_BD, state["gate"], context)
        chosen_Bk, weight_Bk = self.routes(scores_BE)
        out_BD, rows = torch.zeros_like(x_BD), []
        for row, experts in enumerate(state["rows"]):
            after = list(experts)
            for expert, weight in zip(chosen_Bk[row].tolist(), weight_Bk[row], strict=True):
                before, count = after[expert]
                documents = None if context.documents_BT is None else context.documents_BT[row : row + 1]
                own = MixingContext(torch.tensor([count], device=x_BD.device), documents, context.window)
                part: Any = self.experts[expert]
                mixed_1D, then = part.step(x_BD[row : row + 1], before, own)
                out_BD[row] += (mixed_1D[0] * weight).to(out_BD.dtype)
                after[expert] = (then, count + 1)
            rows.append(after)
        return out_BD, {"gate": gate, "rows": rows}


def _expert(kind: str, config: SparseMixers, width: int) -> nn.Module:
    """Return an expert with the usual settings of its kind."""
    if kind == "mlp":
        return PositionMLP(width)
    usual = {
        "attention": Attention(heads=config.heads),
        "gated_recurrence": GatedRecurrence(),
        "afno": AFNO(chunk=config.chunk),
        "gated_convolution": GatedConvolution(),
    }[kind]
    expert: nn.Module = technique_of("mixer", usual).build(usual, width)
    return expert


@register(
    "mixer",
    "sparse_mixers",
    SparseMixers,
    examples=(
        SparseMixers(heads=4, chunk=2, chosen=3),
        SparseMixers(kinds=("attention", "mlp"), heads=4, balance="bias"),
    ),
    off=((SparseMixers(kinds=("attention",), heads=4, balance_weight=0.0, z_weight=0.0), Attention(heads=4)),),
    lags=(0,),
)
def sparse_mixers(config: SparseMixers, width: int) -> SparseMixer:
    """Return the mixer of a :class:`SparseMixers`."""
    return SparseMixer(config, width, LinearGate(width, len(config.kinds), reads_before=False))


@register(
    "mixer",
    "gated_sparse_mixers",
    GatedSparseMixers,
    examples=(GatedSparseMixers(heads=4, chunk=2, chosen=3, rank=2),),
    lags=(0, 1, 3, 12),
)
def gated_sparse_mixers(config: GatedSparseMixers, width: int) -> SparseMixer:
    """Return the mixer of a :class:`GatedSparseMixers`."""
    return SparseMixer(config, width, OperatorGate(width, len(config.kinds), config.rank))
