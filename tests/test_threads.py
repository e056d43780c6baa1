"""Threads of the core: right answers whoever calls, forks or ends meanwhile, and no work while nobody calls."""

import os
import threading
import time

import octavo
import pytest
import torch
from helpers.processes import python
from helpers.quick import spread
from octavo import _core
from octavo.ops.linear import packed_linear

WATCHDOG_S = 30


def wait_for(child):
    """Return the exit code of a child, which is killed where it hangs."""
    deadline = time.monotonic() + WATCHDOG_S
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail(f"a child of fork still hangs after {WATCHDOG_S} s")


@pytest.fixture
def threads():
    """Four threads, more than small machines have cores."""
    _core.set_num_threads(4)
    yield
    _core.set_num_threads(0)


def test_forks_amid_the_calls_of_other_threads(threads):
    """A child finds slots that are open, workers that are gone, and no lock that is held."""
    x = torch.randn(64, 4096)
    wanted = octavo.quantize(x, "mxint8").numpy().tobytes()
    going, errors = threading.Event(), []

    def work():
        while not going.is_set():
            if octavo.quantize(x, "mxint8").numpy().tobytes() != wanted:
                errors.append("another answer")

    callers = [threading.Thread(target=work) for _ in range(3)]
    for caller in callers:
        caller.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                same = octavo.quantize(x, "mxint8").numpy().tobytes() == wanted
                os._exit(0 if same else 3)
            assert wait_for(child) == 0
    finally:
        going.set()
        for caller in callers:
            caller.join()
    assert not errors


def test_callers_at_once_have_the_bits_of_one_thread():
    """Each caller gets what workers are free; another number of threads begins in the middle."""
    weights = {text: octavo.encode(torch.randn(300, 512), text) for text in ("mxint8", "int4:g32", "mxfp4", "e4m3")}
    inputs = {rows: torch.randn(rows, 512) for rows in (1, 3, 9)}
    _core.set_num_threads(1)
    wanted = {(text, rows): packed_linear(x, w) for text, w in weights.items() for rows, x in inputs.items()}
    errors = []

    def work():
        for _ in range(30):
            for (text, rows), y in wanted.items():
                if not torch.equal(packed_linear(inputs[rows], weights[text]), y):
                    errors.append((text, rows))

    callers = [threading.Thread(target=work) for _ in range(6)]
    for caller in callers:
        caller.start()
    for count in (2, 5, 1, 3, 0):
        _core.set_num_threads(count)
        time.sleep(0.02)
    for caller in callers:
        caller.join()
    _core.set_num_threads(0)
    assert not errors


@pytest.mark.parametrize("threads", spread([1, 4], 2))
def test_a_process_ends_amid_the_calls_of_daemon_threads(threads):
    """The calls are the core's own: CPython ends a daemon thread that asks for the interpreter after its end, which
    aborts the process where PyTorch's frames are on the thread's stack, as those of ``x @ x`` in a loop are.
    """
    done = python(f"""
import threading, time, torch
from octavo import _core
from octavo.tensors.formats import core
_core.set_num_threads({threads})
x = torch.randn(256, 4096)
def work():
    out = torch.empty_like(x)
    call = (core("mxint8"), 0, x.shape, -1, x.data_ptr(), out.data_ptr(), "floor", None)
    quantize = _core._quantize
    while True:
        quantize(*call)
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
print("end", flush=True)
""")
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


@pytest.mark.parametrize("shared", spread([True, False], 2))
def test_workers_sleep_while_nobody_calls(shared):
    """Those of OpenMP too; where they are held up, some of our own are started besides."""
    done = python(f"""
import os, time, torch, octavo.ops
octavo._core.set_num_threads(3)
if not {shared}:
    octavo._core._use_openmp(0)
torch.set_num_threads(1)
before = len(os.listdir("/proc/self/task"))
for _ in range(50):
    octavo.quantize(torch.ones(64, 4096), "mxint8")
started = len(os.listdir("/proc/self/task")) - before
time.sleep(0.1)
begin = time.process_time()
time.sleep(1)
print(started, time.process_time() - begin)
""")
    started, busy = done.stdout.split()
    assert started == "2" or (shared and started == "4"), "the caller is one of three threads"
    assert float(busy) < 0.05, done.stdout
