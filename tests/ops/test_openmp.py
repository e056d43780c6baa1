"""Products on torch's OpenMP threads have the bits of those on threads of our own, whoever calls."""

import os
import threading

import octavo
import pytest
import torch
from octavo import _core
from octavo.ops.linear import packed_linear
from octavo.ops.openmp import share_threads


@pytest.fixture(autouse=True)
def threads():
    """Three threads, as many as torch has or not; afterwards as before."""
    _core.set_num_threads(3)
    yield
    _core.set_num_threads(0)
    share_threads()


def product(weight, rows=9):
    x = torch.randn(rows, weight.shape[1], generator=torch.Generator().manual_seed(rows))
    return packed_linear(x, weight).numpy().tobytes()


@pytest.fixture(scope="module")
def weight():
    return octavo.encode(torch.randn(512, 768, generator=torch.Generator().manual_seed(0)), "mxint8")


@pytest.mark.skipif(not share_threads(), reason="torch has no OpenMP here")
def test_both_teams_give_the_same_bits(weight):
    for rows in (1, 4, 33):
        shared = product(weight, rows)
        _core._use_openmp(0)
        assert product(weight, rows) == shared
        assert share_threads()


def test_callers_at_once_between_operations_of_torch(weight):
    wanted, wrong = product(weight), []

    def work():
        for _ in range(30):
            torch.randn(200, 200) @ torch.randn(200, 200)
            if product(weight) != wanted:
                wrong.append(1)

    callers = [threading.Thread(target=work) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_a_child_of_fork_works_without_the_threads_of_its_parent(weight):
    wanted = product(weight)
    child = os.fork()
    if child == 0:
        os._exit(0 if product(weight) == wanted else 3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
