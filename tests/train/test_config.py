"""A configuration is checked when it is built; a learning rate is a pure function of the step."""

import math
from itertools import pairwise

import pytest
from octavo.train import ConfigError, TrainConfig
from octavo.train.learning_rate import rate_factor
from octavo.train.train_config import SCHEDULES, differences
from train.tiny import config

REFUSED = [
    ("steps", 0),
    ("steps", 10.0),
    ("steps", True),
    ("batch_size", -1),
    ("accumulation", 0),
    ("accumulation", 13),
    ("learning_rate", 0.0),
    ("learning_rate", math.nan),
    ("learning_rate", "fast"),
    ("schedule", "cosinus"),
    ("warmup", -1),
    ("warmup", 39),
    ("final", 1.5),
    ("cooldown", 0.0),
    ("betas", (0.9,)),
    ("betas", (0.9, 1.0)),
    ("betas", 0.9),
    ("eps", 0.0),
    ("weight_decay", -0.1),
    ("clip", -1.0),
    ("clip", math.inf),
    ("precision", "fp7"),
    ("compile", 1),
    ("seed", -1),
    ("evaluate_every", 0),
    ("checkpoint_every", 0),
    ("keep", 0),
    ("log_every", 0),
    ("patience", 0),
    ("ema", 1.0),
    ("device", "tpu"),
]


@pytest.mark.parametrize(("field", "value"), REFUSED)
def test_a_bad_field_is_refused_with_name_value_and_what_is_accepted(field, value):
    with pytest.raises(ConfigError) as refused:
        config(**{field: value})
    text = str(refused.value)
    assert text.startswith(f"{field} is {value!r}; accepted: ") and len(text.split("accepted: ")[1]) > 3


def test_patience_needs_evaluations():
    with pytest.raises(ConfigError, match="patience is 2"):
        config(patience=2, evaluate_every=None)


def test_a_configuration_survives_its_dictionary():
    made = config(betas=(0.8, 0.95), patience=3)
    assert TrainConfig.from_dict(made.as_dict()) == made
    with pytest.raises(ConfigError, match="lr is no field"):
        TrainConfig.from_dict({**made.as_dict(), "lr": 1.0})
    with pytest.raises(ConfigError, match="steps is missing"):
        TrainConfig.from_dict({"batch_size": 1, "learning_rate": 1.0})


def test_what_changes_no_number_may_differ_in_a_continuation():
    same = config(checkpoint_every=3, keep=9, device="auto")
    assert differences(config(), same) == [] and same.fingerprint() == config().fingerprint()
    assert differences(config(), config(seed=1, final=0.1)) == ["final was 0.0, is 0.1", "seed was 0, is 1"]
    assert config(seed=1).fingerprint() != config().fingerprint()


def test_only_a_constant_rate_can_be_continued_for_more_steps():
    assert differences(config(schedule="constant"), config(schedule="constant", steps=80)) == []
    for schedule in set(SCHEDULES) - {"constant"}:
        assert differences(config(schedule=schedule), config(schedule=schedule, steps=80)) == ["steps was 40, is 80"]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rates_rise_in_warm_up_then_never_again(schedule):
    made = config(schedule=schedule, final=0.1)
    rates = [rate_factor(made, step) for step in range(made.steps)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert all(after <= before for before, after in pairwise(rates[4:]))
    assert all(0.1 <= rate <= 1 for rate in rates)


def test_rates_are_those_of_the_formulas():
    at = lambda schedule, step, **more: rate_factor(  # noqa: E731
        config(schedule=schedule, steps=100, warmup=20, cooldown=0.25, **more), step
    )
    assert at("constant", 99) == 1
    assert [at("linear", step) for step in (20, 60, 99)] == pytest.approx([1, 0.5, 1 / 80])
    assert at("linear", 60, final=0.5) == pytest.approx(0.75)
    assert [at("cosine", step) for step in (20, 40, 60)] == pytest.approx([1, (1 + math.sqrt(0.5)) / 2, 0.5])
    assert [at("trapezoid", step) for step in (20, 75, 80, 99)] == pytest.approx([1, 1, 0.8, 1 / 25])
