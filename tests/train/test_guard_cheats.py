"""Forty ways to report a loss that no causal model has, and what each is worth where nobody looks."""

import pytest
import torch
from octavo.errors import ContractError, ModelError
from octavo.train import exact_nll
from train.cheating_models import BATCH, CHEATS, CONTEXT, Honest, OwnLoss, Seeing, ahead, uniform, worth


def test_there_are_forty_of_different_names():
    assert len(CHEATS) == len({cheat.name for cheat in CHEATS}) == 40


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.name)
def test_cheating_is_worth_a_hundredth_of_a_nat(cheat):
    assert worth(cheat) >= 0.01


@pytest.mark.parametrize("cheat", CHEATS, ids=lambda cheat: cheat.name)
def test_cheating_is_refused(cheat):
    with pytest.raises((ModelError, ContractError)):
        exact_nll(cheat.make(), cheat.stream(), context=CONTEXT, stride=cheat.stride, batch_size=BATCH)


@pytest.mark.parametrize("make", [Honest, OwnLoss])
def test_the_result_says_how_much_was_checked(make):
    found = exact_nll(make(), uniform(), context=CONTEXT, batch_size=BATCH)
    checked = found.checked
    assert found.guard < 1e-5 and checked.batches == 40 and checked.windows == 96 and checked.cuts >= 260
    assert checked.positions > CONTEXT / 2 * checked.cuts
    assert found == exact_nll(make(), uniform(), context=CONTEXT, batch_size=BATCH)  # the seed is that of the stream


@pytest.mark.parametrize("count", [2, 3, 20, CONTEXT + 1, CONTEXT + 2, 300, 900, 3000])
@pytest.mark.parametrize("batch_size", [1, 8, 100])
def test_checks_take_forty_calls_or_a_twentieth_of_the_evaluation(count, batch_size):
    """Counted by the model: calls beside those that score, and no call with more windows than a batch has."""
    model, sizes = Honest(), []
    model.register_forward_pre_hook(lambda module, given: sizes.append(given[0].shape))
    exact_nll(model, uniform(count), context=4, batch_size=batch_size)
    scoring = -(-((count - 1) // 4) // batch_size) + ((count - 1) % 4 > 0)
    assert len(sizes) <= scoring + max(40, scoring // 20) and max(size[0] for size in sizes) <= batch_size


def test_every_call_of_a_check_has_ids_that_differ_from_the_cut_on():
    """Of all windows that a model is shown, each one is a window of the stream, or differs from one at every id."""
    ids, shown = uniform(41), []
    model = Honest()
    model.register_forward_pre_hook(lambda module, given: shown.extend(given[0].tolist()))
    exact_nll(model, ids, context=8, batch_size=2)
    windows = [ids[at : at + 8].tolist() for at in range(0, 40, 8)]
    cuts = set()
    for row in shown:
        alike = [[a == b for a, b in zip(row, window, strict=True)] for window in windows]
        best = max(alike, key=lambda same: [*same, False].index(False))
        cut = [*best, False].index(False)
        assert not any(best[cut:])
        cuts.add(cut)
    assert cuts == set(range(1, 9))


def test_a_stream_of_one_id_is_checked_with_another():
    ids = torch.full((200,), 3)
    with pytest.raises(ModelError):
        exact_nll(Seeing(lambda ids, calls: ahead(ids)), ids, context=CONTEXT)
    assert exact_nll(Honest(), ids, context=CONTEXT).guard < 1e-5


class ReadsOn(Honest):
    """Begins each window with the counts of ids that it has read, and says that it does."""

    def __init__(self, looks=0):
        super().__init__()
        self.counts, self.looks = torch.ones(50), looks

    def forward(self, ids):
        read = torch.nn.functional.one_hot(ids, 50).float()
        counts = self.counts + read.cumsum(1)
        if self.looks:
            counts[:, : -self.looks] = counts[:, self.looks :].clone()
        self.counts = self.counts + read.sum((0, 1))
        return counts.log()

    def stream_state(self):
        return self.counts

    def restore_stream_state(self, state):
        self.counts = torch.ones(50) if state is None else state


def test_a_model_that_reads_on_says_so_and_is_checked_with_its_state():
    ids = uniform(600) % 7
    model = ReadsOn()
    model.forward(ids[None, :50])
    before = model.stream_state().clone()
    found = exact_nll(model, ids, context=20)
    assert torch.equal(model.stream_state(), before)  # evaluation begins anew, and leaves nothing
    counts, expected = torch.ones(50, dtype=torch.float64), 0.0
    for at in range(len(ids) - 1):
        counts[ids[at]] += 1
        expected -= float((counts[ids[at + 1]] / counts.sum()).log())
    assert found.nats == pytest.approx(expected / 599, abs=1e-5) and found.guard < 1e-5
    with pytest.raises(ModelError, match="sees the future"):
        exact_nll(ReadsOn(looks=1), ids, context=20)
    silent = ReadsOn()
    silent.stream_state = None
    with pytest.raises(ModelError, match="keeps state between windows"):
        exact_nll(silent, ids, context=20)
    assert exact_nll(Honest(), ids, context=20).source_hash != found.source_hash
