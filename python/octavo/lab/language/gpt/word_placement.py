"""Reallocation of a word grid: which cell each word should have, by what each row and column would cost it."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

EXACT = 1024
"""Most words that are matched exactly: the time grows with their cube."""

Array = NDArray[Any]


class PlacementCosts:
    """Sums over occurrences of each word: ``-log P(row i | h)`` and ``-log P(column j | h, its row)``.

    Columns are counted with the row that the word had, so that the sum over a move is the cost of a model that was not
    trained since: about separable, and one round of several.
    """

    def __init__(self, vocabulary: int, side: int) -> None:
        """Begin at 0."""
        self.rows, self.columns = torch.zeros(vocabulary, side), torch.zeros(vocabulary, side)
        self.side = side

    @torch.no_grad()
    def add(self, head: Any, h_ND: Tensor, y_N: Tensor) -> None:
        """Count the targets of a batch; ``head``: a grid head whose weights stay."""
        row_N = head.grid.cell_V[y_N] // self.side
        # Empty rows and columns cost much, not infinitely: the matching may still use them.
        self.rows.index_add_(0, y_N.cpu(), (-head.row_log_probs(h_ND)).clamp_max(1e4).cpu())
        self.columns.index_add_(0, y_N.cpu(), (-head.column_log_probs(h_ND, row_N)).clamp_max(1e4).cpu())

    def total(self, cell_V: Tensor) -> float:
        """Return the cost of a placement."""
        row_V, column_V = cell_V.cpu() // self.side, cell_V.cpu() % self.side
        chosen = self.rows.double().gather(1, row_V[:, None]) + self.columns.double().gather(1, column_V[:, None])
        return float(chosen.sum())

    def best(self, cell_V: Tensor, *, exact: int = EXACT) -> Tensor:
        """Return the cheapest placement, exact up to ``exact`` words, else greedy; never dearer than ``cell_V``.

        Greedy takes the cheapest pair of a word and a free cell, again and again.
        """
        if len(cell_V) <= exact:
            dense = (self.rows.double()[:, :, None] + self.columns.double()[:, None, :]).flatten(1)
            found = torch.from_numpy(assignment(dense.numpy()))
        else:
            found = torch.from_numpy(_greedy(self.rows.double().numpy(), self.columns.double().numpy()))
        return found if self.total(found) <= self.total(cell_V) else cell_V.cpu().clone()


def assignment(cost_nm: Array) -> Array:
    """Return the column of each row in the cheapest matching of n rows with ``m >= n`` columns, int64 ``[n]``.

    Shortest augmenting paths with potentials, ``O(n ** 2 m)``. Source: Jonker and Volgenant 1987.
    """
    count, width = cost_nm.shape
    row_price, column_price = np.zeros(count), np.zeros(width + 1)
    owner = np.full(width + 1, -1)  # of each column its row; the last column is where a path begins
    for row in range(count):
        owner[width] = row
        shortest, before = np.full(width, np.inf), np.full(width, -1)
        used = np.zeros(width + 1, dtype=bool)
        at = width
        while owner[at] >= 0:
            used[at] = True
            free = ~used[:width]
            reached = cost_nm[owner[at]] - row_price[owner[at]] - column_price[:width]
            closer = free & (reached < shortest)
            shortest[closer], before[closer] = reached[closer], at
            after = int(np.where(free, shortest, np.inf).argmin())
            step = shortest[after]
            row_price[owner[used]] += step
            column_price[used] -= step
            shortest[free] -= step
            at = after
        while at != width:
            owner[at] = owner[before[at]]
            at = int(before[at])
    found = np.empty(count, dtype=np.int64)
    columns = np.flatnonzero(owner[:width] >= 0)
    found[owner[columns]] = columns
    return found


def _greedy(rows: Array, columns: Array) -> Array:
    side = rows.shape[1]
    taken = np.zeros((side, side), dtype=bool)
    found = np.full(len(rows), -1, dtype=np.int64)

    def cheapest(word: int) -> tuple[float, int, int]:
        cost = np.where(taken, np.inf, rows[word][:, None] + columns[word])
        cell = int(cost.argmin())
        return float(cost.flat[cell]), word, cell

    # A word's cheapest cell can only become dearer as cells fill: an entry that is still free is the cheapest of all.
    queue = [cheapest(word) for word in range(len(rows))]
    heapq.heapify(queue)
    while queue:
        _, word, cell = heapq.heappop(queue)
        if taken.flat[cell]:
            heapq.heappush(queue, cheapest(word))
        else:
            taken.flat[cell], found[word] = True, cell
    return found
