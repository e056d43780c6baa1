"""allocate: for every budget the assignment of least additive loss, by dynamic programming over the groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from octavo.errors import ConfigError, FormatError
from octavo.recipe.rule import KEEP, read_spec, spec_text
from octavo.recipe.text import parse_selector
from octavo.search.knapsack import MOST_BOUNDS, Floats, Item, solve
from octavo.search.latency_table import LatencyTable
from octavo.search.layer_sensitivity import INPUT, Group, Sensitivity
from octavo.search.number_arrays import number_array
from octavo.search.pareto_front import Front
from octavo.storage.arguments import checks_arguments

_UNITS = ("bytes", "bitops")
_FLOAT_BITS = 32


@checks_arguments
def allocate(
    sensitivity: Sensitivity,
    *,
    cost: str | LatencyTable | ArrayLike = "bytes",
    pins: Mapping[str, str] | None = None,
    bounds: Mapping[str, Any] | None = None,
) -> Front:
    """Return the assignments of least predicted loss for every budget at once.

    The predicted loss of an assignment is the sum of the losses of its groups. The front is exact while the first
    groups have at most 16,384 undominated assignments. Beyond that, the range of the cost is cut into 4,096 cells, and
    the best assignment of each cell goes on. The result depends neither on the order of groups nor on formats that are
    worse than others everywhere.

    Args:
        sensitivity: losses and bytes by group and format.
        cost: ``bytes`` on disk of the whole model, ``bitops`` of the groups' layers for one sample (multiply-adds times
            the element bits of weight and input), the seconds of a LatencyTable, or an array ``[groups, formats]`` of
            any additive cost.
        pins: formats that are fixed, by the name of a group or a selector of layers.
        bounds: upper bounds, ``{"bytes": N, "bitops": N, NAME: (LatencyTable, seconds), NAME: (array, N)}``. With
            bounds the front is the one assignment of least loss within all of them, and ``cost`` is only reported.

    Returns:
        The Pareto front.

    Raises:
        ConfigError: for pins and bounds that name nothing or that no assignment satisfies.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
        >>> sensitivity = octavo.search.measure_sensitivity(model, [torch.randn(16, 64)], ["mxint8", "mxint4"])
        >>> front = octavo.search.allocate(sensitivity)
        >>> front.at(bits=6).choice  # the small last layer keeps 8 bits
        {'0': 'mxint4', '2': 'mxint8'}
    """
    pinned = _pinned(sensitivity, pins or {})
    limits = None if bounds is None else _limits(sensitivity, bounds)
    unit, own = _cost(sensitivity, cost)
    rest = cost.rest if isinstance(cost, LatencyTable) else 0.0
    wanted = [own] if limits is None else [table for table, *_ in limits.values()]
    joined = unit == "bitops" if limits is None else "bitops" in limits
    items = _items(sensitivity, wanted, pinned, joined)
    fixed = [float(sensitivity.fixed_nbytes) if table is None else 0.0 for table in wanted]
    most = None if limits is None else np.array([bound - outside for _, bound, outside in limits.values()]) - fixed
    costs, loss, places = solve(items, most)
    if not len(loss):
        assert limits is not None  # without bounds every assignment is allowed
        bounds_text = ", ".join(f"{name} <= {bound:g}" for name, (_, bound, _) in limits.items())
        raise ConfigError(f"no assignment keeps {bounds_text}; allow more, or give more formats")
    picks = np.zeros((len(loss), len(sensitivity.groups)), dtype=np.intp)
    for number, (item, rows) in enumerate(zip(items, _rows(sensitivity, joined=joined), strict=True)):
        picks[:, rows] = item.options[places[:, number]]
    if limits is None:
        return Front(sensitivity, costs[:, 0] + fixed[0] + rest, loss, picks, unit)
    best = int(np.argmin(loss))
    picks, loss = picks[best : best + 1], loss[best : best + 1]
    return Front(sensitivity, _total(sensitivity, own, picks, unit) + rest, loss, picks, unit)


# --- costs ------------------------------------------------------------------------------------------------------------

# A cost: an array [groups, formats]; None for bytes; "bitops", a sum over layers instead of groups.
_Cost = Floats | str | None


def _cost(sensitivity: Sensitivity, cost: Any) -> tuple[str, _Cost]:
    if isinstance(cost, str):
        if cost not in _UNITS:
            raise ConfigError(f"cost is {cost!r}; accepted are {', '.join(_UNITS)} and arrays [groups, formats]")
        return cost, None if cost == "bytes" else cost
    if isinstance(cost, LatencyTable):
        return "seconds", _checked(sensitivity, cost.seconds, "cost")
    return "cost", _checked(sensitivity, cost, "cost")


def _limits(sensitivity: Sensitivity, bounds: Mapping[str, Any]) -> dict[str, tuple[_Cost, float, float]]:
    """Return the cost, the upper bound, and the constant cost outside the groups of each bound."""
    limits: dict[str, tuple[_Cost, float, float]] = {}
    for name, value in bounds.items():
        if name in _UNITS:
            limits[name] = (None if name == "bytes" else name, _number(name, value), 0.0)
        elif isinstance(value, Sequence) and len(value) == 2:
            table = value[0].seconds if isinstance(value[0], LatencyTable) else value[0]
            rest = value[0].rest if isinstance(value[0], LatencyTable) else 0.0
            limits[name] = (_checked(sensitivity, table, f"bound {name!r}"), _number(name, value[1]), rest)
        else:
            raise ConfigError(
                f"bound {name!r} is no pair (array [groups, formats], bound); by name: {', '.join(_UNITS)}"
            )
    if not 1 <= len(limits) <= MOST_BOUNDS:
        raise ConfigError(f"bounds: {len(limits)} are given; accepted are 1 to {MOST_BOUNDS}")
    return limits


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigError(f"bound {name!r} is {value!r}; accepted are numbers above 0")
    return float(value)


def _checked(sensitivity: Sensitivity, values: Any, label: str) -> Floats:
    table = number_array(values, label, error=ConfigError)
    if table.shape != sensitivity.loss.shape:
        raise ConfigError(
            f"{label} has shape {table.shape}; accepted is {sensitivity.loss.shape}, groups times formats"
        )
    needed = table[~np.isnan(sensitivity.loss)]
    if not np.isfinite(needed).all() or (needed < 0).any():
        raise ConfigError(f"{label} holds numbers below 0, NaN or infinity where a group has a format")
    return table


def element_bits(text: str, role: str, group: Group | None, nbytes: int) -> int:
    """Return the bits of an element in a format: for ``keep`` those of the float tensors, or 32 for inputs."""
    spec = None if text == KEEP else read_spec(text)
    if spec is not None:
        return spec.format.width
    return _FLOAT_BITS if role == "input" or group is None or not group.elements else 8 * nbytes // group.elements


def _bitops(sensitivity: Sensitivity, rows: tuple[int, ...], picks: NDArray[np.intp]) -> Floats:
    """Return the BitOPs of one decision.

    ``rows``: the groups of the weight and the input of the same layers, or one of the two. ``picks``:
    ``[options, rows]``. An operand that is in no group counts 32 bits.
    """
    total = np.full(len(picks), float(max(sensitivity.groups[row].macs for row in rows)))
    for place, row in enumerate(rows):
        group = sensitivity.groups[row]
        formats = zip(sensitivity.formats, sensitivity.nbytes[row].tolist(), strict=True)
        bits = np.array([element_bits(text, group.role, group, nbytes) for text, nbytes in formats], dtype=np.float64)
        total *= bits[picks[:, place]]
    return total if len(rows) == 2 else total * _FLOAT_BITS


def _total(sensitivity: Sensitivity, cost: _Cost, picks: NDArray[np.intp], unit: str) -> Floats:
    """Return the cost of whole assignments ``[points, groups]``."""
    if isinstance(cost, str):
        parts = [_bitops(sensitivity, rows, picks[:, list(rows)]) for rows in _rows(sensitivity, joined=True)]
        return np.sum(parts, axis=0, dtype=np.float64)
    table = sensitivity.nbytes.astype(np.float64) if cost is None else cost
    total: Floats = table[np.arange(len(table)), picks].sum(axis=1)
    return total + (sensitivity.fixed_nbytes if unit == "bytes" else 0)


# --- decisions --------------------------------------------------------------------------------------------------------


def _pinned(sensitivity: Sensitivity, pins: Mapping[str, str]) -> dict[int, int]:
    """Return the format index of each group that is decided."""
    columns: dict[int, int] = {}
    rows = {group.name: row for row, group in enumerate(sensitivity.groups)}
    for name, text in pins.items():
        column = _column(sensitivity, name, text)
        chosen = [rows[name]] if name in rows else _selected(sensitivity, name)
        if not chosen:
            raise ConfigError(f"pin {name!r} names no group; the groups are {', '.join(list(rows)[:4])}, ...")
        for row in chosen:
            if np.isnan(sensitivity.loss[row, column]):
                raise ConfigError(f"pin {name!r}: {sensitivity.groups[row].name} cannot have '{text}'")
            columns[row] = column
    return columns


def _column(sensitivity: Sensitivity, name: str, text: str) -> int:
    try:
        written = spec_text(read_spec(text))
    except FormatError as error:
        raise ConfigError(f"pin {name!r}: {error}") from None
    if written not in sensitivity.formats:
        raise ConfigError(f"pin {name!r}: '{text}' was not measured; formats are {', '.join(sensitivity.formats)}")
    return sensitivity.formats.index(written)


def _selected(sensitivity: Sensitivity, text: str) -> list[int]:
    try:
        selector = parse_selector(text)
    except FormatError as error:
        raise ConfigError(f"pin {text!r}: {error}") from None
    if not selector.is_path or selector.pick:
        raise ConfigError(f"pin {text!r}: groups are pinned by their name, or by the path or a pattern of layers")
    return [
        row
        for row, group in enumerate(sensitivity.groups)
        if group.role == "weight" and any(map(selector.matches_path, (*group.layers, *group.tensors)))
    ]


def _rows(sensitivity: Sensitivity, *, joined: bool) -> list[tuple[int, ...]]:
    """Return the groups of each decision, in an order that depends on their names alone.

    ``joined``: weight and input of the same layers are one decision, since their bits are multiplied.
    """
    ordered = sorted(range(len(sensitivity.groups)), key=lambda row: sensitivity.groups[row].name)
    if not joined:
        return [(row,) for row in ordered]
    together: dict[str, list[int]] = {}
    for row in ordered:
        group = sensitivity.groups[row]
        together.setdefault(group.name.removesuffix(INPUT) if group.role == "input" else group.name, []).append(row)
    return [tuple(rows) for rows in together.values()]


def _items(sensitivity: Sensitivity, wanted: list[_Cost], pinned: Mapping[int, int], joined: bool) -> list[Item]:
    """Return the decisions, each with its undominated options: none is worse than another in loss and every cost."""
    items = []
    for rows in _rows(sensitivity, joined=joined):
        allowed = [
            np.array([pinned[row]]) if row in pinned else np.flatnonzero(~np.isnan(sensitivity.loss[row]))
            for row in rows
        ]
        picks = np.stack([grid.ravel() for grid in np.meshgrid(*allowed, indexing="ij")], axis=1)
        loss = sensitivity.loss[list(rows), picks].sum(axis=1)
        costs = [
            _bitops(sensitivity, rows, picks)
            if isinstance(cost, str)
            else (sensitivity.nbytes if cost is None else cost)[list(rows), picks].sum(axis=1)
            for cost in wanted
        ]
        items.append(Item(picks, np.stack(costs, axis=1).astype(np.float64), loss).undominated())
    return items
