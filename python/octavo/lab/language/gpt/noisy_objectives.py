"""Objectives with noise of their own: inputs replaced by a mask vector, and two passes that are to agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import ModelError
from octavo.lab.language.gpt.in_training import InTraining
from octavo.lab.language.gpt.next_token import Batch, NextToken, Objective, scored, trained_loss
from octavo.lab.language.techniques import number, register


@dataclass(frozen=True, kw_only=True)
class TokenDropout:
    """The next token, where a ``share`` of the inputs, drawn anew in each pass, are a learned mask vector.

    What the embedding gives is replaced; tables of values, and a neighbour that smears or hashes pairs, still read the
    token. A stage of training multiplies ``share`` as it does the other rates of noise.
    """

    share: float = 0.15

    def __post_init__(self) -> None:
        """Check the field."""
        number(self, "share", least=0, most=0.95)


@dataclass(frozen=True, kw_only=True)
class RDrop:
    """The next token in two passes with other drop-out, and ``weight`` times how far their predictions differ.

    The loss is the mean of both passes' plus ``weight * (KL(p1 | p2) + KL(p2 | p1)) / 2``. Both are one batch of twice
    the sequences. Source: Liang et al. 2021, equation 4.
    """

    weight: float = 1.0

    def __post_init__(self) -> None:
        """Check the field."""
        number(self, "weight", least=0, most=1e3)


@register("objective", "token_dropout", TokenDropout, examples=(TokenDropout(share=0.5),),
          off=((TokenDropout(share=0.0), NextToken()),))  # fmt: skip
class TokenDropoutObjective(Objective):
    """:class:`TokenDropout` as an objective."""

    def __init__(self, config: TokenDropout, model: Any) -> None:
        """Make the mask vector."""
        super().__init__()
        self.config = config
        self.mask_D = nn.Parameter(torch.empty(model.width))
        self.rules = {"mask_D": "zero"}

    def loss(self, model: Any, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum and its parts; the loss told is that of the inputs that were seen."""
        replaced = None
        share = self.config.share * model.noise
        if model.training and share:
            replaced = (torch.rand(batch.ids_BT.shape, device=batch.ids_BT.device) < share, self.mask_D)
        hidden_BTD = model.hidden(batch.ids_BT, window=batch.window, replaced=replaced)
        return trained_loss(model.head, hidden_BTD, batch.targets_BT)


@register("objective", "r_drop", RDrop, examples=(RDrop(),), off=((RDrop(weight=0.0), NextToken()),),
          beside=(("in_training", InTraining(dropout=0.1)),))  # fmt: skip
class RDropObjective(Objective):
    """:class:`RDrop` as an objective."""

    def __init__(self, config: RDrop, model: Any) -> None:
        """Keep the configuration. Raises ModelError for a model without noise, whose two passes are one."""
        super().__init__()
        self.config = config
        if config.weight and not (model.in_training.dropout or model.in_training.layer_drop):
            raise ModelError("RDrop compares two passes with noise, and in_training has no dropout and no layer_drop")

    def loss(self, model: Any, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum and its parts, ``divergence`` among them: the sum of both divergences over 2."""
        if not model.training or not self.config.weight:
            hidden_BTD = model.hidden(batch.ids_BT, window=batch.window)
            return trained_loss(model.head, hidden_BTD, batch.targets_BT)
        hidden_BTD = model.hidden(batch.ids_BT.repeat(2, 1), window=batch.window)
        hidden_ND, y_N = scored(hidden_BTD, batch.targets_BT.repeat(2, 1))
        nll = model.head.nll(hidden_ND, y_N).sum() / 2
        apart = divergence(*model.head.log_probs(hidden_ND).chunk(2)).sum()
        parts = {"nll": nll.detach(), "tokens": y_N.new_tensor(len(y_N) // 2), "divergence": apart.detach()}
        return nll + self.config.weight * apart, parts


def divergence(first_NV: Tensor, second_NV: Tensor) -> Tensor:
    """Return ``(KL(p | q) + KL(q | p)) / 2`` of rows of log-probabilities, ``[N]``; symmetric, and never below 0."""
    return ((first_NV.exp() - second_NV.exp()) * (first_NV - second_NV)).sum(-1) / 2
