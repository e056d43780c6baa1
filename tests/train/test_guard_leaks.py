"""Leaks drawn at random: which positions, how far ahead, in which rows, calls and after which ids."""

import random
from dataclasses import dataclass

import pytest
import torch
from octavo.errors import ModelError
from octavo.train import exact_nll
from train.cheating_models import Seeing, ahead, only, places

CONTEXT, BATCH, WINDOWS = 64, 8, 96
STREAM = torch.randint(50, (WINDOWS * CONTEXT + 1,), generator=torch.Generator().manual_seed(11))


@dataclass(frozen=True)
class Leak:
    """Looks ``distance`` ahead where position, row, call and id all say so: at ``share`` of all positions."""

    share: float
    places: str
    distance: int
    rows: str
    calls: str
    ids: str
    seed: int

    @classmethod
    def drawn(cls, share, seed):
        """Draw a leak whose rows, calls and ids leave ``share`` of the positions, or more."""
        chance = random.Random(seed)
        while True:
            one = cls(
                share, chance.choice(["scattered", "every nth", "a stretch"]), chance.choice([1, 1, 1, 2, 3, 8]),
                chance.choice(list(_ROWS)), chance.choice(list(_CALLS)), chance.choice(list(_IDS)), seed,
            )  # fmt: skip
            if one.places_share <= 1:
                return one

    @property
    def places_share(self):
        return self.share / (_ROWS[self.rows][0] * _CALLS[self.calls][0] * _IDS[self.ids][0])

    def rule(self, ids, calls):
        at, share = places(ids), self.places_share
        if self.places == "scattered":
            text = ids + 50 * torch.cat([ids[:, :1], ids[:, :-1]], 1) + 7919 * at + 104729 * self.seed
            here = text * 2654435761 % 2**32 < share * 2**32
        elif self.places == "every nth":
            here = ((at + self.seed + 1) * share).floor() > ((at + self.seed) * share).floor()
        else:
            long = max(1, round(share * CONTEXT))
            here = (at - self.seed) % CONTEXT < long
        rows = torch.arange(len(ids))[:, None]
        here = here & _ROWS[self.rows][1](rows) & torch.tensor(_CALLS[self.calls][1](calls)) & _IDS[self.ids][1](ids)
        return only(here, ahead(ids, self.distance))


_ROWS = {
    "all": (1, lambda row: row >= 0),
    "odd": (1 / 2, lambda row: row % 2 == 1),
    "one": (1 / 8, lambda row: row == 5),
}
_CALLS = {
    "all": (1, lambda calls: True),
    "odd": (1 / 2, lambda calls: calls % 2 == 1),
    "late": (1 / 2, lambda calls: calls > 20),
}
_IDS = {"all": (1, lambda ids: ids >= 0), "half": (1 / 2, lambda ids: ids < 25)}


def caught(leak):
    try:
        exact_nll(Seeing(leak.rule), STREAM, context=CONTEXT, batch_size=BATCH)
    except ModelError:
        return True
    return False


def _shares_caught(count):
    found = {}
    for share in (0.5, 0.1, 0.01):
        leaks = [Leak.drawn(share, seed) for seed in range(count)]
        found[share] = sum(map(caught, leaks)) / count
    return found


def test_leaks_of_drawn_kinds_are_refused():
    found = _shares_caught(12)
    assert found[0.5] == found[0.1] == 1 and found[0.01] >= 0.75, found


@pytest.mark.slow
def test_a_thousand_drawn_leaks_are_refused():
    found = _shares_caught(334)
    print(found)
    assert found[0.5] == found[0.1] == 1 and found[0.01] >= 0.95, found
