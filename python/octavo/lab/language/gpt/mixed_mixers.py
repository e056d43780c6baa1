"""Experts that are different mixers: every position weighs what each of them says by a DeepONet's gate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import SettingError
from octavo.lab.language.gpt.attention_mixer import Attention
from octavo.lab.language.gpt.expert_gates import OperatorGate
from octavo.lab.language.gpt.fourier_operator import AFNO
from octavo.lab.language.gpt.gated_convolution import GatedConvolution
from octavo.lab.language.gpt.gated_recurrence import GatedRecurrence
from octavo.lab.language.gpt.lag_kernel import LagKernel
from octavo.lab.language.gpt.mixing_context import MixingContext
from octavo.lab.language.techniques import register, technique_of, whole

_KINDS = ("attention", "gated_convolution", "gated_recurrence", "lag_kernel", "afno")


@dataclass(frozen=True, kw_only=True)
class MixedMixers:
    """``sum over experts of p_e(token, context) mixer_e(x)``: all run, none is left out; p is a softmax.

    ``kinds``: names of mixers with their usual settings; ``heads`` of attention; ``rank`` of the gate.
    """

    kinds: tuple[str, ...] = ("attention", "gated_convolution", "gated_recurrence")
    heads: int = 12
    rank: int = 4

    def __post_init__(self) -> None:
        """Check every field."""
        if not self.kinds or any(kind not in _KINDS for kind in self.kinds):
            raise SettingError(f"kinds is {self.kinds!r}; accepted are {', '.join(_KINDS)}, one or more")
        whole(self, "heads", least=1)
        whole(self, "rank", least=1, most=4096)

    def experts(self) -> list[Any]:
        """Return the configurations of the experts."""
        made = {
            "attention": Attention(heads=self.heads),
            "gated_convolution": GatedConvolution(),
            "gated_recurrence": GatedRecurrence(),
            "lag_kernel": LagKernel(),
            "afno": AFNO(),
        }
        return [made[kind] for kind in self.kinds]


@register(
    "mixer",
    "mixed_mixers",
    MixedMixers,
    examples=(MixedMixers(heads=4, rank=2), MixedMixers(heads=4, kinds=("lag_kernel", "attention"))),
    lags=(0, 1, 3, 12),
)
class MixedMixer(nn.Module):
    """:class:`MixedMixers` as a mixer."""

    takes_values = False

    def __init__(self, config: MixedMixers, width: int) -> None:
        """Make the experts and the gate."""
        super().__init__()
        self.config = config
        self.experts = nn.ModuleList([technique_of("mixer", one).build(one, width) for one in config.experts()])
        self.gate = OperatorGate(width, len(self.experts), config.rank)

    @property
    def keeps_documents(self) -> bool:
        """Whether all experts do."""
        return all(bool(expert.keeps_documents) for expert in self.experts)

    def forward(self, x_BTD: Tensor, context: MixingContext) -> Tensor:
        """Return the mixed vectors ``[B, T, D]``."""
        return self._weighed(self.gate(x_BTD, context), [expert(x_BTD, context) for expert in self.experts])

    def first_state(self, batch: int, device: torch.device) -> Any:
        """Return the states of experts and gate."""
        experts: list[Any] = [expert.first_state(batch, device) for expert in self.experts]  # type: ignore[operator]
        return {"gate": self.gate.first_state(batch), "experts": experts}

    def step(self, x_BD: Tensor, state: Any, context: MixingContext) -> tuple[Tensor, Any]:
        """Return the output of the next position, and the states after it."""
        scores_BE, gate = self.gate.step(x_BD, state["gate"], context)
        found = [
            expert.step(x_BD, held, context)  # type: ignore[operator]
            for expert, held in zip(self.experts, state["experts"], strict=True)
        ]
        mixed_BD = self._weighed(scores_BE, [out for out, _ in found])
        return mixed_BD, {"gate": gate, "experts": [held for _, held in found]}

    def _weighed(self, scores: Tensor, outputs: list[Tensor]) -> Tensor:
        shares = scores.softmax(-1).to(outputs[0].dtype)
        return (torch.stack(outputs, -1) * shares[..., None, :]).sum(-1)
