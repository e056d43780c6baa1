"""Two processes train what one would: the same losses, every sequence once, one writer."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import octavo
import pytest
import torch
from helpers.processes import are_gone
from hypothesis import given
from hypothesis import strategies as st
from octavo.train import ConfigError, checkpoint
from octavo.train.distributed import Processes
from octavo.train.evaluation import evaluate
from octavo.train.launch import launch
from octavo.train.loop import _parts
from octavo.train.precision import Precision
from octavo.train.task import share
from train.tiny import Model, Rule, config, lines, losses, run

WORKER = str(Path(__file__).with_name("worker.py"))
CURVE = 1e-4
CHANGES = {"log_every": 1, "batch_size": 13}


@given(size=st.integers(1, 300), parts=st.integers(1, 40))
def test_the_parts_of_a_batch_cover_it_without_overlap(size, parts):
    pieces = [share(size, parts, index) for index in range(parts)]
    assert [p for start, count in pieces for p in range(start, start + count)] == list(range(size))
    assert max(count for _, count in pieces) - min(count for _, count in pieces) <= 1


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A folder with ``one`` and ``two``: the same run in one and in two processes; 13 sequences in 4 parts."""
    folder = tmp_path_factory.mktemp("both")
    run(folder / "one", model=Model(), **CHANGES)
    assert launch([WORKER, "share", str(folder / "two"), json.dumps(CHANGES)], 2) == 0
    return folder


def ranks(both):
    return [json.loads((both / f"two.rank{rank}.json").read_text()) for rank in (0, 1)]


def test_two_processes_follow_the_losses_of_one(both):
    assert len(losses(both / "two")) == 40
    assert (losses(both / "one") - losses(both / "two")).abs().max() < CURVE
    norms = [torch.tensor([line["gradient_norm"] for line in lines(both / name)]) for name in ("one", "two")]
    assert (norms[0] - norms[1]).abs().max() < CURVE
    one, two = octavo.load(both / "one/last.safetensors"), octavo.load(both / "two/last.safetensors")
    assert all((one[name] - two[name]).abs().max() < CURVE for name in one)


def test_two_processes_count_what_one_counts(both):
    for key in ("tokens", "counts", "step"):
        assert [line[key] for line in lines(both / "one")] == [line[key] for line in lines(both / "two")]
    sums = [[line["sums"] for line in lines(both / name, "evaluation")] for name in ("one", "two")]
    assert sums[0] == sums[1] and sums[0][0]["exact"][1] == 24


def test_the_processes_ask_for_every_sequence_once(both):
    parts = [{(s, p) for s, start, size in rank["asked"] for p in range(start, start + size)} for rank in ranks(both)]
    assert not parts[0] & parts[1]
    assert parts[0] | parts[1] == {(step, position) for step in range(40) for position in range(13)}


def test_the_processes_hold_the_same_weights_and_draw_different_numbers(both):
    first, second = ranks(both)
    assert first["weights"] == second["weights"] and first["drawn"] != second["drawn"]


def test_a_checkpoint_of_two_processes_goes_on_in_one_with_a_warning(both, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    file = checkpoint.available(both / "two")[-1]
    (tmp_path / "checkpoints" / file.name).write_bytes(file.read_bytes())
    with pytest.warns(UserWarning, match="of 2 processes, now there are 1"):
        run(tmp_path, **{**CHANGES, "batch_size": 13})
    assert (losses(tmp_path)[-3:] - losses(both / "one")[-3:]).abs().max() < 0.1


def test_more_micro_batches_than_sequences_are_refused():
    processes = Processes(0, 8, torch.device("cpu"))
    with pytest.raises(ConfigError, match="batch_size is 12; accepted: at least one sequence for 2 micro-batches in 8"):
        _parts(Model(), Rule(), config(), processes, lambda *_: None)


def test_a_single_number_cannot_be_shared():
    class Single(Rule):
        def evaluate(self, model, rank, world):
            return {"exact": 1.0}

    processes = Processes(0, 2, torch.device("cpu"))
    with pytest.raises(octavo.OctavoError, match="one number for 'exact'"):
        evaluate(Model(), Single(), processes=processes, precision=Precision("fp32", processes.device), average=None)


@pytest.mark.slow
def test_two_processes_resume_bit_for_bit_after_a_signal(both, tmp_path):
    """The parent passes SIGTERM on; both finish the step, the first writes, and the same command goes on."""
    command = [WORKER, "share", str(tmp_path / "run"), json.dumps({**CHANGES, "steps": 40, "keep": 3})]
    start = f"import sys; from octavo.train.launch import launch; sys.exit(launch({command!r}, 2))"
    environment = {**os.environ, "OCTAVO_TEST_PAUSE": "0.1"}
    parent = subprocess.Popen([sys.executable, "-c", start], env=environment)
    while not checkpoint.available(tmp_path / "run"):
        time.sleep(0.02)
        assert parent.poll() is None
    parent.send_signal(signal.SIGTERM)
    parent.wait(120)
    assert checkpoint.load(checkpoint.available(tmp_path / "run")[0])["step"] < 40
    assert launch(command, 2) == 0
    assert losses(tmp_path / "run").tolist() == losses(both / "two").tolist()
    one, two = (octavo.load(folder / "last.safetensors") for folder in (tmp_path / "run", both / "two"))
    assert all(torch.equal(one[name], two[name]) for name in one)


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def started(folder, pause="0.1", agent=None):
    """Start the run of ``both`` in two slow processes; return the launcher when there is a checkpoint, and the workers."""
    command = [WORKER, "share", str(folder), json.dumps({**CHANGES, "keep": 3})]
    start = f"import sys; from octavo.train.launch import launch; sys.exit(launch({command!r}, 2))"
    line = [sys.executable, "-c", start] if agent is None else [*agent, *command]
    launcher = subprocess.Popen(line, env={**os.environ, "OCTAVO_TEST_PAUSE": pause}, stderr=subprocess.PIPE)
    while not checkpoint.available(folder):
        time.sleep(0.02)
        assert launcher.poll() is None
    children = [pid for f in Path(f"/proc/{launcher.pid}/task").glob("*/children") for pid in f.read_text().split()]
    ranks = {}
    for pid in map(int, children):
        told = dict(e.split("=", 1) for e in Path(f"/proc/{pid}/environ").read_text().split("\0") if "=" in e)
        ranks[int(told["RANK"])] = pid
    return launcher, [ranks[0], ranks[1]], command


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["launcher", 0, 1])
def test_all_processes_end_when_one_is_killed_and_the_same_command_goes_on_bit_for_bit(both, tmp_path, victim):
    launcher, workers, command = started(tmp_path / "run")
    os.kill(launcher.pid if victim == "launcher" else workers[victim], signal.SIGKILL)
    assert launcher.wait(60) == (-9 if victim == "launcher" else 137)
    assert are_gone(workers)
    launcher.stderr.close()
    assert launch(command, 2) == 0
    assert losses(tmp_path / "run").tolist() == losses(both / "two").tolist()
    one, two = (octavo.load(folder / "last.safetensors") for folder in (tmp_path / "run", both / "two"))
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.slow
def test_processes_of_torchrun_end_with_its_agent(tmp_path):
    agent, workers, _ = started(tmp_path / "run", pause="1", agent=TORCHRUN)
    agent.kill()
    agent.wait()
    agent.stderr.close()
    assert are_gone(workers)


@pytest.mark.slow
def test_a_second_run_of_two_processes_is_refused_in_both_and_the_first_goes_on(both, tmp_path):
    launcher, _, command = started(tmp_path / "run", pause="2")
    again = f"import sys; from octavo.train.launch import launch; sys.exit(launch({command!r}, 2))"
    second = subprocess.run([sys.executable, "-c", again], capture_output=True, text=True)
    assert second.returncode == 1
    assert second.stderr.count("octavo.errors.LockedError") == 2 and "another process is at work" in second.stderr
    launcher.terminate()
    assert launcher.wait(300) == 0  # the script asks for no other code
    launcher.stderr.close()
    assert launch(command, 2) == 0
    assert losses(tmp_path / "run").tolist() == losses(both / "two").tolist()


@pytest.mark.slow
def test_two_compiled_processes_follow_the_losses_of_one(both, tmp_path):
    changes = json.dumps({**CHANGES, "compile": True})
    assert launch([WORKER, "share", str(tmp_path / "run"), changes], 2) == 0
    assert (losses(tmp_path / "run") - losses(both / "one")).abs().max() < CURVE
