"""Draws from a fixed distribution in constant time each: the alias method."""

from __future__ import annotations

import torch
from torch import Tensor


class AliasSampler:
    """A distribution over ``0 .. V - 1``, prepared for draws. Source: Walker 1977; Vose 1991.

    ``chances_V``: at least 0, not all 0; they are divided by their sum.
    """

    def __init__(self, chances_V: Tensor) -> None:
        """Build the two tables: of each column the chance to stay, and the value that it else gives."""
        scaled = (chances_V.double().cpu() * len(chances_V) / chances_V.double().cpu().sum()).tolist()
        alias = list(range(len(scaled)))
        small = [i for i, share in enumerate(scaled) if share < 1]
        large = [i for i, share in enumerate(scaled) if share >= 1]
        while small and large:
            poor, rich = small.pop(), large[-1]
            alias[poor] = rich
            scaled[rich] -= 1 - scaled[poor]
            if scaled[rich] < 1:
                small.append(large.pop())
        for left in (*small, *large):  # 1 but for rounding
            scaled[left] = 1.0
        self._stay_V = torch.tensor(scaled, device=chances_V.device)
        self._alias_V = torch.tensor(alias, device=chances_V.device)

    def draw(self, count: int) -> Tensor:
        """Return ``count`` independent draws, int64, from torch's global generator."""
        columns = torch.randint(len(self._alias_V), (count,), device=self._alias_V.device)
        stays = torch.rand(count, device=columns.device) < self._stay_V[columns]
        return torch.where(stays, columns, self._alias_V[columns])
