"""The least sum of losses for every sum of costs, one option chosen from each item: dynamic programming over arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

_EXACT = 1 << 14  # states up to which every one that no other beats is kept
_CELLS = (1 << 12, 100, 20, 10)  # parts of each cost beyond that, by the number of costs
_BEND = 1 / 16  # cells are finer at low costs: about 17 times finer than at the highest
_PRICE_STEPS = 400
_ROUNDING = 1e-9  # relative: sums in another order
MOST_BOUNDS = len(_CELLS)


@dataclass(frozen=True, eq=False)
class Item:
    """One decision. ``options``: ``[options, ...]``, the meaning of each; ``costs`` ``[options, costs]``; ``loss``."""

    options: Indices
    costs: Floats
    loss: Floats

    def undominated(self) -> Item:
        """Return the item with the options that no other beats in all or, of equal ones, precedes."""
        values = np.column_stack([self.costs, self.loss])
        kept = []
        for place, own in enumerate(values):
            no_worse = (values <= own).all(axis=1)
            better = no_worse & (values < own).any(axis=1)
            earlier = no_worse & (np.arange(len(values)) < place)
            if not better.any() and not earlier.any():
                kept.append(place)
        return Item(self.options[kept], self.costs[kept], self.loss[kept])


def solve(items: list[Item], most: Floats | None) -> tuple[Floats, Floats, Indices]:
    """Return costs ``[points, costs]``, losses ``[points]`` and options ``[points, items]``.

    ``most`` None: the whole front of one cost, by rising cost and falling loss. Else upper bounds of the costs: points
    within them, the one of least loss among these; none where there is none.
    """
    if most is None:
        return _run(items, _FrontRule(items))
    if (most < 0).any():
        return np.zeros((0, len(most))), np.zeros(0), np.zeros((0, len(items)), dtype=np.intp)
    return _run(items, _BoundRule(items, most))


class _FrontRule:
    """Which states stay on the way to the whole front of one cost."""

    def __init__(self, items: list[Item]) -> None:
        self.costs = 1
        self._steps: list[tuple[Floats, Floats]] = [_hull_steps(item) for item in items]
        self._low = np.array([item.costs.min() for item in items])
        self._span = sum(float(np.ptp(item.costs)) for item in items)

    def kept(self, number: int, costs: Floats, loss: Floats) -> Indices:
        """Return the places of the states that stay after item ``number``, by rising cost."""
        cost = costs[:, 0]
        if len(loss) <= _EXACT:
            return _pareto(cost, loss)
        above = cost - self._low[: number + 1].sum()
        # A state that costs more within a cell pays for it at the price of the hull there: otherwise every step would
        # prefer the dearest state of a cell, and 200 steps would drift by as many cells.
        slopes = np.concatenate([slopes for slopes, _ in self._steps[: number + 1]])
        widths = np.concatenate([widths for _, widths in self._steps[: number + 1]])
        order = np.argsort(-slopes, kind="stable")
        ends = np.cumsum(widths[order])
        if not len(ends):
            return _pareto(cost, loss)
        index = _cell(above, self._span, _CELLS[0])
        edges = _edge(np.arange(_CELLS[0]), self._span, _CELLS[0])
        price = slopes[order][np.minimum(np.searchsorted(ends, edges), len(ends) - 1)]
        value = loss + price[index] * (above - edges[index])
        kept = np.union1d(_least(value, index, _CELLS[0]), [np.argmin(cost), np.argmin(loss)])
        return kept[_pareto(cost[kept], loss[kept])]


class _BoundRule:
    """Which states stay on the way to the one optimum within bounds."""

    def __init__(self, items: list[Item], most: Floats) -> None:
        self.costs, self._most = len(most), most
        zero = np.zeros((1, len(most)))
        least = np.array([item.costs.min(axis=0) for item in items]).reshape(len(items), len(most))
        self._ahead = np.concatenate([np.cumsum(least[::-1], axis=0)[::-1], zero])
        self._price, self._best = _prices(items, most)
        relaxed = np.array([(item.loss + item.costs @ self._price).min() for item in items])
        self._rest = np.append(np.cumsum(relaxed[::-1])[::-1], 0.0)

    def kept(self, number: int, costs: Floats, loss: Floats) -> Indices:
        """Return the places of the states that stay after item ``number``."""
        slack = self._most * (1 + 1e-12) - self._ahead[number + 1]
        kept = np.flatnonzero((costs <= slack).all(axis=1))
        value = loss + (costs - self._most) @ self._price + self._rest[number + 1]  # no completion has less loss
        kept = kept[value[kept] <= self._best + _ROUNDING * (abs(self._best) + 1e-300)]
        if len(kept) <= _EXACT:
            return kept
        cells = _CELLS[self.costs - 1]
        index = np.zeros(len(kept), dtype=np.intp)
        for place in range(self.costs):
            own = costs[kept, place]
            index = index * cells + _cell(own - own.min(), float(np.ptp(own)), cells)
        kept = kept[np.union1d(_least(value[kept], index, cells**self.costs), np.argmin(costs[kept], axis=0))]
        return kept


def _run(items: list[Item], rule: _FrontRule | _BoundRule) -> tuple[Floats, Floats, Indices]:
    """Add item after item to the states."""
    costs, loss = np.zeros((1, rule.costs)), np.zeros(1)
    steps: list[tuple[Indices, Indices]] = []
    for number, item in enumerate(items):
        costs = (costs[:, None, :] + item.costs[None, :, :]).reshape(-1, rule.costs)
        loss = (loss[:, None] + item.loss[None, :]).ravel()
        kept = rule.kept(number, costs, loss)
        steps.append((kept // len(item.loss), kept % len(item.loss)))
        costs, loss = costs[kept], loss[kept]
    places = np.zeros((len(loss), len(steps)), dtype=np.intp)
    states = np.arange(len(loss))
    for number in range(len(steps) - 1, -1, -1):
        parents, options = steps[number]
        places[:, number] = options[states]
        states = parents[states]
    return costs, loss, places


def _pareto(cost: Floats, loss: Floats) -> Indices:
    """Return the places of the states that no other beats, by rising cost."""
    order = np.lexsort((loss, cost))
    ordered = loss[order]
    least = np.minimum.accumulate(ordered)
    kept = np.ones(len(order), dtype=bool)
    kept[1:] = ordered[1:] < least[:-1]
    return order[kept]


def _cell(above: Floats, span: float, cells: int) -> Indices:
    """Return the cell of costs above the least, finer where they are low."""
    if span <= 0:
        return np.zeros(len(above), dtype=np.intp)
    part = np.log1p(np.maximum(above, 0.0) / (_BEND * span)) / np.log1p(1 / _BEND)
    found: Indices = np.minimum((cells * part).astype(np.intp), cells - 1)
    return found


def _edge(cells: Indices, span: float, count: int) -> Floats:
    """Return the least cost of cells: the inverse of :func:`_cell`."""
    edges: Floats = _BEND * span * np.expm1(cells / count * np.log1p(1 / _BEND))
    return edges


def _least(value: Floats, index: Indices, cells: int) -> Indices:
    """Return the place of the least value of each cell, the first of equal ones."""
    best = np.full(cells, np.inf)
    np.minimum.at(best, index, value)
    found = np.flatnonzero(value == best[index])
    _, firsts = np.unique(index[found], return_index=True)
    return found[firsts]


def _hull_steps(item: Item) -> tuple[Floats, Floats]:
    """Return the slopes (loss saved for each unit of cost, falling) and widths of the lower convex hull of an item."""
    order = _pareto(item.costs[:, 0], item.loss)
    hull: list[int] = []
    cost, loss = item.costs[order, 0], item.loss[order]
    for place in range(len(order)):
        while len(hull) > 1:
            a, b = hull[-2:]
            if (loss[a] - loss[b]) * (cost[place] - cost[b]) > (loss[b] - loss[place]) * (cost[b] - cost[a]):
                break
            hull.pop()
        hull.append(place)
    widths = np.diff(cost[hull])
    return -np.diff(loss[hull]) / np.maximum(widths, 1e-300), widths


def _prices(items: list[Item], most: Floats) -> tuple[Floats, float]:
    """Return prices of the costs whose relaxation has the highest least loss found, and the least loss of a real point.

    Subgradient ascent of the Lagrangian dual. The loss is infinite where no assignment seen keeps the bounds.
    """
    scale = np.maximum(most, sum(item.costs.max(axis=0) for item in items) * 1e-6) if items else most
    scale = np.maximum(scale, 1e-300)
    size = max((len(item.loss) for item in items), default=1)
    loss, costs = np.full((len(items), size), np.inf), np.zeros((len(items), size, len(most)))
    for number, item in enumerate(items):
        loss[number, : len(item.loss)], costs[number, : len(item.loss)] = item.loss, item.costs / scale
    bounds = most / scale
    rows = np.arange(len(items))
    found = np.inf

    def relaxed(prices: Floats) -> tuple[float, Floats]:
        """Return the dual value and by how much its assignment passes the bounds."""
        nonlocal found
        choice = np.argmin(loss + costs @ prices, axis=1)
        gap, own = costs[rows, choice].sum(axis=0) - bounds, float(loss[rows, choice].sum())
        found = min(found, own) if (gap <= 0).all() else found
        return own + float(prices @ gap), gap

    spread = sum(float(np.ptp(item.loss)) for item in items)
    prices, best_prices, best = np.zeros(len(most)), np.zeros(len(most)), -np.inf
    for step in range(_PRICE_STEPS):
        dual, gap = relaxed(prices)
        if dual > best:
            best, best_prices = dual, prices
        norm = float(gap @ gap)
        if norm < 1e-24 or best >= found:
            break
        # Polyak's step towards the least loss known, and a shrinking one where none is.
        aim = found - dual if np.isfinite(found) else spread
        prices = np.maximum(prices + aim / (1 + step / 20) * gap / norm, 0.0)
    for factor in 1 + np.geomspace(1e-4, 1e3, 60):
        relaxed(best_prices * factor)
    return best_prices / scale, found
