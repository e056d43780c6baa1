"""Further tokens from the same head: the hidden state of a position is turned into that of a horizon by a vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from octavo.lab.language.gpt.multi_token import further_targets
from octavo.lab.language.gpt.next_token import Batch, NextToken, Objective, trained_loss
from octavo.lab.language.techniques import number, register, whole


@dataclass(frozen=True, kw_only=True)
class OperatorHorizons:
    """The scores of the token ``j`` positions on are the head's for ``h * tau_j``; ``tau_1`` is 1, the plain model.

    A DeepONet of the horizon: its branch is the hidden state, its trunk a learned vector a horizon, so that a further
    token costs as many weights as the width. ``ahead``: horizons, the plain next token included. ``weight`` of the mean
    loss of the further ones.
    """

    ahead: int = 3
    weight: float = 0.3

    def __post_init__(self) -> None:
        """Check every field."""
        whole(self, "ahead", least=1, most=64)
        number(self, "weight", least=0, most=1e3)


@register("objective", "operator_horizons", OperatorHorizons, examples=(OperatorHorizons(),),
          off=((OperatorHorizons(ahead=1), NextToken()),))  # fmt: skip
class OperatorHorizonsObjective(Objective):
    """:class:`OperatorHorizons` as an objective. Nothing of it is left in the model that is evaluated."""

    def __init__(self, config: OperatorHorizons, model: Any) -> None:
        """Make the vectors of the further horizons, which begin as ones."""
        super().__init__()
        self.config, self.end_of_text = config, model.end_of_text
        if config.ahead > 1:
            self.tau_JD = nn.Parameter(torch.empty(config.ahead - 1, model.width))
            self.rules = {"tau_JD": "one"}

    def loss(self, model: Any, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum, with that of the further horizons weighted, and its parts."""
        hidden_BTD = model.hidden(batch.ids_BT, window=batch.window)
        total, parts = trained_loss(model.head, hidden_BTD, batch.targets_BT)
        if self.config.ahead == 1:
            return total, parts
        more = torch.zeros_like(total)
        for further, tau_D in enumerate(self.tau_JD, 1):
            targets_BT = further_targets(batch.targets_BT, further, self.end_of_text)
            more = more + trained_loss(model.head, hidden_BTD * tau_D, targets_BT, watch=False)[0]
        return total + self.config.weight / len(self.tau_JD) * more, {**parts, "further": more.detach()}
