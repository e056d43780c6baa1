"""Tuning keeps formats and bytes, keeps a method only where it helps, and leaves the float model alone."""

import copy
import math

import pytest
import torch
from octavo import explain, pack_model, quantize_model
from octavo.errors import ConfigError
from octavo.search import allocate, measure_sensitivity, to_recipe, tune
from octavo.search.rounded_layers import rounded_once
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


def test_a_solver_is_kept_in_the_parts_alone_where_the_divergence_falls(model, data, held):
    choice = dict.fromkeys((group.name for group in held.groups), "int3:g16")
    tuned = tune(model, choice, held, data, methods=("gptq", "hqq"), progress=False)
    whole = tune(model, choice, held, data, methods=("gptq", "hqq"), parts=1, progress=False)
    assert tuned.loss <= whole.loss <= whole.before == tuned.before
    with pytest.raises(ConfigError, match="parts is 0"):
        tune(model, choice, held, data, parts=0)


def test_a_solver_of_the_assignment_has_to_earn_its_place(model, data, held):
    """What a choice names itself is tried against plain rounding, for the whole and part by part."""
    fitted = measure_sensitivity(model, data, ["int4:g16", "int4:g16@mse", "int4:g16@hqq"], progress=False)
    for text in ("int4:g16@mse", "int4:g16@hqq"):
        choice = dict.fromkeys((group.name for group in fitted.groups), text)
        plain = tune(model, dict.fromkeys(choice, "int4:g16"), fitted, data, methods=(), progress=False)
        tuned = tune(model, choice, fitted, data, methods=("gptq",), progress=False)
        first = tuned.steps[0]
        assert first.method == "rounding" and first.formats == (text,)
        assert first.loss == plain.loss and first.kept == (plain.loss < tuned.before)
        assert tuned.loss <= min(plain.loss, tuned.before)


def test_parts_are_formats_and_blocks_in_order():
    from octavo.search.layer_sensitivity import Group
    from octavo.search.solver_parts import parts_of

    names = ["embed", *(f"model.layers.{place}.{leaf}" for place in range(6) for leaf in ("q", "up")), "head"]
    groups = [Group(name, "weight", (name,)) for name in names]
    choice = {name: "nf3" if name.endswith("up") else "nf4" for name in names}
    parts = parts_of(groups, choice, 4)
    assert [part.label for part in parts] == [
        "nf4", "nf3", "embed to model.layers.0", "model.layers.1 to model.layers.2", "model.layers.3 to model.layers.4",
        "model.layers.5 to head",
    ]  # fmt: skip
    assert sum(len(part.groups) for part in parts[2:]) == len(names)
    assert parts_of(groups, choice, 1) == []
    assert [part.label for part in parts_of(groups[:3], dict.fromkeys(names, "nf4"), 8)] == ["embed", "model.layers.0"]


def test_swapped_layers_are_put_back():
    from octavo.search.layer_sensitivity import Group
    from octavo.search.solver_parts import Part, swapped_parts

    one, other = (nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(3))) for _ in range(2))
    for place, (a, b) in enumerate(zip((3.0, 1.0, 2.0), (1.0, 5.0, 1.0), strict=True)):
        one[place].weight.data.fill_(a)
        other[place].weight.data.fill_(b)
    parts = [Part(str(place), (Group(str(place), "weight", (str(place),)),)) for place in range(3)]
    loss_of = lambda model: sum(float(layer.weight.detach()) for layer in model)  # noqa: E731
    layers = list(one)
    taken, swaps = swapped_parts(one, other, parts, 6.0, loss_of)
    assert taken == {"0", "2"} and [swap.is_better for swap in swaps] == [True, False, True]
    assert [(swap.before, swap.swapped) for swap in swaps] == [(6.0, 4.0), (4.0, 8.0), (4.0, 3.0)]
    assert list(one) == layers and loss_of(one) == 6.0 and loss_of(other) == 7.0


@pytest.mark.parametrize("recipe", ["int4:g32", "int3:g32@hqq", "nf4@mse input=int8", "mxint4; type:Embedding int8"])
def test_rounding_once_changes_no_bit_and_leaves_the_model_as_it_was(recipe):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)).eval()
    model[3].weight = nn.Parameter(model[3].weight.detach().T.contiguous().T)
    simulated = quantize_model(model, recipe, progress=False)
    before = {name: tensor.clone() for name, tensor in simulated.state_dict().items()}
    ids = torch.randint(20, (3, 7))
    with torch.no_grad():
        wanted = simulated(ids)
        with rounded_once(simulated):
            assert torch.equal(simulated(ids), wanted)
        assert torch.equal(simulated(ids), wanted)
    assert all(torch.equal(tensor, before[name]) for name, tensor in simulated.state_dict().items())
