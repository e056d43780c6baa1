"""Front: the best assignment for every budget, and the choice of one of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from octavo.errors import ConfigError
from octavo.search.layer_sensitivity import Sensitivity
from octavo.storage.arguments import checks_arguments

if TYPE_CHECKING:
    from rich.table import Table

BUDGETS = ("nbytes", "bits", "loss", "cost")


@dataclass(frozen=True)
class Point:
    """One assignment: ``choice`` is the format text of each group by its name, ``keep`` for a float group.

    ``nbytes``: bytes of all tensors of the model; ``bits``: the same per parameter. ``loss``: the predicted loss, a sum
    over the groups. ``cost``: in the unit of the front, bytes by default.
    """

    choice: dict[str, str] = field(hash=False)
    nbytes: int
    bits: float
    loss: float
    cost: float


@dataclass(frozen=True, eq=False)
class Front:
    """Pareto-optimal assignments by rising cost; the loss falls strictly.

    ``cost``, ``loss``: float64 ``[points]``. ``picks``: ``[points, groups]``, indices of ``sensitivity.formats``.
    ``unit``: the unit of the cost. Points are created on access: ``front[i]``, ``front.points``.
    """

    sensitivity: Sensitivity = field(repr=False)
    cost: NDArray[np.float64] = field(repr=False)
    loss: NDArray[np.float64] = field(repr=False)
    picks: NDArray[np.intp] = field(repr=False)
    unit: str = "bytes"

    @cached_property
    def nbytes(self) -> NDArray[np.int64]:
        """Bytes of the model at each point, int64 ``[points]``."""
        sensitivity = self.sensitivity
        rows = np.arange(len(sensitivity.groups))
        total: NDArray[np.int64] = (
            sensitivity.nbytes[rows, self.picks].sum(axis=1, dtype=np.int64) + sensitivity.fixed_nbytes
        )
        return total

    @cached_property
    def bits(self) -> NDArray[np.float64]:
        """Bits for each parameter of the model, float64 ``[points]``."""
        bits: NDArray[np.float64] = 8.0 * self.nbytes / self.sensitivity.parameters
        return bits

    @property
    def points(self) -> tuple[Point, ...]:
        """All points."""
        return tuple(self)

    def __len__(self) -> int:
        """Number of points."""
        return len(self.loss)

    def __iter__(self) -> Iterator[Point]:
        """Points from the cheapest."""
        return (self[place] for place in range(len(self)))

    def __getitem__(self, place: int) -> Point:
        """Return one point."""
        sensitivity, picks = self.sensitivity, self.picks[place]
        choice = {group.name: sensitivity.formats[pick] for group, pick in zip(sensitivity.groups, picks, strict=True)}
        return Point(
            choice,
            int(self.nbytes[place]),
            float(self.bits[place]),
            float(self.loss[place]),
            float(self.cost[place]),
        )

    @checks_arguments
    def at(
        self,
        *,
        nbytes: float | None = None,
        bits: float | None = None,
        loss: float | None = None,
        cost: float | None = None,
    ) -> Point:
        """Return the point of least loss within a cost, or the cheapest within a loss; exactly one bound is given.

        Args:
            nbytes: bytes of all tensors of the model.
            bits: the same for each parameter.
            loss: predicted loss.
            cost: in the unit of the front.

        Returns:
            The point.

        Raises:
            ConfigError: for no bound or several, and for one that no point satisfies; says the least possible value.
        """
        budgets = {
            name: value for name, value in zip(BUDGETS, (nbytes, bits, loss, cost), strict=True) if value is not None
        }
        if len(budgets) != 1:
            raise ConfigError(f"a point is chosen by one of {', '.join(BUDGETS)}; got {', '.join(budgets) or 'none'}")
        name, bound = next(iter(budgets.items()))
        values = getattr(self, name)
        inside = np.flatnonzero(values <= bound)
        if not len(inside):
            more = "give more" if name != "loss" else "allow more"
            raise ConfigError(
                f"no assignment has {name} <= {bound:g}: the least is {values.min():g}; {more}, or other formats"
            )
        aim = self.cost if name == "loss" else self.loss
        return self[int(inside[np.argmin(aim[inside])])]

    @checks_arguments
    def spread(self, count: int = 10, *, bits: tuple[float, float] | None = None) -> tuple[Point, ...]:
        """Return different points, evenly apart in the logarithm of their bytes.

        Args:
            count: most points.
            bits: range of bits for each parameter, ``(low, high)``; default: the whole front.

        Returns:
            The points, by rising cost.

        Raises:
            ConfigError: if no point is in the range.
        """
        low, high = (float(self.bits.min()), float(self.bits.max())) if bits is None else bits
        inside = np.flatnonzero((self.bits >= low) & (self.bits <= high))
        if count < 1:
            raise ConfigError(f"count is {count}; accepted are whole numbers of at least 1")
        if not len(inside):
            raise ConfigError(
                f"no point of the front has {low:g} to {high:g} bits; it has {self.bits.min():g} to {self.bits.max():g}"
            )
        places = np.log(self.nbytes[inside].astype(np.float64))
        wanted = np.linspace(places.min(), places.max(), count)
        chosen = {int(inside[np.argmin(np.abs(places - place))]) for place in wanted}
        return tuple(self[place] for place in sorted(chosen))

    @checks_arguments
    def knee_points(self, count: int = 3) -> tuple[Point, ...]:
        """Return points after which more bytes buy less, one in each of ``count`` ranges of bytes.

        The knee of a range is the point furthest below the line from its first to its last point, on logarithmic axes.

        Args:
            count: most points.

        Returns:
            The points, by rising cost.
        """
        if count < 1:
            raise ConfigError(f"count is {count}; accepted are whole numbers of at least 1")
        lossy = np.flatnonzero(self.loss > 0)
        if len(lossy) < 3:
            return tuple(self[int(place)] for place in lossy)
        x, y = np.log(self.nbytes[lossy].astype(np.float64)), np.log(self.loss[lossy])
        places = set()
        for low, high in _ranges(x, count):
            inside = np.flatnonzero((x >= low) & (x <= high))
            if len(inside) < 3:
                continue
            first, last = inside[0], inside[-1]
            line = y[first] + (y[last] - y[first]) * (x[inside] - x[first]) / max(x[last] - x[first], 1e-12)
            places.add(int(lossy[inside[np.argmax(line - y[inside])]]))
        return tuple(self[place] for place in sorted(places))

    @checks_arguments
    def to_table(self, count: int = 12) -> Table:
        """Return points as rows: bits, bytes, predicted loss, and the share of parameters in each format.

        Args:
            count: number of rows.

        Returns:
            A table of rich.
        """
        from octavo.display.console import table
        from octavo.display.numbers import size

        rows = table(">bits", ">bytes", ">predicted loss", "formats by parameters")
        for point in self.spread(count):
            rows.add_row(f"{point.bits:.2f}", size(point.nbytes), f"{point.loss:.3e}", self.mix(point))
        return rows

    @checks_arguments
    def mix(self, point: Point) -> str:
        """Return the share of the parameters in each format at a point.

        Args:
            point: of this front.

        Returns:
            A text, the largest share first.
        """
        shares: dict[str, int] = {}
        for group in self.sensitivity.groups:
            shares[point.choice[group.name]] = shares.get(point.choice[group.name], 0) + group.elements
        total = max(sum(shares.values()), 1)
        return ", ".join(
            f"{text} {100 * elements / total:.0f}%"
            for text, elements in sorted(shares.items(), key=lambda item: -item[1])
            if elements
        )

    @checks_arguments
    def to_json(self, count: int | None = None) -> str:
        """Return the points as JSON.

        Args:
            count: most points, spread over the front; default: all.

        Returns:
            A text.
        """
        points: Any = self.points if count is None else self.spread(count)
        return json.dumps({"unit": self.unit, "points": [asdict(point) for point in points]}, indent=1)


def _ranges(x: NDArray[np.float64], count: int) -> Iterator[tuple[float, float]]:
    edges = np.linspace(x.min(), x.max(), count + 1)
    return ((float(low), float(high)) for low, high in pairwise(edges))
