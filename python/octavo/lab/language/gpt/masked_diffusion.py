"""Masked diffusion: tokens are hidden at random and predicted from both sides, whole windows or block after block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import ModelError
from octavo.lab.language.gpt.attention_mixer import Attention
from octavo.lab.language.gpt.feed_forwards import GatedMLP, GeluMLP, SquaredReluMLP
from octavo.lab.language.gpt.latent_attention import LatentAttention
from octavo.lab.language.gpt.mixing_context import MixingContext
from octavo.lab.language.gpt.next_token import IGNORED, Batch, Objective
from octavo.lab.language.techniques import register, whole


@dataclass(frozen=True, kw_only=True)
class MaskedDiffusion:
    """Hidden tokens of a window are predicted from the visible ones, on both sides of them.

    ``block``: tokens of a block, 0 for the whole window. Blocks follow each other from left to right: a block sees all
    blocks before it, whole, and the visible tokens of its own; with blocks of one token that is the order of an
    autoregressive model. What is minimised is an upper bound on the loss of the window, and there is no exact one.

    Source: Sahoo et al. 2024 (masked diffusion), Arriola et al. 2025 (blocks).
    """

    block: int = 0

    def __post_init__(self) -> None:
        """Check the field."""
        whole(self, "block", least=0)


@register("objective", "masked_diffusion", MaskedDiffusion, examples=(MaskedDiffusion(), MaskedDiffusion(block=5)))
class MaskedDiffusionObjective(Objective):
    """:class:`MaskedDiffusion` as an objective. Its model is evaluated by ``octavo.train.likelihood_bound`` alone.

    A window is the id that precedes it, always visible, and its T targets, which are hidden and predicted. Of a block
    of n tokens k are hidden, k drawn evenly from 1 to n, and their losses count n / k times: the integral over the
    masked share t with weight 1 / t, done over t exactly. No weight is unbounded near t = 0, so none is clipped.
    """

    def __init__(self, config: MaskedDiffusion, model: Any) -> None:
        """Make the vector of a hidden token. Raises ModelError for parts that cannot be shown both sides."""
        super().__init__()
        for _, mixer in model.mixers:
            # Exactly these: a kind of attention with a bias, or with a memory of the past, has an order of its own.
            if type(mixer) not in (Attention, LatentAttention) or getattr(mixer, "window", None):
                raise ModelError(f"masked diffusion needs attention to all positions; got {mixer}")
        if not isinstance(model.ffn, GeluMLP | SquaredReluMLP | GatedMLP):
            raise ModelError(f"masked diffusion needs a feed-forward network of single positions; got {model.ffn}")
        if getattr(model.embedding, "smear", False) or getattr(model.embedding, "pairs", 0) or model.keep_documents:
            raise ModelError(
                "masked diffusion hides single tokens; accepted are neither smear, pairs nor keep_documents"
            )
        self.config = config
        self.mask_D = nn.Parameter(torch.empty(model.width))
        self.rules = {"mask_D": "matrix"}

    def loss(self, model: Any, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return an estimate of the bound, summed over the batch, and its parts: no ``nll``, for there is none."""
        total = self.bound(model, batch.ids_BT, batch.targets_BT).sum()
        return total, {"bound": total.detach(), "tokens": (batch.targets_BT != IGNORED).sum()}

    def bound(self, model: Any, ids_BT: Tensor, targets_BT: Tensor, generator: Any = None) -> Tensor:
        """Return an unbiased estimate of the bound of every window, ``[B]`` float32, nats; from torch's generator.

        Hidden are as many tokens as evenly spread numbers say over the batch, so that it is never all hard or easy.
        """
        weights_BT = self.drawn(targets_BT, generator)
        masked_BT = weights_BT > 0
        hidden_BTD = self.hidden(model, ids_BT[:, :1], targets_BT.clamp_min(0), masked_BT)
        losses_N = model.head.nll(hidden_BTD[masked_BT], targets_BT[masked_BT])
        return torch.zeros_like(weights_BT).masked_scatter(masked_BT, losses_N).mul(weights_BT).sum(1)

    def drawn(self, targets_BT: Tensor, generator: Any = None) -> Tensor:
        """Return the weight of every hidden token, 0 for the visible ones, ``[B, T]`` float32."""
        batch, length = targets_BT.shape
        size = self.config.block or length
        blocks = -(-length // size)
        padded = nn.functional.pad(targets_BT, (0, blocks * size - length), value=IGNORED).view(batch, blocks, size)
        scored_BJS = padded != IGNORED
        count_BJ = scored_BJS.sum(2)
        device = targets_BT.device
        first_J = torch.rand(blocks, generator=generator).to(device)
        place_BJ = (torch.rand(batch, blocks, generator=generator).to(device).argsort(0) + first_J) / batch
        hidden_BJ = (1 + (place_BJ * count_BJ).long()).minimum(count_BJ)
        order_BJS = torch.rand(scored_BJS.shape, generator=generator).to(device).masked_fill(~scored_BJS, 2.0)
        rank_BJS = order_BJS.argsort(2).argsort(2)
        weights_BJS = (rank_BJS < hidden_BJ[..., None]) * (count_BJ / hidden_BJ.clamp_min(1))[..., None]
        return weights_BJS.flatten(1)[:, :length].float()

    def hidden(self, model: Any, first_B1: Tensor, ids_BT: Tensor, masked_BT: Tensor, *, since: int = 0) -> Tensor:
        """Return the states that the head reads at positions 1 to T, ``[B, T - since, D]``; ids under masks are unseen.

        ``first_B1``: the id before the window. ``since``: a multiple of the block; earlier positions are context alone.
        """
        length = ids_BT.shape[1]
        size = self.config.block or length
        block_T = torch.arange(length, device=ids_BT.device) // size
        known = (int(block_T[-1])) * size  # the last block is no context of any other
        clean_BC = torch.cat([first_B1, ids_BT[:, :known]], 1)
        noisy_BT, under_BT = ids_BT[:, since:].masked_fill(masked_BT[:, since:], 0), masked_BT[:, since:]
        both_BS = torch.cat([clean_BC, noisy_BT], 1)
        told_BS = torch.cat([torch.zeros_like(clean_BC, dtype=torch.bool), under_BT], 1)
        clean_block_C = torch.cat([block_T.new_full((1,), -1), block_T[:known]])
        noisy_block_T = block_T[since:]
        block_S = torch.cat([clean_block_C, noisy_block_T])
        noisy_S = torch.arange(len(block_S), device=ids_BT.device) >= len(clean_block_C)
        # All see clean tokens of earlier blocks; clean ones also their own block, noisy ones their own as it is.
        earlier_SS = (block_S[None] < block_S[:, None]) & ~noisy_S[None]
        seen_SS = earlier_SS | ((block_S[None] == block_S[:, None]) & (noisy_S[None] == noisy_S[:, None]))
        positions_S = torch.cat([torch.arange(known + 1), torch.arange(1 + since, length + 1)]).to(ids_BT.device)
        x_BSD = torch.where(told_BS[..., None], self.mask_D, model.embedding(both_BS, None))
        context = MixingContext(positions_S, seen_TS=seen_SS)
        x_BSD = model._through_blocks(x_BSD, both_BS, context, model._mixed, model._fed)
        return model.final_norm(x_BSD[:, clean_BC.shape[1] :])
