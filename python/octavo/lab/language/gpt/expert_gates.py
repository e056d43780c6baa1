"""Gates: scores of experts from the token, from the context before it, or from both as a DeepONet joins them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from octavo.lab.language.gpt.causal_mean import causal_mean, first_mean, next_mean
from octavo.lab.language.gpt.mixing_context import MixingContext


class Gate(nn.Module):
    """The interface of gates: scores of ``experts`` in float32, whatever the precision of the run.

    ``scores(h, context)`` makes them of the vectors of a position and the mean of those before it.
    """

    reads_before = True

    def forward(self, x_BTD: Tensor, context: MixingContext) -> Tensor:
        """Return the scores of every position, ``[B, T, E]``."""
        return self._exact(x_BTD, causal_mean(x_BTD, context) if self.reads_before else x_BTD)

    def first_state(self, batch: int) -> Any:
        """Return the state before the first position."""
        return first_mean(batch) if self.reads_before else None

    def step(self, x_BD: Tensor, state: Any, context: MixingContext) -> tuple[Tensor, Any]:
        """Return the scores of the next position, ``[B, E]``, and the state after it."""
        before_BD = x_BD
        if self.reads_before:
            before_BD, state = next_mean(x_BD, state, context)
        return self._exact(x_BD, before_BD), state

    def scores(self, h: Tensor, before: Tensor) -> Tensor:
        """Return the scores, ``[..., E]``, of vectors ``[..., D]``."""
        raise NotImplementedError

    def _exact(self, h: Tensor, before: Tensor) -> Tensor:
        with torch.autocast(h.device.type, enabled=False):
            own = next((one.dtype for one in self.parameters() if one.is_floating_point()), torch.float32)
            return self.scores(h.to(own), before.to(own)).float()


class LinearGate(Gate):
    """Scores that are linear in the token, or in the mean of what was before it."""

    def __init__(self, width: int, experts: int, *, reads_before: bool) -> None:
        """Make the matrix."""
        super().__init__()
        self.reads_before = reads_before
        self.project = nn.Linear(width, experts, bias=False)
        self.rules = {"project.weight": "matrix"}

    def scores(self, h: Tensor, before: Tensor) -> Tensor:
        """Return the scores."""
        return self.project(before if self.reads_before else h)


class OperatorGate(Gate):
    """``score_e = sum over k of b_k(context) t_{k,e}(h)``: a branch of the context, a trunk of the token.

    With a branch that is constant it is a linear gate; for a given token, scores over all contexts span at most
    ``rank`` dimensions. Source: Lu et al. 2021, equation 2.
    """

    def __init__(self, width: int, experts: int, rank: int) -> None:
        """Make branch and trunk; the branch begins near 1, so that the gate begins near a linear one."""
        super().__init__()
        self.rank = rank
        self.branch = nn.Linear(width, rank)
        self.trunk = nn.Linear(width, rank * experts, bias=False)
        self.rules = {"branch.weight": "matrix", "branch.bias": "one", "trunk.weight": "matrix"}

    def scores(self, h: Tensor, before: Tensor) -> Tensor:
        """Return the scores."""
        return torch.einsum("...k,...ke->...e", self.branch(before), self.trunk(h).unflatten(-1, (self.rank, -1)))
