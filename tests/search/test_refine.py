"""Tuning keeps formats and bytes, keeps a method only where it helps, and leaves the float model alone."""

import copy
import math

import pytest
import torch
from octavo import explain, pack_model, quantize_model
from octavo.errors import ConfigError
from octavo.search import allocate, measure_sensitivity, to_recipe, tune
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore::octavo.CoverageWarning")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(20, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 20)
    ).eval()


@pytest.fixture(scope="module")
def data():
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 20, (64,), generator=generator) for _ in range(8)]


@pytest.fixture(scope="module")
def held(model, data):
    return measure_sensitivity(model, data, ["int2:g16", "int3:g16", "int4:g16"], progress=False)


def test_methods_are_kept_where_they_help_and_bytes_stay(model, data, held):
    point = allocate(held).at(bits=5)
    before = copy.deepcopy(model.state_dict())
    tuned = tune(model, point, held, data, progress=False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert tuned.loss < 0.9 * tuned.before
    kept = [step.loss for step in tuned.steps if step.kept]
    assert kept == sorted(kept, reverse=True) and tuned.loss == min([*kept, tuned.before])
    assert {step.method for step in tuned.steps} == {"gptq", "hqq", "bias"} and "gptq" in str(tuned)
    assert explain(pack_model(tuned.model)).stored == point.nbytes
    # The recipe gives the same formats, with the solvers that were kept.
    again = quantize_model(model, tuned.recipe, calibration=data[:6], progress=False)
    assert explain(pack_model(again)).stored == point.nbytes
    assert "@gptq" in str(tuned.recipe) or "@hqq" in str(tuned.recipe)


def test_without_methods_weights_are_rounded_as_the_assignment_says(model, data, held):
    choice = dict.fromkeys((group.name for group in held.groups), "keep")
    choice["1"] = "int4:g16"
    none = tune(model, choice, held, data, methods=(), progress=False)
    assert none.steps == () and none.loss == none.before and none.recipe == to_recipe(choice, held)
    assert math.isfinite(none.loss) and none.loss > 0


def test_other_methods_are_refused(model, data, held):
    with pytest.raises(ConfigError, match="gptq, hqq, bias"):
        tune(model, allocate(held)[0], held, data, methods=("magic",))
