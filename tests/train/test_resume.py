"""A stopped run ends with the same bits as one that was never stopped, wherever and however it stopped."""

import json
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from octavo.storage import locks
from octavo.train import CheckpointError, ConfigError, checkpoint, train
from train.tiny import Crash, Crashing, Model, Rule, assert_same_run, config, run

WORKER = Path(__file__).with_name("worker.py")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that nothing stopped."""
    folder = tmp_path_factory.mktemp("whole")
    assert run(folder).reason == "finished"
    return folder


@pytest.mark.parametrize("stops", [(1,), (7,), (8,), (21, 23), (33, 36, 39)], ids=str)
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(tmp_path, whole, stops):
    for stop in stops:
        with pytest.raises(Crash):
            run(tmp_path, task=Crashing(stop))
    result = run(tmp_path)
    assert_same_run(tmp_path, whole)
    assert result.step == 40 and result.reason == "finished"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_step_finish_and_writes_a_checkpoint(tmp_path, whole, number, capsys):
    task = Crashing(12, lambda: signal.raise_signal(number))
    before = signal.getsignal(number)
    result = train(Model(dropout=0.1), task, config(), tmp_path)
    assert result.reason == "interrupted" and 0 < result.step < 40
    assert checkpoint.available(tmp_path)[0] == checkpoint.path_of(tmp_path, result.step)
    assert f"interrupted after step {result.step}: the same command goes on from {tmp_path}" in capsys.readouterr().err
    assert signal.getsignal(number) is before
    assert run(tmp_path).reason == "finished"
    assert_same_run(tmp_path, whole)


def test_a_second_interrupt_ends_the_run_at_once(tmp_path, whole):
    twice = Crashing(12, lambda: (signal.raise_signal(signal.SIGINT), signal.raise_signal(signal.SIGINT)))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, task=twice)
    run(tmp_path)
    assert_same_run(tmp_path, whole)


def kill_and_resume(folder, kills, seed):
    command = [sys.executable, str(WORKER), "kill", str(folder), str(kills), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_kill_9_at_random_moments_changes_nothing(tmp_path, whole):
    reached = kill_and_resume(tmp_path, 6, seed=0)
    assert len(reached) >= 3, "the runs ended before they were killed"
    assert_same_run(tmp_path, whole)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_kill_9_at_many_random_moments_changes_nothing(tmp_path, whole, seed):
    kill_and_resume(tmp_path, 60, seed=seed)
    assert_same_run(tmp_path, whole)


def test_a_finished_run_is_not_run_again(tmp_path, whole):
    first = run(tmp_path)
    task = Rule()
    again = run(tmp_path, task=task)
    assert again == first and task.asked == []
    assert_same_run(tmp_path, whole)


@pytest.mark.slow
@pytest.mark.parametrize("late", [0.1, *(pytest.param(late, marks=pytest.mark.slow) for late in (0, 0.05, 0.15))])
def test_of_two_runs_in_one_folder_the_second_is_refused_and_the_first_goes_on(tmp_path, whole, late):
    command = [sys.executable, str(WORKER), "two", str(tmp_path), str(late)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert sorted(json.loads(done.stdout.splitlines()[-1])) == [0, 3]
    assert_same_run(tmp_path, whole)
    assert not (tmp_path / locks.NAME).exists()


# --- damage -----------------------------------------------------------------------------------------------------------


def cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def empty(file):
    file.write_bytes(b"")


def replace(file):
    file.write_bytes(b"not a checkpoint" * 100)


def flip_a_bit_of_a_weight(file):
    data = bytearray(file.read_bytes())
    weight = checkpoint.load(file)["model"]["hidden.weight"].numpy().tobytes()
    place = data.index(weight)
    data[place + 5] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("damage", [cut, empty, replace, flip_a_bit_of_a_weight])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, whole, damage):
    with pytest.raises(Crash):
        run(tmp_path, task=Crashing(25))
    newest = checkpoint.available(tmp_path)[0]
    damage(newest)
    with pytest.warns(UserWarning, match=f"{newest.name}: damaged.*before it"):
        run(tmp_path)
    assert_same_run(tmp_path, whole)
    assert newest.with_name(newest.name + ".damaged").exists()


def test_a_run_with_damaged_checkpoints_only_is_not_begun_again(tmp_path):
    with pytest.raises(Crash):
        run(tmp_path, task=Crashing(25))
    for file in checkpoint.available(tmp_path):
        cut(file)
    with warnings.catch_warnings(), pytest.raises(CheckpointError, match="none of 2 checkpoints can be read"):
        warnings.simplefilter("ignore")
        run(tmp_path)


def test_metrics_past_the_checkpoint_are_written_anew(tmp_path, whole):
    with pytest.raises(Crash):
        run(tmp_path, task=Crashing(27))
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"kind": "train", "step": 28, "lo\x00\n{"kind": "train", "st')
    run(tmp_path)
    assert_same_run(tmp_path, whole)


def test_what_a_killed_process_left_half_written_is_removed(tmp_path, whole):
    with pytest.raises(Crash):
        run(tmp_path, task=Crashing(25))
    partial = checkpoint.path_of(tmp_path, 28).with_name(".step-00000028.pt.123-0123abcd.octavo.tmp")
    partial.write_bytes(b"half")
    run(tmp_path)
    assert not partial.exists()
    assert len(list((tmp_path / "checkpoints").iterdir())) == config().keep
    assert_same_run(tmp_path, whole)


# --- other runs -------------------------------------------------------------------------------------------------------


def test_another_configuration_is_refused_by_the_fields_that_differ(tmp_path):
    with pytest.raises(Crash):
        run(tmp_path, task=Crashing(10))
    with pytest.raises(CheckpointError, match=r"learning_rate was 0.003, is 0.1; steps was 40, is 50"):
        run(tmp_path, learning_rate=0.1, steps=50)
    assert run(tmp_path, keep=5, checkpoint_every=9).reason == "finished"


def test_a_constant_rate_may_go_on_for_longer_but_not_shorter(tmp_path):
    short, long = tmp_path / "short", tmp_path / "long"
    run(short, schedule="constant", steps=20, log_every=1)
    with pytest.raises(CheckpointError, match="has made 20 steps already; steps is 10"):
        run(short, schedule="constant", steps=10, log_every=1)
    run(short, schedule="constant", log_every=1)
    run(long, schedule="constant", log_every=1)
    assert_same_run(short, long)


def test_another_model_is_refused(tmp_path):
    run(tmp_path, steps=7, warmup=0)
    with pytest.raises(CheckpointError, match=r"step-00000007.pt: does not fit this model: .*embed.weight"):
        run(tmp_path, model=Model(width=8), steps=7, warmup=0)


def test_a_folder_with_a_run_is_never_begun_again(tmp_path):
    run(tmp_path, steps=7, warmup=0)
    with pytest.raises(CheckpointError, match=r"holds a run with step-00000007\.pt"):
        train(Model(), Rule(), config(steps=7, warmup=0), tmp_path, resume=False)


class Stateful(Rule):
    """A task whose data depends on what it saw before."""

    def __init__(self, crash=None):
        super().__init__()
        self.offset, self.crash = torch.zeros((), dtype=torch.int64), crash

    def batch(self, step, micro, start, size):
        if step == self.crash:
            raise Crash
        self.offset = self.offset + step + 1
        return super().batch(step + int(self.offset), micro, start, size)

    def state_dict(self):
        return {"offset": self.offset, "words": ["plain", 1, 2.0, None]}

    def load_state_dict(self, state):
        self.offset = state["offset"]


def test_the_state_of_a_task_is_carried_over(tmp_path):
    run(tmp_path / "whole", task=Stateful())
    with pytest.raises(Crash):
        run(tmp_path / "stopped", task=Stateful(crash=24))
    run(tmp_path / "stopped", task=Stateful())
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")


def test_a_checkpoint_refuses_what_could_not_be_read_back(tmp_path):
    with pytest.raises(CheckpointError, match="cannot hold a PosixPath"):
        checkpoint.save(tmp_path, 1, {"task": {"file": Path("x")}}, keep=1)
    assert checkpoint.available(tmp_path) == []


def test_shared_memory_and_odd_tensors_survive_a_checkpoint(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    content = {
        "views": [base, base.T, base[1:, 2]],
        "scalar": torch.tensor(1.5, dtype=torch.bfloat16),
        "none": torch.empty(0, 3),
        "flags": torch.tensor([True, False]),
        "nested": {"a": (1, "x", None, True)},
    }
    read = checkpoint.load(checkpoint.save(tmp_path, 3, content, keep=1))
    assert read["step"] == 3 and read["nested"] == {"a": [1, "x", None, True]}
    assert all(torch.equal(a, b) for a, b in zip(read["views"], content["views"], strict=True))
    assert torch.equal(read["scalar"], content["scalar"]) and read["none"].shape == (0, 3)


def test_an_empty_folder_of_checkpoints_is_a_new_run(tmp_path):
    assert checkpoint.load_newest(tmp_path) is None
    with pytest.raises(ConfigError):
        config(keep=0)
