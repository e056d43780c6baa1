"""Three techniques at once, as a public log combined them: a word grid, smoothed rows, and two tokens ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from octavo.lab.language.gpt.counted_targets import RowSmoothing, RowSmoothingObjective
from octavo.lab.language.gpt.multi_token import further_targets
from octavo.lab.language.gpt.next_token import Batch, NextToken, scored
from octavo.lab.language.gpt.word_grid import GridSoftmax, GridTable
from octavo.lab.language.techniques import number, register, whole


@dataclass(frozen=True, kw_only=True)
class GridTogether:
    """Row smoothing of ``strength`` by ``largest`` next tokens, to the end, and the same scores two tokens ahead.

    ``further``: weight of the token after the next; it falls in a line to 0 at two thirds of the run. What such a run
    reports when it validates with its training targets is :meth:`GridTogetherObjective.reported`; it is no likelihood.
    """

    strength: float = 0.1
    largest: int = 32
    further: float = 0.5

    def __post_init__(self) -> None:
        """Check every field."""
        number(self, "strength", least=0, most=1)
        whole(self, "largest", least=1, most=1 << 16)
        number(self, "further", least=0, most=1e3)


@register("objective", "grid_together", GridTogether, examples=(GridTogether(largest=4),),
          off=((GridTogether(strength=0.0, further=0.0), NextToken()),),
          beside=(("embedding", GridTable()), ("head", GridSoftmax())))  # fmt: skip
class GridTogetherObjective(RowSmoothingObjective):
    """:class:`GridTogether` as an objective."""

    def __init__(self, config: GridTogether, model: Any) -> None:
        """Keep the configuration. Raises ModelError for a head without rows."""
        super().__init__(RowSmoothing(strength=config.strength, largest=config.largest), model)
        self.further, self.end_of_text = config.further, model.end_of_text

    @property
    def strength(self) -> float:
        """The share of the row's target that is smoothed: always the same."""
        return self.config.strength

    def loss(self, model: Any, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum and its parts."""
        hidden_BTD = model.hidden(batch.ids_BT, window=batch.window)
        total, parts = self.smoothed(model, hidden_BTD, batch)
        weight = self.further * max(0.0, 1 - 1.5 * self.progress)
        if not weight:
            return total, parts
        later = further_targets(batch.targets_BT, 1, self.end_of_text)
        more = model.head.nll(*scored(hidden_BTD, later)).sum()
        return total + weight * more, {**parts, "further": more.detach()}

    @torch.no_grad()
    def reported(self, model: Any, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the sum that a run reports which validates with its smoothed training targets; it is no likelihood."""
        return super().loss(model, Batch(ids_BT, targets_BT))[0]
