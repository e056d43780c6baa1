"""Parameters that a module holds itself, as tables: the module's own code runs, and values are those of the table."""

import copy
import pickle

import octavo
import pytest
import torch
from octavo.model_folder.unpack_weights import unpack
from octavo.model_folder.weight_files import Checkpoint
from octavo.nn.rewriting import rewritten
from torch import nn


class Positions(nn.Module):
    """Learned positions, a class token, a state matrix, and a part that has positions, too."""

    def __init__(self, depth=1):
        super().__init__()
        self.positions = nn.Parameter(torch.randn(1, 20, 64))
        self.token = nn.Parameter(torch.randn(1, 1, 64))
        self.A_log = nn.Parameter(torch.randn(20, 64))
        self.bias_table = nn.Parameter(torch.randn(100, 4))
        self.project = nn.Linear(64, 64)
        self.inner = Positions(depth - 1) if depth else None

    def forward(self, x):
        x = x + self.positions[:, : x.shape[1]] + self.token + self.A_log[: x.shape[1]]
        x = self.project(x) * (1 + self.bias_table.mean())
        return x if self.inner is None else self.inner(x)


X = torch.randn(2, 9, 64, generator=torch.Generator().manual_seed(1))


def make():
    torch.manual_seed(0)
    return Positions().eval()


def test_tables_are_rounded_and_the_rest_stays(tmp_path):
    model = make()
    rounded = copy.deepcopy(model)
    for module in (rounded, rounded.inner):
        module.positions.data = octavo.quantize(module.positions.data, "int4:g32")
        module.bias_table.data = octavo.quantize(module.bias_table.data.T.contiguous(), "int4:g32").T
        module.project.weight.data = octavo.quantize(module.project.weight.data, "int4:g32")
    simulated = octavo.quantize_model(model, "int4:g32", progress=False)
    packed = octavo.pack_model(simulated)
    float_ones = {tensor.name for tensor in octavo.quant.coverage(simulated).tensors if not tensor.format}
    assert float_ones == {f"{path}{name}" for path in ("", "inner.") for name in ("token", "A_log", "project.bias")}
    assert type(simulated).__name__ == "Positions" and isinstance(simulated, Positions)
    with torch.no_grad():
        assert torch.equal(simulated(X), rounded(X))
        torch.testing.assert_close(packed(X), simulated(X))
        with octavo.strict():
            packed(X)
        for name, made in (("packed", packed), ("simulated", simulated)):
            octavo.save_model(made, tmp_path / name)
            assert torch.equal(octavo.load_model(tmp_path / name, make)(X), made(X))
            for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
                assert torch.equal(other(X), made(X))
    plain = unpack(Checkpoint.open(tmp_path / "packed"))
    assert plain.keys() == model.state_dict().keys()
    assert all(torch.equal(plain[name], value) for name, value in rounded.state_dict().items())


def test_gradients_reach_tables():
    simulated = octavo.quantize_model(make(), "int8", progress=False).train()
    simulated(X).sum().backward()
    grad = simulated.positions_table.weight.grad
    assert grad[:9].abs().sum() > 0 and grad[9:].abs().sum() == 0


def test_a_model_that_is_itself_made_of_tables_is_changed_in_place_and_put_back():
    model = make()
    before = model(X)
    with pytest.raises(octavo.CalibrationError):
        octavo.quantize_model(model, "int8; project int4:g32@gptq", inplace=True, progress=False)
    assert "positions" in model._parameters and torch.equal(model(X), before)
    broken = "int8; project input=int8@minmax"
    with pytest.raises(octavo.NonFiniteError):
        octavo.quantize_model(model, broken, calibration=[X * float("nan")], inplace=True, progress=False)
    assert type(model) is Positions and torch.equal(model(X), before)
    same = octavo.quantize_model(model, "int8", inplace=True, progress=False)
    assert same is model and "positions_table" in model._modules and not torch.equal(model(X), before)


def test_rules_name_the_parameter_or_the_table():
    for rule in ("positions int8", "positions_table int8", "name:positions_table int8"):
        assert list(octavo.Recipe.parse(rule).plan(make())) == ["positions_table"]
    kept = octavo.quantize_model(make(), "int8; **positions* keep; **bias_table* keep", progress=False)
    assert "positions" in kept._parameters and type(kept) is Positions


def test_a_parameter_that_two_modules_hold_stays():
    model = make()
    model.inner.positions = model.positions
    assert {"positions_table", "inner.positions_table"}.isdisjoint(octavo.Recipe.parse("int8").plan(model))


def test_modules_of_torch_and_routers_stay():
    class Router(nn.Module):
        """Chooses experts."""

        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 64))

    class Theirs(nn.LSTM):
        """Its parameters are read by code that sees no attributes."""

    assert rewritten(Router()) is None and rewritten(Theirs(16, 16)) is None
    assert rewritten(nn.LayerNorm((16, 64))) is None and rewritten(nn.Bilinear(16, 16, 16)) is None


class Tied(nn.Module):
    """A table that the model reads itself, tied to its head."""

    def __init__(self):
        super().__init__()
        self.head, self.words = nn.Linear(64, 40, bias=False), Words()
        self.words.weight = self.head.weight

    def forward(self, ids):
        return self.head(self.words(ids))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(40, 64))

    def forward(self, ids):
        return nn.functional.embedding(ids, self.weight)


def test_a_table_that_is_tied_to_a_layer_stays_tied(tmp_path):
    model, ids = Tied().eval(), torch.tensor([[3, 1], [7, 39]])
    simulated = octavo.quantize_model(model, "int4:g32", progress=False)
    assert simulated.words.weight_table._own("weight") is simulated.head._own("weight")
    packed = octavo.pack_model(simulated)
    octavo.save_model(packed, tmp_path)
    assert [entry.format for entry in octavo.inspect(tmp_path / "model.octavo.safetensors")] == ["int4:g32"]
    with torch.no_grad():
        torch.testing.assert_close(packed(ids), simulated(ids))
        assert torch.equal(octavo.load_model(tmp_path, Tied)(ids), packed(ids))


def test_gptq_of_many_layers_rounds_tables_and_a_rule_that_names_one_is_refused():
    """Recipes that solve every product hold for models with learned positions and transposed convolutions, too."""
    model = nn.Sequential(make(), nn.Unflatten(-1, (64, 1)), nn.Flatten(1, 1))
    for rule in ("int4:g32@gptq", "glob:** int4:g32@gptq"):
        plan = octavo.Recipe.parse(rule).plan(model)
        assert plan["0.positions_table"].weight.calibration is None
        assert plan["0.project"].weight.calibration.method == "gptq"
    with pytest.raises(octavo.FormatError, match="an embedding has none"):
        octavo.Recipe.parse("name:0.positions int4:g32@gptq").plan(model)
    plan = octavo.Recipe.parse("int4:g32@gptq").plan(nn.Sequential(nn.ConvTranspose1d(4, 4, 2), nn.Linear(4, 4)))
    assert plan["0"].weight.calibration is None and plan["1"].weight.calibration is not None
