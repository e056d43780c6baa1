"""Objectives with noise of their own: inputs replaced by a mask vector, and two passes that are to agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import ModelError
from octavo.lab.language.gpt.in_training import InTraining
from octavo.lab.language.gpt.next_token import Batch, NextToken, Objective, scored, trained_loss
from octavo.lab.language.techniques import later, number, register


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
    """The next token in two passes with other noise, and ``weight`` times how far their predictions differ.

    The loss is the mean of both passes' plus ``weight * (KL(p1 | p2) + KL(p2 | p1)) / 2``. Both are one batch of twice
    the sequences. The noise is drop-out, blocks that are left out, or a ``share`` of the inputs of each pass that are a
    learned mask vector, as :class:`TokenDropout` has it. Source: Liang et al. 2021, equation 4.
    """

    weight: float = 1.0
    share: float = later(0.0)

    def __post_init__(self) -> None:
        """Check every field."""
        number(self, "weight", least=0, most=1e3)
        number(self, "share", least=0, most=0.95)


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
        replaced = masked_inputs(batch.ids_BT, self.config.share * model.noise if model.training else 0.0, self.mask_D)
        hidden_BTD = model.hidden(batch.ids_BT, window=batch.window, replaced=replaced)
        return trained_loss(model.head, hidden_BTD, batch.targets_BT)


@register("objective", "r_drop", RDrop, examples=(RDrop(), RDrop(share=0.5)),
          off=((RDrop(weight=0.0), NextToken()), (RDrop(weight=0.0, share=0.5), TokenDropout(share=0.5))),
          beside=(("in_training", InTraining(dropout=0.1)),))  # fmt: skip
class RDropObjective(Objective):
    """:class:`RDrop` as an objective."""

    def __init__(self, config: RDrop, model: Any) -> None:
        """Make the mask vector. Raises ModelError for a model without noise, whose two passes are one."""
        super().__init__()
        self.config = config
        if config.share:
            self.mask_D = nn.Parameter(torch.empty(model.width))
            self.rules = {"mask_D": "zero"}
        if config.weight and not (config.share or model.in_training.dropout or model.in_training.layer_drop):
            raise ModelError(
                "RDrop compares two passes with noise, and in_training has no dropout and no layer_drop, and its share "
                "of masked inputs is 0"
            )

    def loss(self, model: Any, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum and its parts, ``divergence`` among them: the sum of both divergences over 2."""
        mask_D, share = (self.mask_D, self.config.share * model.noise) if self.config.share else (None, 0.0)
        if not model.training or not self.config.weight or (self.config.share and not self._noisy(model)):
            replaced = masked_inputs(batch.ids_BT, share if model.training else 0.0, mask_D)
            hidden_BTD = model.hidden(batch.ids_BT, window=batch.window, replaced=replaced)
            return trained_loss(model.head, hidden_BTD, batch.targets_BT)
        ids_BT = batch.ids_BT.repeat(2, 1)
        hidden_BTD = model.hidden(ids_BT, window=batch.window, replaced=masked_inputs(ids_BT, share, mask_D))
        hidden_ND, y_N = scored(hidden_BTD, batch.targets_BT.repeat(2, 1))
        nll = model.head.nll(hidden_ND, y_N).sum() / 2
        apart = divergence(*model.head.log_probs(hidden_ND).chunk(2)).sum()
        parts = {"nll": nll.detach(), "tokens": y_N.new_tensor(len(y_N) // 2), "divergence": apart.detach()}
        return nll + self.config.weight * apart, parts

    def _noisy(self, model: Any) -> bool:
        """Return whether two passes differ in this stage of training."""
        noise = model.config.in_training
        return bool(noise.dropout or model.noise * (self.config.share + noise.layer_drop))


def masked_inputs(ids_BT: Tensor, share: float, mask_D: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """Return which inputs a mask vector replaces, bool ``[B, T]``, drawn anew, and the vector; None for no share."""
    if not share or mask_D is None:
        return None
    return torch.rand(ids_BT.shape, device=ids_BT.device) < share, mask_D


def divergence(first_NV: Tensor, second_NV: Tensor) -> Tensor:
    """Return ``(KL(p | q) + KL(q | p)) / 2`` of rows of log-probabilities, ``[N]``; symmetric, and never below 0."""
    return ((first_NV.exp() - second_NV.exp()) * (first_NV - second_NV)).sum(-1) / 2
