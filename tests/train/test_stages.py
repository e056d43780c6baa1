"""Stages: every one has its updates, batches and rate; the schedule is one of tokens."""

import pytest
import torch
from octavo.errors import ConfigError
from octavo.train import Stage, TrainConfig, read_metrics, train
from octavo.train.learning_rate import rate_factor
from octavo.train.stages import position, stage_at
from train.tiny import Model, Rule

STAGES = (
    Stage(steps=6, batch_size=8, context=4, accumulation=2),
    Stage(steps=3, batch_size=12, context=16, rate=1.5, window=5),
    Stage(steps=2, batch_size=4, context=32),
)


def staged(**changes):
    fields = {"steps": 11, "batch_size": 12, "learning_rate": 1e-3, "stages": STAGES, "device": "cpu", **changes}
    return TrainConfig(**fields)


class Counting(Rule):
    """Keeps which sequences of which updates were asked for."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def batch(self, step, micro, start, size):
        self.seen.append((step, micro, start, size))
        return super().batch(step, micro, start, size)


def test_every_update_has_the_stage_that_its_number_falls_in():
    found = [stage_at(STAGES, step) for step in range(12)]
    assert found == [(0, 0)] * 6 + [(1, 6)] * 3 + [(2, 9)] * 3
    assert [staged().stage(step) for step in (0, 6, 10)] == list(STAGES)


def test_a_run_asks_for_the_sequences_of_its_stages_and_no_others(tmp_path):
    torch.manual_seed(0)
    task = Counting()
    train(Model(), task, staged(log_every=1), tmp_path, progress=False)
    wanted = [
        (step, micro, micro * stage.batch_size // stage.accumulation, stage.batch_size // stage.accumulation)
        for step in range(11)
        for stage in [staged().stage(step)]
        for micro in range(stage.accumulation)
    ]
    assert sorted(set(task.seen)) == sorted(wanted)


def test_the_schedule_is_a_function_of_tokens():
    """Two runs over the same tokens, one with twice the batch in its second half, have one rate at one token."""
    even = staged(steps=12, stages=(Stage(steps=12, batch_size=4, context=8),), schedule="linear", warmup=0)
    ramp = (Stage(steps=6, batch_size=4, context=8), Stage(steps=3, batch_size=8, context=8))
    ramped = staged(steps=9, stages=ramp, schedule="linear", warmup=0)
    assert [position(ramp, step) / 9 for step in (0, 6, 8)] == pytest.approx([0, 6 / 12, 10 / 12])
    for step, other in ((0, 0), (3, 3), (6, 6), (7, 8), (8, 10)):
        assert rate_factor(ramped, step) == pytest.approx(rate_factor(even, other))


def test_one_stage_of_all_updates_has_the_schedule_of_none():
    plain = TrainConfig(steps=40, batch_size=4, learning_rate=1e-3, schedule="trapezoid", warmup=7, cooldown=0.3)
    staged = TrainConfig.from_dict({**plain.as_dict(), "stages": [{"steps": 40, "batch_size": 4, "context": 8}]})
    assert [rate_factor(plain, step) for step in range(40)] == [rate_factor(staged, step) for step in range(40)]


def test_a_stage_multiplies_the_rate(tmp_path):
    train(Model(), Rule(), staged(log_every=1), tmp_path, progress=False)
    rates = [line["learning_rate"] for line in read_metrics(tmp_path) if line["kind"] == "train"]
    assert rates == pytest.approx([1e-3] * 6 + [1.5e-3] * 3 + [1e-3] * 2)


def test_stages_are_written_down_and_read_again():
    assert TrainConfig.from_dict(staged().as_dict()) == staged()


@pytest.mark.parametrize(
    ("change", "told"),
    [({"steps": 10}, "steps is 10"), ({"stages": (1,)}, "stages"), ({"stages": [{"step": 1}]}, "step")],
)
def test_stages_that_do_not_fit_are_refused(change, told):
    with pytest.raises(ConfigError, match=told):
        TrainConfig.from_dict({**staged().as_dict(), **change}) if "stages" in change else staged(**change)


@pytest.mark.parametrize(
    "wrong", [{"steps": 0}, {"batch_size": 1.5}, {"accumulation": 9}, {"window": 0}, {"rate": 0.0}, {"context": True}]
)
def test_a_wrong_field_of_a_stage_is_named(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Stage(**{"steps": 1, "batch_size": 8, "context": 4, **wrong})
