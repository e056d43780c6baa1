"""The choice of experts by a gate, what keeps all of them busy, and the loss that training adds for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class RoutedExperts(nn.Module):
    """Experts of which a gate chooses a few for every token.

    ``auxiliary``: the loss a token of the training pass that :meth:`begin_pass` began, which the model adds to what it
    is trained on. ``load_E``: choices of each expert since the bias was moved. ``gate`` gives the scores.
    """

    gate: Any
    offset_E: Tensor
    load_E: Tensor

    def __init__(self, config: Any, experts: int) -> None:
        """Keep the configuration, which has ``chosen``, ``balance``, and the weights of both losses."""
        super().__init__()
        self.config = config
        self.auxiliary: Tensor | None = None
        self._is_awaited = False
        if config.balance == "bias":
            self.register_buffer("offset_E", torch.zeros(experts))
            self.register_buffer("load_E", torch.zeros(experts))

    def choose(self, shares_NE: Tensor) -> Tensor:
        """Return the experts of each row of probabilities, ``[N, chosen]``; of equal ones the first."""
        if self.config.balance == "bias":
            shares_NE = shares_NE + self.offset_E
        return shares_NE.sort(dim=-1, descending=True, stable=True).indices[:, : self.config.chosen]

    def begin_pass(self) -> None:
        """Move the bias towards even loads, and await the loss of routing. Once a training pass."""
        self.auxiliary, self._is_awaited = None, True
        if self.config.balance == "bias" and bool(self.load_E.any()):
            self.offset_E += self.config.bias_rate * torch.sign(self.load_E.mean() - self.load_E)
            self.load_E.zero_()

    def end_pass(self) -> Tensor | None:
        """Return the loss of routing of the pass, None where the block was left out of it."""
        loss, self.auxiliary, self._is_awaited = self.auxiliary, None, False
        return loss

    def routes(self, scores_NE: Tensor) -> tuple[Tensor, Tensor]:
        """Return the experts of each row of scores, and the weights of what they say, ``[N, chosen]``.

        In training the loss of routing is computed on the way.
        """
        shares_NE = scores_NE.softmax(-1)
        chosen_Nk = self.choose(shares_NE)
        weight_Nk = shares_NE.gather(1, chosen_Nk)
        if self.config.chosen > 1:
            weight_Nk = weight_Nk / weight_Nk.sum(1, keepdim=True)
        if self.training and torch.is_grad_enabled():
            # Computed in any case: a pass that is repeated for its gradients must save what the first one saved.
            self._record(scores_NE, shares_NE, chosen_Nk)
        return chosen_Nk, weight_Nk

    def _record(self, scores_NE: Tensor, shares_NE: Tensor, chosen_Nk: Tensor) -> None:
        config = self.config
        loss = config.z_weight * scores_NE.logsumexp(-1).square().mean()
        if config.balance == "loss":
            loss = loss + config.balance_weight * balance_loss(shares_NE, chosen_Nk)
        if not self._is_awaited:
            return
        self.auxiliary = loss
        if config.balance == "bias":
            self.load_E += choices(chosen_Nk, shares_NE.shape[1])


def choices(chosen_Nk: Tensor, experts: int) -> Tensor:
    """Return how often each expert is chosen, float32 ``[experts]``."""
    return torch.bincount(chosen_Nk.flatten(), minlength=experts).float()


def balance_loss(shares_NE: Tensor, chosen_Nk: Tensor) -> Tensor:
    """Return ``E sum of f_e P_e``, with f the share of choices and P the mean probability; 1 where they are even.

    Its gradient goes through P alone. Source: Fedus et al. 2022, equation 4.
    """
    experts = shares_NE.shape[1]
    shares_E = choices(chosen_Nk, experts) / chosen_Nk.numel()
    return experts * (shares_E * shares_NE.mean(0)).sum()
