"""Verification puts truth beside prediction, resumes, and says where the prediction does not order points."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from octavo.errors import ConfigError, NonFiniteError
from octavo.search import Group, Sensitivity, allocate, interaction_terms, verify


def front(groups=6, seed=0):
    random = np.random.default_rng(seed)
    bits = np.array([2, 3, 4, 8, 32])
    loss = random.uniform(0.5, 2, (groups, 1)) * 4.0**-bits
    loss[:, -1] = 0
    named = tuple(Group(f"layer{row}", "weight", (f"layer{row}",), elements=800) for row in range(groups))
    nbytes = np.tile(bits * 100, (groups, 1))
    return allocate(Sensitivity(named, ("int2", "int3", "int4", "int8", "keep"), loss, nbytes, 40, 800 * groups))


def test_truth_stands_beside_prediction():
    points = front().spread(8)
    found = verify(points, lambda point: point, lambda model: 3 * model.loss + 0.01, progress=False)
    assert [row.point for row in found.rows] == list(points)
    assert [row.measured for row in found.rows] == [3 * point.loss + 0.01 for point in points]
    assert found.correlation == pytest.approx(1) and found.can_predict and not found.notes
    assert json.loads(found.to_json())["correlation"] == pytest.approx(1)
    assert "rank correlation of prediction and measurement: 1.00" in str(found)
    assert found.chosen(bits=4).loss == min(point.loss for point in points if point.bits <= 4)
    assert found.chosen(max_loss=points[2].loss * 3 + 0.01) == points[2]
    for bounds in ({}, {"bits": 4, "nbytes": 3}, {"bits": 0.1}, {"max_loss": -1}):
        with pytest.raises(ConfigError):
            found.chosen(**bounds)


def test_a_prediction_that_does_not_order_points_is_told():
    points = front().spread(8)
    noise = iter([5.0, 1, 4, 2, 8, 3, 7, 6])
    found = verify(points, lambda point: point, lambda _: next(noise), progress=False)
    assert not found.can_predict and "cannot predict" in found.notes[0]


def test_pairs_of_adjacent_layers_are_added_where_the_sum_misleads():
    held = front(5, seed=3)
    every = list(held.spread(9, bits=(2, 6)))

    def truth(choice):
        """Adjacent layers both at 2 or 3 bits harm each other; the sum does not know it."""
        names = [f"layer{row}" for row in range(5)]
        rows = [held.sensitivity.formats.index(choice.get(name, "keep")) for name in names]
        own = held.sensitivity.loss[range(5), rows].sum()
        both = [a for a, b in pairwise(rows) if a == b == 2]
        return own + 3.0 * len(both)

    found = verify(
        every, lambda point: point.choice, truth, progress=False,
        pairs=lambda: interaction_terms(held.sensitivity, every, truth),
    )  # fmt: skip
    assert found.correlation == pytest.approx(1) and "pairs of adjacent layers" in found.notes[0]


def test_what_was_measured_is_not_measured_again(tmp_path):
    points, calls = front().spread(5), []

    def evaluate(point):
        calls.append(point)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return point.loss

    with pytest.raises(KeyboardInterrupt):
        verify(points, lambda point: point, evaluate, journal=tmp_path, subject="a", progress=False)
    found = verify(points, lambda point: point, evaluate, journal=tmp_path, subject="a", progress=False)
    assert len(calls) == 6 and [row.measured for row in found.rows] == [point.loss for point in points]
    verify(points[:1], lambda point: point, evaluate, journal=tmp_path, subject="other", progress=False)
    assert len(calls) == 7


def test_losses_are_finite_and_points_are_needed():
    with pytest.raises(NonFiniteError, match="bits is nan"):
        verify(front().spread(2), lambda point: point, lambda _: math.nan, progress=False)
    with pytest.raises(ConfigError, match="no point"):
        verify([], lambda point: point, lambda _: 0.0)
