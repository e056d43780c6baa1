"""correct_bias_model: outputs keep their means, channel by channel; what has no bias is reported."""

import copy
import math

import pytest
import torch
from octavo import CalibrationError, DTypeError, ModelError, NonFiniteError, ShapeError, pack_model, quantize_model
from octavo.quant import correct_bias_model
from torch import nn


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, bias=False), nn.ReLU(), nn.Flatten(2), nn.Linear(16, 12),
        nn.ReLU(), nn.Linear(12, 5),
    ).eval()  # fmt: skip


def batches(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(4, 3, 6, 6, generator=generator) + 0.5 for _ in range(3)]


def outputs(model, data):
    with torch.no_grad():
        return torch.cat([model(x) for x in data])


def quantized(model, recipe="int3:channel"):
    return quantize_model(model, recipe, progress=False).eval()


@pytest.mark.parametrize("recipe", ["int3:channel", "mxint3/16", "type:Linear weight=int4:channel input=int4:channel"])
def test_means_are_those_of_the_reference(recipe):
    model = network()
    poor = quantized(model, recipe)
    with torch.no_grad():
        before = (outputs(poor, batches()) - outputs(model, batches())).mean((0, 1)).abs().max()
    report = correct_bias_model(poor, model, batches(), progress=False)
    after = (outputs(poor, batches()) - outputs(model, batches())).mean((0, 1)).abs().max()
    assert after < 1e-5 < before
    assert report.without_bias == ("2",) and report.not_reached == ()
    assert list(report.added) == ["0", "5", "7"] and report.added["7"].shape == (5,)
    assert "2: no bias; create=True makes one" in str(report)


def test_error_on_other_data_falls():
    model = network()
    poor = quantized(model)
    corrected = copy.deepcopy(poor)
    correct_bias_model(corrected, model, batches(), progress=False)
    wanted = outputs(model, batches(1))
    errors = [(outputs(m, batches(1)) - wanted).square().mean() for m in (poor, corrected)]
    assert errors[1] < errors[0]


def test_biases_are_made_where_asked_for():
    model = network()
    poor = quantized(model)
    report = correct_bias_model(poor, model, batches(), create=True, progress=False)
    assert isinstance(poor[2].bias, nn.Parameter) and torch.equal(poor[2].bias, report.added["2"])
    assert model[2].bias is None and list(report.added) == ["0", "2", "5", "7"]


def test_the_same_model_needs_no_correction():
    model = network()
    twin = copy.deepcopy(model)
    report = correct_bias_model(twin, model, batches(), progress=False)
    assert max(delta.abs().max() for delta in report.added.values()) < 1e-6


def test_layers_that_run_twice_or_never():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.a, self.unused = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x):
            return self.a(torch.relu(self.a(x)))

    model = Twice()
    poor = quantized(model)
    report = correct_bias_model(poor, model, [torch.rand(9, 6)], progress=False)
    assert list(report.added) == ["a"] and report.not_reached == ("unused",)


def test_modes_hooks_and_progress():
    model, told = network(), []
    poor = quantized(model).train()
    correct_bias_model(poor, model, batches(), progress=lambda *stage: told.append(stage))
    assert poor.training and not model.training
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in (*model.modules(), *poor.modules()))
    assert told[0] == ("running the reference", 1, 1)  # three batches of samples of one shape
    assert told[-1] == ("correcting biases", 3, 3)


def test_an_iterator_of_batches_is_as_good_as_a_list():
    model = network()
    one, other = quantized(model), quantized(model)
    wanted = correct_bias_model(one, model, batches(), progress=False)
    found = correct_bias_model(other, model, iter(batches()), progress=False)
    assert all(torch.equal(found.added[name], delta) for name, delta in wanted.added.items())


def test_models_without_a_layer_in_common_are_refused():
    model = network()
    with pytest.raises(ModelError, match=r"before octavo\.pack_model"):
        correct_bias_model(pack_model(quantized(model)), model, batches(), progress=False)
    with pytest.raises(ModelError, match="the float model that it came from"):
        correct_bias_model(quantized(model), nn.Sequential(nn.ReLU()), batches(), progress=False)


def other():
    model = network()
    model[7] = nn.Linear(12, 6)
    return model


WRONG = {
    "model": (DTypeError, "model is 3", lambda q, m: correct_bias_model(3, m, batches())),
    "reference": (DTypeError, "reference is None", lambda q, m: correct_bias_model(q, None, batches())),
    "no batch": (CalibrationError, "no samples", lambda q, m: correct_bias_model(q, m, [])),
    "another": (ShapeError, r"7: the weight has shape \(5, 12\)", lambda q, m: correct_bias_model(q, other(), batches())),
    "NaN": (NonFiniteError, "0: the outputs hold", lambda q, m: correct_bias_model(q, m, [torch.full((1, 3, 6, 6), math.nan)])),
}  # fmt: skip


@pytest.mark.parametrize("error, match, attempt", WRONG.values(), ids=WRONG)
def test_refused_and_nothing_changed(error, match, attempt):
    model = network()
    poor = quantized(model)
    before = copy.deepcopy(poor.state_dict())
    with pytest.raises(error, match=match):
        attempt(poor, model)
    assert all(torch.equal(value, before[name]) for name, value in poor.state_dict().items())
