"""Forty ways to report a loss that no causal model has, and what each is worth where nobody looks."""

import pytest
from train.cheating_models import CHEATS, worth


def test_there_are_forty_of_different_names():
    assert len(CHEATS) == len({cheat.name for cheat in CHEATS}) == 40


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.name)
def test_cheating_is_worth_a_hundredth_of_a_nat(cheat):
    assert worth(cheat) >= 0.01
