"""The remaining time of long work, from the shares that were told."""

import pytest
from octavo.display.progress import Pace, remaining_text


def pace_of(steps):
    now = [0.0]
    pace = Pace(lambda: now[0])
    left = None
    for seconds, share in steps:
        now[0] += seconds
        left = pace.left(share)
    return left


def test_even_work_is_estimated_exactly():
    assert pace_of([(10, 0.1), (10, 0.2), (10, 0.3)]) == pytest.approx(70)


def test_nothing_is_told_before_a_twentieth():
    assert pace_of([(1, 0.01), (1, 0.02)]) is None


def test_what_an_earlier_run_measured_counts_for_nothing():
    left = pace_of([(10, 0.1), (0.001, 0.5), (10, 0.6)])
    assert left == pytest.approx(40)


def test_the_first_that_was_kept_is_no_measure():
    assert pace_of([(0.0, 0.5), (10, 0.6)]) == pytest.approx(40)


@pytest.mark.parametrize(("seconds", "text"), [(None, ""), (3, "5 s left"), (88, "90 s left"), (600, "10 min left")])
def test_times_are_said_as_people_say_them(seconds, text):
    assert remaining_text(seconds) == text
