"""Pruning in training: the schedule is met exactly, and a run that was stopped ends with the same bits."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import octavo
import pytest
import torch
from helpers.ptrace import needed
from helpers.quick import spread
from hypothesis import given
from hypothesis import strategies as st
from octavo.prune import Cubic, Iterative, callback, fold_model, prune_model, report
from octavo.train.launch import launch
from prune.gradual import SCHEDULES, content, gradual, pruned
from torch import nn
from train.tiny import Crash, Model, Rule

WORKER = Path(__file__).with_name("gradual.py")
WEIGHTS = ("hidden.weight", "head.weight")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that nothing stopped."""
    folder = tmp_path_factory.mktemp("whole")
    gradual(folder)
    return folder


# --- schedules --------------------------------------------------------------------------------------------------------


@given(st.integers(1, 50), st.integers(1, 7), st.integers(0, 9), st.floats(0.01, 0.99))
def test_a_cubic_schedule_rises_to_exactly_the_final_sparsity(steps, every, start, final):
    schedule = Cubic(steps, every, start)
    shares = [(step, schedule.share(step, final)) for step in range(start + steps + 5)]
    told = [share for _, share in shares if share is not None]
    assert told == sorted(told) and told[-1] == final and told[0] == (0 if steps else final)
    assert [step for step, share in shares if share is not None][-1] == schedule.last == start + steps


@given(st.integers(1, 9), st.integers(1, 7), st.integers(0, 9), st.floats(0.01, 0.99))
def test_each_round_of_an_iterative_schedule_prunes_the_same_share_of_the_rest(rounds, every, start, final):
    schedule = Iterative(rounds, every, start)
    told = [s for step in range(start + rounds * every) if (s := schedule.share(step, final)) is not None]
    assert len(told) == rounds and told[-1] == final
    left = [1.0, *(1 - share for share in told)]
    assert all(abs(b / a - (1 - final) ** (1 / rounds)) < 1e-9 for a, b in pairwise(left))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Cubic(0), "steps is 0"),
        (lambda: Cubic(5, initial=1.0), "initial is 1.0"),
        (lambda: Iterative(3, every=-1), "every is -1"),
        (lambda: callback(nn.Linear(2, 2)), "no schedule"),
        (lambda: callback(prune_model(nn.Linear(2, 2), 0.5)), "no schedule"),
        (lambda: prune_model(nn.Linear(8, 2), granularity="2:4", schedule=Cubic(5)), "leave schedule out"),
    ],
)
def test_schedules_that_cannot_be_are_refused(make, words):
    with pytest.raises(octavo.ModelError, match=words):
        make()


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", spread(SCHEDULES, 2))
@pytest.mark.parametrize("criterion", ["magnitude", "random", "wanda", "taylor", "movement"])
def test_a_gradual_run_ends_with_exactly_the_sparsity_asked_for(tmp_path, criterion, schedule):
    model, seen = pruned(criterion, schedule), []
    assert report(model).pruned == 0

    class Watching(Rule):
        def batch(self, *given):
            seen.append(report(model).pruned)
            return super().batch(*given)

    gradual(tmp_path, model, Watching())
    found = report(model)
    assert [tensor.name for tensor in found.tensors] == list(WEIGHTS)
    shares = [tensor.elements for tensor in found.tensors] if criterion == "wanda" else [found.elements]
    assert found.pruned == sum(round(0.8 * elements) for elements in shares) and seen == sorted(seen)
    last = octavo.load(tmp_path / "last.safetensors")  # the moving average, which remembers pruned weights
    for name in WEIGHTS:
        layer = model.get_submodule(name.removesuffix(".weight"))
        assert bool((last[name][~layer.masks.keep(layer, "weight")] == 0).all())
    assert fold_model(model).state_dict().keys() == Model().state_dict().keys()


def test_movement_is_minus_the_sum_of_weight_times_gradient_over_the_updates():
    model, rule = pruned(), Rule()
    prune = callback(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = torch.zeros_like(model.hidden.weight)
    for step in range(3):
        prune(model, step)
        loss, _, _ = rule.loss(model, rule.batch(step, 0, 0, 12))
        loss.backward()
        expected -= model.hidden.weight.detach() * model.hidden.weight.grad
        prune.gradients(model, step)
        optimizer.step()
        optimizer.zero_grad()
    assert torch.equal(model.hidden.masks.weight_scores, expected.flatten())


class Stopping(Rule):
    def __init__(self, at):
        super().__init__()
        self.at = at

    def batch(self, step, micro, start, size):
        if step == self.at:
            raise Crash
        return super().batch(step, micro, start, size)


@pytest.mark.parametrize("stops", [(1,), (7, 8), (15, 27, 28, 39)], ids=str)
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(tmp_path, whole, stops):
    for stop in stops:
        with pytest.raises(Crash):
            gradual(tmp_path, task=Stopping(stop))
    gradual(tmp_path)
    assert content(tmp_path) == content(whole)


def test_pruning_while_training_through_a_format_resumes_bit_for_bit(tmp_path):
    def model():
        return octavo.quantize_model(pruned("magnitude"), "type:Linear int8:channel@mse", progress=False)

    gradual(tmp_path / "whole", model())
    with pytest.raises(Crash):
        gradual(tmp_path / "stopped", model(), Stopping(17))
    gradual(tmp_path / "stopped", model())
    assert content(tmp_path / "stopped") == content(tmp_path / "whole")


def test_a_compiled_run_keeps_pruned_weights_at_0(tmp_path):
    model = pruned("magnitude")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    prune, compiled = callback(model), torch.compile(model, backend="aot_eager")
    rule = Rule()
    for step in range(9):
        prune(model, step)
        rule.loss(compiled, rule.batch(step, 0, 0, 12))[0].backward()
        optimizer.step()
        optimizer.zero_grad()
        octavo.nn.masks.enforce_masks(model)
        layer = model.hidden
        assert bool((layer.weight[~layer.masks.keep(layer, "weight")] == 0).all())
    assert report(model).pruned > 0


@pytest.mark.slow
def test_two_processes_prune_the_same_weights(tmp_path):
    assert launch([str(WORKER), "share", str(tmp_path / "run")], 2) == 0
    first, second = (json.loads((tmp_path / f"run.rank{rank}.json").read_text()) for rank in (0, 1))
    assert first == second and first["pruned"] == round(0.8 * (512 + 352))


@pytest.mark.slow
@needed
@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_kill_9_at_random_moments_ends_with_the_same_bytes(tmp_path, whole, kills):
    told = subprocess.run(
        [sys.executable, WORKER, "kill", tmp_path / "run", str(kills), "3"], capture_output=True, text=True, check=True
    )
    assert len(json.loads(told.stdout)) >= 1
    assert content(tmp_path / "run") == content(whole)
