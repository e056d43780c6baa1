"""Batches beside each other: results in order, sums in the order of batches, and only where a model keeps nothing."""

import threading
import time

import pytest
import torch
from octavo.tensors.fixed_order import one_thread
from octavo.train.concurrent_batches import current_batch, in_turn, keeps_nothing, run_batches
from torch import nn


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4)).eval()


class Keeps(nn.Module):
    def forward(self, x):
        self.last = x
        return x


def threads_of(model, count=8):
    used = set()

    def visit(number, batch):
        used.add(threading.get_ident())
        time.sleep(0.01)
        return number, model(batch)

    with one_thread():
        results = list(run_batches(model, [torch.randn(2, 8) for _ in range(count)], visit))
    assert [number for number, _ in results] == list(range(count))
    return used


def test_results_come_in_order_from_several_threads():
    model = plain()
    assert len(threads_of(model)) > 1 and keeps_nothing(model)


def test_models_that_may_keep_something_run_one_batch_after_the_other():
    assert len(threads_of(Keeps())) == 1  # a class of the user's
    hooked = plain()
    hooked[0].register_forward_hook(lambda *_: None)
    assert len(threads_of(hooked)) == 1
    counting = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).train()
    assert len(threads_of(counting)) == 1  # a buffer changes in the first pass


def test_outside_of_one_thread_nothing_is_shared_out():
    model, used = plain(), set()
    list(run_batches(model, [torch.randn(2, 8)] * 4, lambda number, batch: used.add(threading.get_ident())))
    assert len(used) == 1


def test_what_waits_its_turn_is_done_in_the_order_of_batches():
    model, order = plain(), []

    def visit(number, batch):
        time.sleep(0.01 * (number % 3 == 0))
        assert current_batch() == number
        if number % 4 != 3:  # a batch that never comes here holds nobody up
            with in_turn("here"):
                order.append(number)

    with one_thread():
        list(run_batches(model, [torch.randn(2, 8)] * 16, visit))
    assert order == [number for number in range(16) if number % 4 != 3]


def test_the_first_batch_that_fails_is_the_one_that_is_told():
    model = plain()

    def visit(number, batch):
        time.sleep(0.02 if number == 3 else 0)
        if number in (3, 4):
            raise ValueError(str(number))
        with in_turn("here"):
            return number

    with one_thread(), pytest.raises(ValueError, match="3"):
        list(run_batches(model, [torch.randn(2, 8)] * 8, visit))


@pytest.mark.parametrize("grad", [True, False])
def test_gradients_and_threads_of_torch_are_as_outside(grad):
    model = plain()
    with one_thread(), torch.set_grad_enabled(grad):
        seen = list(
            run_batches(model, [torch.randn(2, 8)] * 4, lambda *_: (torch.is_grad_enabled(), torch.get_num_threads()))
        )
    assert seen == [(grad, 1)] * 4
