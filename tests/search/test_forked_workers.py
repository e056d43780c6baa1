"""Laws of several processes: the same result as of one, the same errors, and nobody is left behind."""

import os
import signal
import subprocess
import sys
import time

import pytest
from helpers.processes import python
from octavo.errors import ConfigError, FormatError
from octavo.search.forked_workers import check_workers, measured_by

COMPARED = """
import torch
torch.set_num_threads(1)
from compress.test_compress_model import compressed, state_of
one, two = compressed(), compressed(workers=2, journal={journal!r})
assert str(one.recipe) == str(two.recipe)
assert one.found.chosen.quality == two.found.chosen.quality
assert (one.found.search.sensitivity.loss == two.found.search.sensitivity.loss).all()
assert [(t.series, t.label, t.quality) for t in one.found.trials] == [(t.series, t.label, t.quality) for t in two.found.trials]
assert all(torch.equal(value, state_of(two)[name]) for name, value in state_of(one).items())
"""

LEFT = """
import os, sys, time
from octavo.search.forked_workers import measured_by
def work(point):
    os.write(1, b'%d\\n' % os.getpid())  # at once: two processes write
    time.sleep(60)
list(measured_by(2, work, [1, 2]))
"""

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


def run_alone(code):
    """Forks belong to a process of their own: this one may have threads of other tests."""
    done = python(code, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_several_workers_choose_what_one_chooses(tmp_path):
    run_alone(COMPARED.format(journal=str(tmp_path)))


def test_results_have_the_order_of_the_points_and_errors_arrive():
    run_alone("""
import os
from octavo.errors import FormatError
from octavo.search.forked_workers import measured_by
found = list(measured_by(3, lambda point: (point * point, os.getpid()), range(20)))
assert [value for _, (value, _) in found] == [point * point for point in range(20)]
assert os.getpid() not in {worker for _, (_, worker) in found}
def refuse(point):
    raise FormatError(f"point {point}")
try:
    list(measured_by(2, refuse, [7, 8]))
except FormatError as error:
    assert str(error) == "point 7"
else:
    raise AssertionError
""")


def test_workers_end_after_each_error():
    """Over and over: a worker that is ended amid the sending of its result must not keep the others waiting."""
    run_alone("""
from octavo.search.forked_workers import measured_by
def refuse(point):
    if point == 3:
        raise ValueError(point)
    return point
for _ in range(20):
    try:
        list(measured_by(3, refuse, range(9)))
    except ValueError:
        continue
    raise AssertionError
""")


def test_a_killed_worker_is_named():
    run_alone("""
import os, signal
from octavo.errors import WorkerError
from octavo.search.forked_workers import measured_by
try:
    list(measured_by(2, lambda point: os.kill(os.getpid(), signal.SIGKILL), range(5)))
except WorkerError as error:
    assert "one of 2 worker processes was killed" in str(error)
else:
    raise AssertionError
""")


def test_one_worker_measures_in_this_process():
    assert list(measured_by(1, lambda _: os.getpid(), [1, 2])) == [(1, os.getpid()), (2, os.getpid())]

    def refuse(point):
        raise FormatError("no")

    with pytest.raises(FormatError, match="no"):
        list(measured_by(1, refuse, [1]))
    for wrong in (0, -1, True, 1.5):
        with pytest.raises(ConfigError, match="workers is"):
            check_workers(wrong)


def test_workers_end_with_a_killed_parent():
    parent = subprocess.Popen([sys.executable, "-c", LEFT], stdout=subprocess.PIPE, text=True)
    workers = [int(parent.stdout.readline()) for _ in range(2)]
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    end = time.monotonic() + 60
    while time.monotonic() < end and any(alive(worker) for worker in workers):
        time.sleep(0.02)
    assert not any(alive(worker) for worker in workers)


def alive(process):
    try:
        with open(f"/proc/{process}/stat") as status:
            return status.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
