"""Processes started together end together, whoever is killed, and their exit codes come through."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from helpers.processes import are_gone
from octavo.train.launch import launch

START = "import sys; from octavo.train.launch import launch; sys.exit(launch(sys.argv[1:], 3))"


def script(folder, code):
    """A worker that needs no torch; it writes down that it runs."""
    path = folder / "worker.py"
    head = "import os, signal, sys, time\nrank = int(os.environ['RANK'])\n"
    told = "open(f'{sys.argv[1]}/{rank}', 'w').write(str(os.getpid()))\n"
    path.write_text(head + textwrap.dedent(code).replace("TELL", told.strip()))
    (folder / "told").mkdir()
    return [str(path), str(folder / "told")]


@pytest.fixture
def started(request):
    """Start a launcher with three workers and return it and their ids, when all have told."""
    begun = []

    def start(folder, code):
        command = [sys.executable, "-c", START, *script(folder, code)]
        begun.append(subprocess.Popen(command, stderr=subprocess.PIPE, process_group=0))
        told = folder / "told"
        while True:
            pids = [int(file.read_text() or 0) for file in told.iterdir()]
            if len(pids) == 3 and all(pids):
                return begun[-1], pids
            assert begun[-1].poll() is None
            time.sleep(0.02)

    yield start
    for process in begun:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.parametrize("codes, expected", [((0, 0, 0), 0), ((0, 3, 0), 3), ((130, 130, 130), 130)])
def test_the_exit_code_is_that_of_the_workers(tmp_path, codes, expected):
    assert launch(script(tmp_path, f"sys.exit({codes}[rank])"), 3) == expected


def test_workers_know_each_other_as_under_torchrun(tmp_path):
    names = [
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
    ]
    code = f"open(f'{{sys.argv[1]}}/{{rank}}', 'w').write(' '.join(os.environ[name] for name in {names}))"
    assert launch(script(tmp_path, code), 2) == 0
    told = [(tmp_path / "told" / str(rank)).read_text().split() for rank in (0, 1)]
    assert told[0][:4] == ["0", "0", "2", "2"] and told[1][:4] == ["1", "1", "2", "2"] and told[0][4:] == told[1][4:]


@pytest.mark.slow
def test_a_script_and_a_module_run_as_python_runs_them(tmp_path):
    (tmp_path / "beside.py").write_text("import sys\nprint(sys.argv[1:], __name__, file=open(sys.argv[1], 'w'))\n")
    (tmp_path / "main.py").write_text("import beside, sys\nassert __name__ == '__main__'\n")
    assert launch([str(tmp_path / "main.py"), str(tmp_path / "a"), "--x"], 1) == 0
    assert (tmp_path / "a").read_text() == f"['{tmp_path / 'a'}', '--x'] beside\n"
    start = "import sys; from octavo.train.launch import launch; sys.exit(launch(['-m', 'beside', 'b', '--y'], 1))"
    subprocess.run([sys.executable, "-c", start], cwd=tmp_path, check=True)
    assert (tmp_path / "b").read_text() == "['b', '--y'] __main__\n"


@pytest.mark.parametrize(
    "deaf", [pytest.param(False, id="plain", marks=pytest.mark.slow), pytest.param(True, id="ignoring SIGTERM")]
)
def test_a_killed_launcher_takes_its_workers_along(tmp_path, started, deaf):
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN)"
    launcher, workers = started(tmp_path, f"{ignore if deaf else ''}\nTELL\ntime.sleep(600)")
    launcher.kill()
    assert are_gone(workers)


@pytest.mark.slow
def test_the_pipe_alone_ends_workers_where_the_kernel_sends_no_signal(tmp_path, started):
    unset = "import ctypes; ctypes.CDLL(None).prctl(1, 0)"
    launcher, workers = started(tmp_path, f"{unset}\nTELL\ntime.sleep(600)")
    launcher.kill()
    assert are_gone(workers)


@pytest.mark.parametrize("rank", [0, *(pytest.param(rank, marks=pytest.mark.slow) for rank in (1, 2))])
def test_a_killed_worker_takes_the_others_along(tmp_path, started, rank):
    launcher, workers = started(tmp_path, "TELL\ntime.sleep(600)")
    os.kill(workers[rank], signal.SIGKILL)
    assert launcher.wait(20) == 137 and are_gone(workers)
    assert b"was ended by SIGKILL; the same command goes on" in launcher.stderr.read()


@pytest.mark.parametrize(
    "number, code", [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_a_signal_reaches_every_worker_once_and_its_code_comes_back(tmp_path, started, number, code):
    """As a terminal sends it: to the whole group of the launcher, which the workers are not in."""
    count = """
        seen = []
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: seen.append(number))
        TELL
        while not seen:
            time.sleep(0.01)
        time.sleep(0.3)
        sys.exit(128 + seen[0] if len(seen) == 1 else 99)
    """
    launcher, workers = started(tmp_path, count)
    os.killpg(launcher.pid, number)
    assert launcher.wait(20) == code and are_gone(workers)


@pytest.mark.slow
def test_what_a_worker_has_started_ends_with_it_where_another_fails(tmp_path, started):
    grandchild = """
        child = os.fork()
        if child == 0:
            time.sleep(600)
        TELL
        open(f'{sys.argv[1]}.{rank}', 'w').write(str(child))
        time.sleep(600)
    """
    launcher, workers = started(tmp_path, grandchild)
    deadline = time.monotonic() + 10
    while not all((tmp_path / f"told.{rank}").exists() for rank in range(3)) and time.monotonic() < deadline:
        time.sleep(0.02)
    children = [int((tmp_path / f"told.{rank}").read_text()) for rank in (1, 2)]
    first = next(pid for pid in workers if str(pid) == (tmp_path / "told" / "0").read_text())
    os.kill(first, signal.SIGKILL)
    assert launcher.wait(20) == 137 and are_gone(children)
    os.kill(int((tmp_path / "told.0").read_text()), signal.SIGKILL)
