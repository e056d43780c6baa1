"""Layers that the architectures share. Letters of shapes: B rows, S source positions, T target positions, D width."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

M = TypeVar("M", bound=nn.Module)

# Added to the score of a position that must not be seen; finite, so that a row without any position stays finite.
HIDDEN_SCORE = -1e4


class Attention(nn.Module):
    """Multi-head scaled dot-product attention (Vaswani et al. 2017, section 3.2), queries and memory apart.

    ``width``: of the queries, the heads together and the output. ``memory``: width of what is attended to.
    """

    def __init__(self, width: int, memory: int, heads: int) -> None:
        """Make the four projections."""
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(memory, width)
        self.value = nn.Linear(memory, width)
        self.output = nn.Linear(width, width)

    def project(self, memory_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values of ``memory_BSD``, each ``[B, heads, S, width / heads]``: what a cache keeps."""
        return self._split(self.key(memory_BSD)), self._split(self.value(memory_BSD))

    def forward(self, x_BTD: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend from ``x_BTD`` to projected memory; ``mask`` is added to the scores ``[B, heads, T, S]``."""
        queries = self._split(self.query(x_BTD))
        # Written out: for rows this short torch's fused kernel is slower on CPU, its backward pass several times.
        scores = (queries / math.sqrt(queries.shape[-1])) @ keys.transpose(-1, -2)
        if mask is not None:
            scores = scores + mask.to(scores.dtype)
        mixed = scores.softmax(-1).to(values.dtype) @ values
        return self.output(mixed.transpose(1, 2).flatten(2))

    def _split(self, x_BTD: Tensor) -> Tensor:
        return x_BTD.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class FeedForward(nn.Module):
    """Two linear layers with ReLU between them."""

    def __init__(self, width: int, inner: int) -> None:
        """Make both layers."""
        super().__init__()
        self.expand = nn.Linear(width, inner)
        self.contract = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """Apply to the last dimension."""
        return self.contract(functional.relu(self.expand(x)))


def stack(modules: Iterable[M]) -> Sequence[M]:
    """Return a ModuleList of modules of one class, whose items keep their type."""
    return cast("Sequence[M]", nn.ModuleList(modules))


def padding_mask(source_BS: Tensor, pad: int) -> Tensor:
    """Return what to add to attention scores ``[B, 1, 1, S]`` so that no one looks at ``pad``."""
    return (source_BS == pad).float()[:, None, None, :] * HIDDEN_SCORE


def causal_mask(length: int, device: torch.device) -> Tensor:
    """Return what to add to attention scores ``[T, T]`` so that no position looks ahead."""
    return torch.full((length, length), HIDDEN_SCORE, device=device).triu(1)


def reverse(x_BSD: Tensor, lengths_B: Tensor) -> Tensor:
    """Return each row with its first ``lengths_B`` positions in reverse order and the rest in place."""
    positions = torch.arange(x_BSD.shape[1], device=x_BSD.device)
    mirrored = lengths_B[:, None] - 1 - positions
    index = torch.where(mirrored >= 0, mirrored, positions)
    return x_BSD.gather(1, index[..., None].expand_as(x_BSD))


def last(x_BSD: Tensor, lengths_B: Tensor) -> Tensor:
    """Return position ``lengths_B - 1`` of each row, ``[B, D]``."""
    index = (lengths_B - 1).clamp(min=0)[:, None, None].expand(-1, 1, x_BSD.shape[-1])
    return x_BSD.gather(1, index).squeeze(1)


class BidirectionalLSTM(nn.Module):
    """An LSTM over each row and another over the row in reverse; what lies behind a row's end changes nothing.

    Two layers of one direction over a mirrored copy, rather than one packed bidirectional layer, because the packed one
    has no fast CPU kernel.
    """

    def __init__(self, width: int, units: int) -> None:
        """Make both directions."""
        super().__init__()
        self.forwards = nn.LSTM(width, units, batch_first=True)
        self.backwards = nn.LSTM(width, units, batch_first=True)

    def forward(self, x_BSD: Tensor, lengths_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states ``[B, S, 2 units]`` and the last state of both directions ``[B, 2 units]``.

        States behind the end of a row are of no meaning.
        """
        ahead = lstm_states(self.forwards, x_BSD)
        mirrored = lstm_states(self.backwards, reverse(x_BSD, lengths_B))
        states = torch.cat([ahead, reverse(mirrored, lengths_B)], -1)
        return states, torch.cat([last(ahead, lengths_B), last(mirrored, lengths_B)], -1)


def lstm_states(lstm: nn.LSTM, x_BTD: Tensor, first: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Return the hidden states of ``lstm`` over ``x_BTD``, from ``first`` (hidden and cell state, ``[1, B, H]``) on.

    Under autocast on a processor without bfloat16 instructions it runs in float32: oneDNN has no other kernel there.
    """
    if x_BTD.device.type != "cpu" or not torch.is_autocast_enabled("cpu") or _has_bfloat16():
        return lstm(x_BTD, first)[0]
    with torch.autocast("cpu", enabled=False):
        return lstm(x_BTD.float(), None if first is None else (first[0].float(), first[1].float()))[0]


@cache
def _has_bfloat16() -> bool:
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def lstm_parameters(lstm: nn.LSTM) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return weights of input and hidden state and their biases of a one-layer ``lstm``."""
    held = (lstm.weight_ih_l0, lstm.weight_hh_l0, lstm.bias_ih_l0, lstm.bias_hh_l0)
    return cast("tuple[Tensor, Tensor, Tensor, Tensor]", held)


def lstm_step(lstm: nn.LSTM, x_BD: Tensor, hidden_BH: Tensor, cell_BH: Tensor) -> tuple[Tensor, Tensor]:
    """Return hidden and cell state of a one-layer ``lstm`` after one more input.

    A module with a ``step`` of its own, such as the view of an LSTM as linear layers, is asked for it.
    """
    if not isinstance(lstm, nn.LSTM):
        return lstm.step(x_BD, hidden_BH, cell_BH)
    input_weight, hidden_weight, input_bias, hidden_bias = lstm_parameters(lstm)
    gates = functional.linear(x_BD, input_weight, input_bias)
    gates = gates + functional.linear(hidden_BH, hidden_weight, hidden_bias)
    enter, forget, candidate, leave = gates.chunk(4, -1)
    cell = forget.sigmoid() * cell_BH + enter.sigmoid() * candidate.tanh()
    return leave.sigmoid() * cell.tanh(), cell
