"""LightRNN: words in a grid of rows and columns, so that tables and softmax have two square roots of the vocabulary."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from octavo.errors import ModelError
from octavo.lab.language.gpt.softmax_head import Head
from octavo.lab.language.gpt.token_table import unfilled_table
from octavo.lab.language.techniques import number, register, whole


@dataclass(frozen=True, kw_only=True)
class GridTable:
    """An embedding ``row vector + column vector`` of the word's cell. ``residual``: values of a vector of each word's
    own, widened by a matrix and added, 0 for none. Source: Li et al. 2016.
    """

    residual: int = 0

    def __post_init__(self) -> None:
        """Check the field."""
        whole(self, "residual", least=0)


@dataclass(frozen=True, kw_only=True)
class GridSoftmax:
    """``P(w | h) = P(row | h) P(column | h, row)``: two softmaxes over about ``sqrt(V)`` each; needs a GridTable.

    Column scores are taken from ``h + MLP(norm(h) + row vector)``; ``factor``: inner width of that MLP over the width.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        """Check the field."""
        number(self, "factor", least=1e-3, most=64)


@register("embedding", "grid", GridTable, examples=(GridTable(), GridTable(residual=4)),
          beside=(("head", GridSoftmax()),))  # fmt: skip
class GridEmbedding(nn.Module):
    """:class:`GridTable` as a module. ``cell_V``: each word's cell, ``row * side + column``; no two have the same."""

    cell_V: Tensor

    def __init__(self, config: GridTable, vocabulary: int, width: int, rows: int) -> None:
        """Make the tables; word i begins in cell i."""
        super().__init__()
        self.vocabulary, self.side = vocabulary, math.isqrt(vocabulary - 1) + 1
        self.row_table, self.column_table = unfilled_table(self.side, width), unfilled_table(self.side, width)
        self.rules = {"row_table.weight": "embedding", "column_table.weight": "embedding"}
        self.register_buffer("cell_V", torch.arange(vocabulary))
        self.residual: nn.Embedding | None = None
        if config.residual:
            self.residual = unfilled_table(vocabulary, config.residual)
            self.widen = nn.Linear(config.residual, width, bias=False)
            self.rules |= {"residual.weight": "embedding", "widen.weight": "matrix"}

    def forward(self, ids_BT: Tensor, documents_BT: Tensor | None = None) -> Tensor:
        """Return the vectors ``[B, T, D]``."""
        cell_BT = self.cell_V[ids_BT]
        x_BTD = self.row_table(cell_BT // self.side) + self.column_table(cell_BT % self.side)
        return x_BTD if self.residual is None else x_BTD + self.widen(self.residual(ids_BT))

    def place(self, cell_V: Tensor) -> None:
        """Move every word to a cell. Raises ModelError unless all cells are in the grid and no two words share one.

        Weights stay with rows and columns. The moments that an optimizer keeps of them are then of other words: begin
        them anew, or let them fade.
        """
        alone = len(cell_V.unique()) == len(cell_V) == self.vocabulary
        if not alone or int(cell_V.min()) < 0 or int(cell_V.max()) >= self.side**2:
            raise ModelError(f"{self.vocabulary} words have a cell each, all different, from 0 to {self.side**2 - 1}")
        self.cell_V.copy_(cell_V)

    def taken(self) -> Tensor:
        """Return which cells hold a word, bool ``[side, side]``."""
        held = torch.zeros(self.side**2, dtype=torch.bool, device=self.cell_V.device)
        held[self.cell_V] = True
        return held.view(self.side, self.side)


@register("head", "grid", GridSoftmax, examples=(GridSoftmax(),), beside=(("embedding", GridTable()),))
class GridHead(Head):
    """:class:`GridSoftmax` as a head. Empty cells get no probability."""

    def __init__(self, config: GridSoftmax, vocabulary: int, width: int) -> None:
        """Make rows, columns and the MLP between."""
        super().__init__(vocabulary, width)
        side, inner = math.isqrt(vocabulary - 1) + 1, max(1, round(config.factor * width))
        self.rows, self.columns = nn.Linear(width, side, bias=False), nn.Linear(width, side, bias=False)
        self.up, self.down = nn.Linear(width, inner, bias=False), nn.Linear(inner, width, bias=False)
        self.rules = {"rows.weight": "head", "columns.weight": "head", "up.weight": "matrix", "down.weight": "output"}
        self._grid: tuple[Any, ...] = ()

    def tie(self, embedding: nn.Module) -> None:
        """Read cells and row vectors from the embedding. Raises ModelError for an embedding without a grid."""
        if not isinstance(embedding, GridEmbedding):
            raise ModelError(f"{type(embedding).__name__} has no grid of words; GridSoftmax goes with a GridTable")
        self._grid = (embedding,)

    @property
    def grid(self) -> GridEmbedding:
        """The embedding that says where each word stands."""
        return self._grid[0]

    def row_log_probs(self, h_ND: Tensor) -> Tensor:
        """Return ``log P(row | h)``, ``[N, side]`` float32."""
        empty = ~self.grid.taken().any(1)
        return self.rows(h_ND).float().masked_fill(empty, -torch.inf).log_softmax(-1)

    def column_log_probs(self, h_ND: Tensor, row_N: Tensor) -> Tensor:
        """Return ``log P(column | h, row)``, ``[N, side]`` float32."""
        normed_ND = functional.rms_norm(h_ND, (self.width,), eps=1e-6)
        told_ND = h_ND + self.down(functional.relu(self.up(normed_ND + self.grid.row_table(row_N))))
        return self.columns(told_ND).float().masked_fill(~self.grid.taken()[row_N], -torch.inf).log_softmax(-1)

    def nll(self, h_ND: Tensor, y_N: Tensor) -> Tensor:
        """Return the loss of each target, ``[N]`` float32: of its row, and of its column with the row known."""
        row_N, column_N = self.grid.cell_V[y_N] // self.grid.side, self.grid.cell_V[y_N] % self.grid.side
        rows, columns = self.row_log_probs(h_ND), self.column_log_probs(h_ND, row_N)
        return -(rows.gather(1, row_N[:, None]) + columns.gather(1, column_N[:, None]))[:, 0]

    def log_probs(self, h_ND: Tensor) -> Tensor:
        """Return the logarithms of all probabilities, ``[N, V]`` float32: a pass of the MLP for every row."""
        rows = self.row_log_probs(h_ND)
        cells = [
            rows[:, row, None] + self.column_log_probs(h_ND, torch.full((len(h_ND),), row, device=h_ND.device))
            for row in range(self.grid.side)
            if bool(self.grid.taken()[row].any())
        ]
        # Rows fill from the first, but words may have moved: empty rows are left out, and cells counted without them.
        full = self.grid.taken().any(1).cumsum(0) - 1
        cell_V, side = self.grid.cell_V, self.grid.side
        return torch.cat(cells, 1)[:, full[cell_V // side] * side + cell_V % side]
