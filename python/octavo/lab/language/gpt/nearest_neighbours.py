"""A head that remembers: the softmax mixed with the next tokens of the most similar states seen in training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from octavo.lab.language.gpt.copied_text import refuse_copies
from octavo.lab.language.gpt.softmax_head import Softmax, SoftmaxHead
from octavo.lab.language.techniques import choice, number, register, whole

_CONTEXT_BATCH = 16


@dataclass(frozen=True, kw_only=True)
class NearestNeighbours:
    """``p = share p_near + (1 - share) p_softmax``, in evaluation; training is that of the softmax.

    ``p_near``: the next tokens of the ``neighbours`` nearest stored hidden states, weighed by the softmax of
    ``-sharpness`` times their squared distances over the width. ``entries``: states that are stored, of training text.
    With ``share`` 0, or nothing stored, it is the softmax. Source: Khandelwal et al. 2020 (kNN-LM).
    """

    share: float = 0.25
    neighbours: int = 32
    sharpness: float = 20.0
    entries: int = 1 << 16
    tied: bool = True

    def __post_init__(self) -> None:
        """Check every field."""
        number(self, "share", least=0, most=0.999)
        whole(self, "neighbours", least=1)
        number(self, "sharpness", least=0, most=1e6)
        whole(self, "entries", least=0)
        choice(self, "tied", (True, False))


@register(
    "head",
    "nearest_neighbours",
    NearestNeighbours,
    examples=(NearestNeighbours(neighbours=4, entries=64), NearestNeighbours(neighbours=100, entries=64, tied=False)),
    off=((NearestNeighbours(share=0.0, entries=64), Softmax()), (NearestNeighbours(entries=64), Softmax())),
)
class NearestNeighboursHead(SoftmaxHead):
    """:class:`NearestNeighbours` as a head; :meth:`remember` fills its store."""

    states_SD: Tensor
    next_S: Tensor

    def __init__(self, config: NearestNeighbours, vocabulary: int, width: int) -> None:
        """Make the softmax and an empty store."""
        super().__init__(Softmax(tied=config.tied), vocabulary, width)
        self.memory = config
        self.register_buffer("states_SD", torch.zeros(config.entries, width))
        self.register_buffer("next_S", torch.full((config.entries,), -1, dtype=torch.int32))

    @torch.no_grad()
    def remember(self, model: Any, stream: Tensor, *, context: int) -> None:
        """Store the states of a stream of training ids, in windows of ``context``, and the token after each."""
        length = min(len(stream) - 1, self.memory.entries) // context * context
        self.next_S.fill_(-1)
        was = model.training
        model.eval()
        inputs, targets = (stream[at : at + length].view(-1, context) for at in (0, 1))
        for first in range(0, len(inputs), _CONTEXT_BATCH):
            rows = slice(first, first + _CONTEXT_BATCH)
            hidden = model.hidden(inputs[rows].to(self.states_SD.device)).flatten(0, 1)
            place = slice(first * context, first * context + len(hidden))
            self.states_SD[place] = hidden.to(self.states_SD)
            self.next_S[place] = targets[rows].flatten().to(self.next_S)
        model.train(was)

    def refuse_copies(self, held_out: Tensor) -> None:
        """Refuse a store that holds held-out text. Raises ContractError naming the position."""
        refuse_copies(self.next_S[None].long(), held_out, "store of states")

    def near_log_probs(self, h_ND: Tensor) -> Tensor:
        """Return the logarithms of the store's probabilities, ``[N, V]`` float32; -inf for tokens of no neighbour."""
        states_SD, next_S = self.states_SD, self.next_S
        distances_NS = torch.cdist(h_ND.float(), states_SD).square() / self.width
        distances_NS = distances_NS.masked_fill(next_S < 0, torch.inf)
        near_Nk, at_Nk = distances_NS.topk(min(self.memory.neighbours, len(next_S)), 1, largest=False)
        weights_Nk = (-self.memory.sharpness * near_Nk).softmax(1)
        found = weights_Nk.new_zeros(len(h_ND), self.vocabulary)
        return found.scatter_add(1, next_S[at_Nk].clamp_min(0).long(), weights_Nk).log()

    def log_probs(self, h_ND: Tensor) -> Tensor:
        """Return the logarithms of the mixture, ``[N, V]`` float32; in training those of the softmax."""
        own_NV = super().log_probs(h_ND)
        share = self.memory.share
        if self.training or not share or not bool((self.next_S >= 0).any()):
            return own_NV
        return torch.logaddexp(own_NV + math.log1p(-share), self.near_log_probs(h_ND) + math.log(share))

    def nll(self, h_ND: Tensor, y_N: Tensor) -> Tensor:
        """Return the loss of each target, ``[N]`` float32."""
        if self.training or not self.memory.share or not bool((self.next_S >= 0).any()):
            return super().nll(h_ND, y_N)
        return -self.log_probs(h_ND).gather(1, y_N[:, None])[:, 0]
