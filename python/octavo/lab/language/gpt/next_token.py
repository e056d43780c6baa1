"""Objectives: what is minimised in training. Their interface, and the plain loss of the next token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from octavo.lab.language.techniques import choice, register

IGNORED = -1
"""A target that is not scored."""


class Batch(NamedTuple):
    """What a model trains on: ``ids_BT``, ``targets_BT`` (one position on; -1 is not scored), the window of masks."""

    ids_BT: Tensor
    targets_BT: Tensor
    window: int | None = None


class Objective(nn.Module):
    """The interface of objectives. One may hold weights of its own, which train with the model and are no part of it.

    ``progress``: the fraction of the run that is over, 0 to 1; annealed weights are functions of it.
    """

    def __init__(self) -> None:
        """Begin at progress 0."""
        super().__init__()
        self.progress = 0.0
        self.rules: dict[str, str] = {}

    def loss(self, model: Any, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum that is minimised, a float32 scalar, and sums for the record.

        ``parts["nll"]`` is always the plain loss of the next tokens, without a gradient; ``parts["tokens"]`` their
        number, by which both are divided, once.
        """
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class NextToken:
    """The loss of the next token: exact, or the head's sampled loss where it has one.

    ``watch``: give the exact loss, too, where a sampled one is trained on; it costs what sampling saves.
    """

    watch: bool = True

    def __post_init__(self) -> None:
        """Check the field."""
        choice(self, "watch", (True, False))


@register("objective", "next_token", NextToken, examples=(NextToken(),))
class NextTokenObjective(Objective):
    """:class:`NextToken` as an objective."""

    def __init__(self, config: NextToken, model: Any) -> None:
        """Keep the configuration; ``model``: the whole model's, for objectives with weights of their own."""
        super().__init__()
        self.config = config

    def loss(self, model: Any, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum and its parts."""
        hidden_BTD = model.hidden(batch.ids_BT, window=batch.window)
        return trained_loss(model.head, hidden_BTD, batch.targets_BT, watch=self.config.watch)


def scored(hidden_BTD: Tensor, targets_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Return hidden states and targets of the positions that are scored, ``[N, D]`` and ``[N]``."""
    hidden_ND, y_N = hidden_BTD.flatten(0, 1), targets_BT.flatten()
    real = y_N != IGNORED
    return (hidden_ND, y_N) if bool(real.all()) else (hidden_ND[real], y_N[real])


def trained_loss(
    head: Any, hidden_BTD: Tensor, targets_BT: Tensor, *, watch: bool = True
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the sum of the loss that a head trains on, and its parts: the exact loss, and the tokens.

    On a CPU positions that are not scored are left out; a GPU, which would have to wait for their number, and compiled
    code, which has fixed shapes, score a token there and count 0 for it.
    """
    if torch.compiler.is_compiling() or hidden_BTD.device.type == "cuda":
        hidden_ND, y_N = hidden_BTD.flatten(0, 1), targets_BT.flatten().clamp_min(0)
        real_N = targets_BT.flatten() != IGNORED
        tokens = real_N.sum()
    else:
        hidden_ND, y_N = scored(hidden_BTD, targets_BT)
        real_N, tokens = None, y_N.new_tensor(len(y_N))

    def summed(loss_N: Tensor) -> Tensor:
        return (loss_N if real_N is None else torch.where(real_N, loss_N, 0.0)).sum()

    surrogate = getattr(head, "surrogate", None)
    if surrogate is None:
        total = summed(head.nll(hidden_ND, y_N))
        return total, {"nll": total.detach(), "tokens": tokens}
    total = summed(surrogate(hidden_ND, y_N))
    parts = {"surrogate": total.detach(), "tokens": tokens}
    if watch:
        parts["nll"] = summed(head.nll(hidden_ND.detach(), y_N)).detach()
    return total, parts
