"""Allocation equals brute force, never predicts worse for more budget, and depends on nothing but losses and costs."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo.errors import ConfigError, DataError
from octavo.search import Front, Group, Sensitivity, allocate

FORMATS = ("int2", "int3", "int4:g32", "int8", "mxint8")
SUMS = 1e-9  # relative: sums of the same terms in another order


def sensitivity(loss, nbytes, *, fixed=0, macs=None, roles=None, layers=None, names=None):
    """A table of any losses and bytes; the last column is keep."""
    count, columns = np.shape(loss)
    groups = tuple(
        Group(
            names[row] if names else f"layer{row:03}", roles[row] if roles else "weight", (layers[row] if layers else f"layer{row:03}",),
            elements=1000, macs=macs[row] if macs else 1000,
        )
        for row in range(count)
    )  # fmt: skip
    formats = (*FORMATS[: columns - 1], *(f"int{n}" for n in range(5, columns)))[: columns - 1]
    return Sensitivity(groups, (*formats, "keep"), loss, nbytes, fixed, 1000 * count)


@st.composite
def tables(draw, most=5, columns=4):
    count, columns = draw(st.integers(1, most)), draw(st.integers(1, columns))
    # Losses that are multiples of 1/64 add up exactly in any order.
    loss = draw(
        st.lists(st.lists(st.integers(0, 640), min_size=columns, max_size=columns), min_size=count, max_size=count)
    )
    nbytes = draw(
        st.lists(st.lists(st.integers(0, 50), min_size=columns, max_size=columns), min_size=count, max_size=count)
    )
    absent = draw(st.lists(st.lists(st.booleans(), min_size=columns, max_size=columns), min_size=count, max_size=count))
    values = np.array(loss) / 64
    values[np.array(absent)] = math.nan
    values[:, -1] = 0
    return sensitivity(values, np.array(nbytes), fixed=draw(st.integers(0, 20)))


def assignments(held):
    """Every assignment that there is: format indices, loss, bytes."""
    columns = [np.flatnonzero(~np.isnan(row)) for row in held.loss]
    rows = np.arange(len(held.groups))
    for picks in itertools.product(*columns):
        yield picks, held.loss[rows, picks].sum(), int(held.nbytes[rows, picks].sum()) + held.fixed_nbytes


@settings(max_examples=60, deadline=None)
@given(tables())
def test_the_front_is_that_of_all_assignments(held):
    front = allocate(held)
    every = [(nbytes, loss) for _, loss, nbytes in assignments(held)]
    best = sorted(
        {(n, loss) for n, loss in every if not any((a <= n and b < loss) or (a < n and b <= loss) for a, b in every)}
    )
    assert [(point.nbytes, point.loss) for point in front] == best
    assert [point.cost for point in front] == [n for n, _ in best]
    for point in front:  # the choice is what was counted
        rows = [held.formats.index(point.choice[group.name]) for group in held.groups]
        assert held.loss[range(len(rows)), rows].sum() == point.loss


@settings(max_examples=60, deadline=None)
@given(tables(), st.integers(1, 200), st.integers(1, 200))
def test_more_budget_never_predicts_worse(held, one, two):
    front = allocate(held)
    low, high = sorted((one, two))
    if low >= front.nbytes.min():
        assert front.at(nbytes=high).loss <= front.at(nbytes=low).loss


@settings(max_examples=60, deadline=None)
@given(tables(), st.randoms(use_true_random=False))
def test_the_order_of_groups_changes_nothing(held, random):
    order = list(range(len(held.groups)))
    random.shuffle(order)
    other = Sensitivity(
        tuple(held.groups[row] for row in order), held.formats, held.loss[order], held.nbytes[order],
        held.fixed_nbytes, held.parameters,
    )  # fmt: skip
    assert allocate(other).points == allocate(held).points


@settings(max_examples=60, deadline=None)
@given(tables(), st.integers(0, 3), st.integers(0, 10))
def test_a_useless_format_changes_nothing(held, place, worse):
    place = min(place, len(held.formats) - 1)
    # No better than keep in loss and bytes everywhere.
    loss = np.insert(held.loss, place, held.loss[:, -1] + worse, axis=1)
    nbytes = np.insert(held.nbytes, place, held.nbytes[:, -1] + 1, axis=1)
    formats = (*held.formats[:place], "e5m2", *held.formats[place:])
    other = Sensitivity(held.groups, formats, loss, nbytes, held.fixed_nbytes, held.parameters)
    assert allocate(other).points == allocate(held).points


@settings(max_examples=60, deadline=None)
@given(tables(most=4, columns=3), st.integers(1, 150), st.integers(1, 150), st.data())
def test_several_bounds_give_the_one_optimum(held, most_bytes, most_other, data):
    other = np.array(
        data.draw(st.lists(st.integers(0, 60), min_size=held.loss.size, max_size=held.loss.size)), dtype=float
    ).reshape(held.loss.shape)
    rows = np.arange(len(held.groups))
    inside = [
        loss
        for picks, loss, nbytes in assignments(held)
        if nbytes <= most_bytes and other[rows, picks].sum() <= most_other
    ]
    bounds = {"bytes": most_bytes, "seconds": (other, most_other)}
    if not inside:
        with pytest.raises(ConfigError, match="no assignment keeps"):
            allocate(held, bounds=bounds)
        return
    front = allocate(held, bounds=bounds)
    assert len(front) == 1 and front[0].loss == min(inside)
    assert front[0].nbytes <= most_bytes


@settings(max_examples=60, deadline=None)
@given(tables(most=4, columns=3), st.data())
def test_bit_operations_are_products_of_both_operands(held, data):
    count = len(held.groups)
    macs = [data.draw(st.integers(0, 9)) for _ in range(count)]
    roles = ["weight" if row % 2 == 0 else "input" for row in range(count)]
    layers = [f"layer{row // 2}" for row in range(count)]
    names = [layer + (" input" if row % 2 else "") for row, layer in enumerate(layers)]
    table = sensitivity(
        held.loss, held.nbytes, macs=[macs[row // 2] for row in range(count)], roles=roles, layers=layers, names=names
    )
    widths = [{"int2": 2, "int3": 3, "int4:g32": 4}.get(text, 32) for text in table.formats]
    keep = [8 * int(nbytes) // 1000 for nbytes in table.nbytes[:, -1]]

    def bits(row, pick):
        return keep[row] if widths[pick] == 32 and roles[row] == "weight" else widths[pick]

    every = []
    for picks, loss, _ in assignments(table):
        total = 0
        for row in range(0, count, 2):
            x = bits(row + 1, picks[row + 1]) if row + 1 < count else 32
            total += macs[row // 2] * bits(row, picks[row]) * x
        every.append((total, loss))
    best = sorted({(n, a) for n, a in every if not any((m <= n and b < a) or (m < n and b <= a) for m, b in every)})
    front = allocate(table, cost="bitops")
    assert [(point.cost, point.loss) for point in front] == best


def large(groups=200, formats=12, seed=0):
    random = np.random.default_rng(seed)
    bits = np.array([2.25, 2.5, 3.25, 3.5, 4.25, 4.5, 5.25, 6.25, 7, 8.25, 16, 32])[-formats:]
    elements = random.integers(10_000, 4_000_000, groups)
    loss = np.exp(random.normal(0, 2, groups))[:, None] * 4.0**-bits * np.exp(random.normal(0, 0.3, (groups, formats)))
    loss[:, -1] = 0
    named = tuple(
        Group(f"layer{row}", "weight", (f"layer{row}",), elements=int(n), macs=int(n)) for row, n in enumerate(elements)
    )
    texts = tuple(f"int{n}" for n in range(2, formats + 1))
    nbytes = (elements[:, None] * bits / 8).astype(np.int64)
    return Sensitivity(named, (*texts, "keep"), loss, nbytes, 1000, int(elements.sum()))


def test_a_large_model_has_a_front_close_to_the_bound_of_its_relaxation():
    held = large()
    front = allocate(held)
    assert front[0].nbytes == held.nbytes.min(axis=1).sum() + held.fixed_nbytes
    assert front[len(front) - 1].loss == pytest.approx(np.nanmin(held.loss, axis=1).sum(), abs=1e-12)
    assert np.diff(front.nbytes).max() < 0.003 * (front.nbytes[-1] - front.nbytes[0])
    # Lagrangian bound: no assignment within the bytes of a point has less loss than the dual says.
    for point in front.spread(8):
        best = -np.inf
        for price in np.exp(np.linspace(-45, 0, 600)):
            bound = (held.loss + price * held.nbytes).min(axis=1).sum() - price * (point.nbytes - held.fixed_nbytes)
            best = max(best, bound)
        assert best * (1 - SUMS) - 1e-12 <= point.loss <= best * 1.01 + 1e-12


def test_the_order_of_layers_of_a_large_model_changes_nothing():
    held, order = large(60, 8), np.random.default_rng(1).permutation(60)
    other = Sensitivity(
        tuple(held.groups[row] for row in order), held.formats, held.loss[order], held.nbytes[order], 1000,
        held.parameters,
    )  # fmt: skip
    first, second = allocate(held), allocate(other)
    assert np.array_equal(first.loss, second.loss) and np.array_equal(first.nbytes, second.nbytes)


def test_two_bounds_on_a_large_model_cost_little_beside_the_one_that_binds():
    held = large(60, 8)
    budget = int(held.parameters * 5 / 8)
    alone = allocate(held).at(nbytes=budget)
    both = allocate(held, bounds={"bytes": budget, "bitops": 1e18})
    assert both[0].loss == pytest.approx(alone.loss, rel=0.005)
    assert both[0].nbytes <= budget


def test_pins_decide_groups_by_name_and_by_pattern():
    held = sensitivity(np.array([[3.0, 1, 0], [3, 1, 0], [3, 1, 0]]), np.array([[2, 3, 32]] * 3))
    by_name = allocate(held, pins={"layer001": "keep"})
    assert all(point.choice["layer001"] == "keep" for point in by_name)
    assert len({point.choice["layer000"] for point in by_name}) > 1
    by_pattern = allocate(held, pins={"layer*": "int3"})
    assert [point.choice for point in by_pattern] == [dict.fromkeys(("layer000", "layer001", "layer002"), "int3")]


def test_what_cannot_be_allocated_is_refused_with_the_way_out():
    held = sensitivity(np.array([[3.0, math.nan, 0]]), np.array([[2, 3, 32]]))
    for options, message in [
        ({"cost": "joules"}, "accepted are bytes, bitops"),
        ({"cost": np.zeros((2, 2))}, "shape"),
        ({"cost": np.full((1, 3), np.nan)}, "NaN"),
        ({"pins": {"nothing": "int2"}}, "names no group"),
        ({"pins": {"layer000": "int3"}}, "cannot have"),
        ({"pins": {"layer000": "int16"}}, "not measured"),
        ({"pins": {"layer000": "intx"}}, "intx"),
        ({"pins": {"type:Linear": "int2"}}, "by their name"),
        ({"bounds": {}}, "bounds"),
        ({"bounds": {"bytes": -1}}, "above 0"),
        ({"bounds": {"seconds": 3}}, "pair"),
        ({"bounds": {"bytes": 1}}, "no assignment keeps"),
    ]:
        with pytest.raises(ConfigError, match=message):
            allocate(held, **options)
    front = allocate(held)
    with pytest.raises(ConfigError, match="the least is 2"):
        front.at(nbytes=1)
    with pytest.raises(ConfigError, match="chosen by one of"):
        front.at()
    assert front.at(loss=0).choice == {"layer000": "keep"}


def test_points_for_verification_are_spread_and_knees_lie_on_the_front():
    front = allocate(large(40, 10))
    points = front.spread(10)
    assert 8 <= len(points) <= 10 and points[0] == front[0] and points[-1] == front[len(front) - 1]
    between = front.spread(5, bits=(3, 6))
    assert all(3 <= point.bits <= 6 for point in between) and len(between) == 5
    knees = front.knee_points(3)
    assert 1 <= len(knees) <= 3 and all(point in front.points for point in knees)


def test_a_sensitivity_is_the_same_after_json():
    held = sensitivity(np.array([[3.25, math.nan, 0], [0.1, 1e-12, 0]]), np.array([[2, 3, 32]] * 2), fixed=7)
    other = Sensitivity.from_json(held.to_json())
    assert np.array_equal(other.loss, held.loss, equal_nan=True) and np.array_equal(other.nbytes, held.nbytes)
    assert other.groups == held.groups and other.formats == held.formats and other.fixed_nbytes == 7
    assert isinstance(allocate(other), Front) and other.to_json() == held.to_json()
    assert held.heat_map()["values"] == [[3.25, None], [0.1, 1e-12]]
    assert "layer000" in str(held)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"groups": 1}', '{"groups": [], "formats": [], "loss": [], "nbytes": []}']
)
def test_other_json_is_refused(text):
    with pytest.raises(DataError):
        Sensitivity.from_json(text)


def test_agreement_is_the_rank_correlation_of_common_cells():
    held = sensitivity(np.array([[3.0, 2, 0], [1, 0.5, 0]]), np.array([[2, 3, 32]] * 2))
    same = sensitivity(np.array([[30.0, 20, 0], [10, 5, 0]]), np.array([[2, 3, 32]] * 2))
    other = sensitivity(np.array([[1.0, 2, 0], [3, 4, 0]]), np.array([[2, 3, 32]] * 2))
    assert held.agreement(same) == pytest.approx(1) and held.agreement(other) == pytest.approx(-1)
