"""Multiple-choice knapsack: the least total loss for every total cost, one option per item, by dynamic programming."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

_EXACT = 1 << 14  # number of states up to which every undominated state is kept
_CELLS = (1 << 12, 100, 20, 10)  # cells per cost beyond that, by the number of costs
_BEND = 1 / 16  # cells at the lowest costs are about 17 times finer than at the highest
_PRICE_STEPS = 400
_ROUNDING = 1e-9  # relative tolerance for sums in another order
MOST_BOUNDS = len(_CELLS)


@dataclass(frozen=True, eq=False)
class Item:
    """One decision. ``options``: ``[options, ...]``, what each stands for; ``costs`` ``[options, costs]``; ``loss``."""

    options: Indices
    costs: Floats
    loss: Floats

    def undominated(self) -> Item:
        """Return the item with its undominated options; of equal options the first stays."""
        values = np.column_stack([self.costs, self.loss])
        places = []
        for place, own in enumerate(values):
            no_worse = (values <= own).all(axis=1)
            better = no_worse & (values < own).any(axis=1)
            earlier = no_worse & (np.arange(len(values)) < place)
            if not better.any() and not earlier.any():
                places.append(place)
        return Item(self.options[places], self.costs[places], self.loss[places])


def solve(items: list[Item], most: Floats | None) -> tuple[Floats, Floats, Indices]:
    """Return costs ``[points, costs]``, losses ``[points]`` and options ``[points, items]``.

    ``most`` None: the whole front of one cost, by rising cost and falling loss. Otherwise ``most`` has upper bounds of
    the costs, and the points are within them and include the optimum. There are no points if no assignment fits.
    """
    if most is None:
        return _run(items, _FrontRule(items))
    if (most < 0).any():
        return np.zeros((0, len(most))), np.zeros(0), np.zeros((0, len(items)), dtype=np.intp)
    return _run(items, _BoundRule(items, most))


class _FrontRule:
    """Pruning of states for the whole front of one cost."""

    def __init__(self, items: list[Item]) -> None:
        self.costs = 1
        self._steps: list[tuple[Floats, Floats]] = [_hull_steps(item) for item in items]
        self._low = np.array([item.costs.min() for item in items])
        self._span = sum(float(np.ptp(item.costs)) for item in items)

    def select(self, number: int, costs: Floats, loss: Floats) -> Indices:
        """Return the places of the states that survive item ``number``, by rising cost."""
        cost = costs[:, 0]
        if len(loss) <= _EXACT:
            return _pareto(cost, loss)
        above = cost - self._low[: number + 1].sum()
        # Within a cell, costs are charged at the slope of the hull there. Otherwise every step would prefer the most
        # expensive state of a cell, and 200 steps would drift by as many cells.
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
        places = np.union1d(_least(value, index, _CELLS[0]), [np.argmin(cost), np.argmin(loss)])
        return places[_pareto(cost[places], loss[places])]


class _BoundRule:
    """Pruning of states for the one optimum within bounds: branch and bound with Lagrangian prices."""

    def __init__(self, items: list[Item], most: Floats) -> None:
        self.costs, self._most = len(most), most
        zero = np.zeros((1, len(most)))
        least = np.array([item.costs.min(axis=0) for item in items]).reshape(len(items), len(most))
        self._ahead = np.concatenate([np.cumsum(least[::-1], axis=0)[::-1], zero])
        self._price, self._best = _prices(items, most)
        relaxed = np.array([(item.loss + item.costs @ self._price).min() for item in items])
        self._rest = np.append(np.cumsum(relaxed[::-1])[::-1], 0.0)

    def select(self, number: int, costs: Floats, loss: Floats) -> Indices:
        """Return the places of the states that survive item ``number``."""
        slack = self._most * (1 + 1e-12) - self._ahead[number + 1]
        places = np.flatnonzero((costs <= slack).all(axis=1))
        value = loss + (costs - self._most) @ self._price + self._rest[number + 1]  # no completion has less loss
        places = places[value[places] <= self._best + _ROUNDING * (abs(self._best) + 1e-300)]
        if len(places) <= _EXACT:
            return places
        cells = _CELLS[self.costs - 1]
        index = np.zeros(len(places), dtype=np.intp)
        for place in range(self.costs):
            own = costs[places, place]
            index = index * cells + _cell(own - own.min(), float(np.ptp(own)), cells)
        places = places[np.union1d(_least(value[places], index, cells**self.costs), np.argmin(costs[places], axis=0))]
        return places


def _run(items: list[Item], rule: _FrontRule | _BoundRule) -> tuple[Floats, Floats, Indices]:
    """Extend the states item by item, then trace back the options of the final states."""
    costs, loss = np.zeros((1, rule.costs)), np.zeros(1)
    steps: list[tuple[Indices, Indices]] = []
    for number, item in enumerate(items):
        costs = (costs[:, None, :] + item.costs[None, :, :]).reshape(-1, rule.costs)
        loss = (loss[:, None] + item.loss[None, :]).ravel()
        survivors = rule.select(number, costs, loss)
        steps.append((survivors // len(item.loss), survivors % len(item.loss)))
        costs, loss = costs[survivors], loss[survivors]
    places = np.zeros((len(loss), len(steps)), dtype=np.intp)
    states = np.arange(len(loss))
    for number in range(len(steps) - 1, -1, -1):
        parents, options = steps[number]
        places[:, number] = options[states]
        states = parents[states]
    return costs, loss, places


def _pareto(cost: Floats, loss: Floats) -> Indices:
    """Return the places of the undominated states, by rising cost."""
    order = np.lexsort((loss, cost))
    ordered = loss[order]
    least = np.minimum.accumulate(ordered)
    is_best = np.ones(len(order), dtype=bool)
    is_best[1:] = ordered[1:] < least[:-1]
    return order[is_best]


def _cell(above: Floats, span: float, cells: int) -> Indices:
    """Return the cell of each cost, given as its distance above the least; cells are finer at low costs."""
    if span <= 0:
        return np.zeros(len(above), dtype=np.intp)
    part = np.log1p(np.maximum(above, 0.0) / (_BEND * span)) / np.log1p(1 / _BEND)
    cell: Indices = np.minimum((cells * part).astype(np.intp), cells - 1)
    return cell


def _edge(cells: Indices, span: float, count: int) -> Floats:
    """Return the least cost of cells: the inverse of :func:`_cell`."""
    edges: Floats = _BEND * span * np.expm1(cells / count * np.log1p(1 / _BEND))
    return edges


def _least(value: Floats, index: Indices, cells: int) -> Indices:
    """Return the place of the least value of each cell, the first of equal ones."""
    best = np.full(cells, np.inf)
    np.minimum.at(best, index, value)
    places = np.flatnonzero(value == best[index])
    _, firsts = np.unique(index[places], return_index=True)
    return places[firsts]


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
    """Return the prices of the costs with the best Lagrangian bound, and the least loss of a feasible assignment.

    Subgradient ascent of the Lagrangian dual. The loss is infinite if no visited assignment satisfies the bounds.
    """
    scale = np.maximum(most, sum(item.costs.max(axis=0) for item in items) * 1e-6) if items else most
    scale = np.maximum(scale, 1e-300)
    size = max((len(item.loss) for item in items), default=1)
    loss, costs = np.full((len(items), size), np.inf), np.zeros((len(items), size, len(most)))
    for number, item in enumerate(items):
        loss[number, : len(item.loss)], costs[number, : len(item.loss)] = item.loss, item.costs / scale
    bounds = most / scale
    rows = np.arange(len(items))
    best_loss = np.inf

    def relaxed(prices: Floats) -> tuple[float, Floats]:
        """Return the dual value, and by how much its assignment exceeds the bounds."""
        nonlocal best_loss
        choice = np.argmin(loss + costs @ prices, axis=1)
        gap, own = costs[rows, choice].sum(axis=0) - bounds, float(loss[rows, choice].sum())
        best_loss = min(best_loss, own) if (gap <= 0).all() else best_loss
        return own + float(prices @ gap), gap

    spread = sum(float(np.ptp(item.loss)) for item in items)
    prices, best_prices, best = np.zeros(len(most)), np.zeros(len(most)), -np.inf
    for step in range(_PRICE_STEPS):
        dual, gap = relaxed(prices)
        if dual > best:
            best, best_prices = dual, prices
        norm = float(gap @ gap)
        if norm < 1e-24 or best >= best_loss:
            break
        # Polyak's step towards the least known loss; a shrinking step while none is known.
        aim = best_loss - dual if np.isfinite(best_loss) else spread
        prices = np.maximum(prices + aim / (1 + step / 20) * gap / norm, 0.0)
    for factor in 1 + np.geomspace(1e-4, 1e3, 60):
        relaxed(best_prices * factor)
    return best_prices / scale, best_loss
