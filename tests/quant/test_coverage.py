"""coverage: what share of a model is quantized, what is not, and why."""

import json
import warnings

import octavo
import pytest
import torch
from helpers.models import transformer
from octavo import CoverageWarning, DTypeError
from octavo.quant import coverage
from octavo.recipe.spec import LayerPlan, Spec
from torch import nn


class Cell(nn.LSTM):
    """A subclass, which may compute something else: none is made of layers."""


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.head = nn.Linear(32, 50)
        self.head.weight = self.embed.weight
        self.conv = nn.Conv2d(4, 8, 3)
        self.cell, self.up = Cell(32, 32), nn.ConvTranspose1d(32, 8, 3)
        self.decay = nn.Parameter(torch.randn(4, 32, 32))
        self.norm = nn.LayerNorm(32)


def quantized(recipe="mxint8; name:conv keep"):
    torch.manual_seed(0)
    return octavo.quantize_model(Model(), recipe, progress=False)


def warned(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [entry.message for entry in caught if isinstance(entry.message, CoverageWarning)]


def test_every_parameter_is_there_once_with_its_reason():
    model = quantized()
    found = coverage(model)
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.nbytes_before == sum(p.nbytes for p in model.parameters())
    assert (
        found.quantized == 50 * 32 + 32 * 8 * 3
        and found.share == found.byte_share == found.quantized / found.parameters
    )
    tensors = {tensor.name: tensor for tensor in found.tensors}
    assert set(tensors) == {name for name, _ in model.named_parameters()}
    assert tensors["embed.weight"].format == "mxint8"
    assert tensors["embed.weight"].nbytes == octavo.Format("mxint8").nbytes((50, 32))
    reasons = {
        "decay": "Model takes no formats",
        "cell.weight_ih_l0": "Cell takes no formats",
        "norm.weight": "LayerNorm takes no formats",
        "conv.weight": "kept by a rule",
        "head.bias": "no rule names it",
    }
    assert {name: tensors[name].reason for name in reasons} == reasons
    assert sum(found.kept().values()) == found.parameters - found.quantized


def test_packing_changes_no_share_and_its_bytes_are_those_held():
    model = quantized("mxint8; name:conv mxint4")
    before, packed = coverage(model), octavo.pack_model(model)
    after = coverage(packed)
    assert after.kept()["no format in the recipe"] == before.kept()["no rule names it"] > 0
    assert (after.share, after.byte_share, after.nbytes) == (before.share, before.byte_share, before.nbytes)
    names = {name: buffer for name, buffer in packed.named_buffers() if not name.endswith("weight_format")}
    held = {id(t): t.nbytes for t in [*packed.parameters(), *names.values()]}
    assert after.nbytes == sum(held.values())


def test_reasons_are_those_of_explain_and_of_a_changed_model_none_is_invented():
    recipe = octavo.Recipe.parse("int8; name:head keep")
    model = nn.ModuleDict({"body": nn.Linear(32, 32), "head": nn.Linear(32, 8), "norm": nn.LayerNorm(32)})
    explained = recipe.explain(model)
    model = octavo.quantize_model(model, recipe, progress=False)
    reasons = {tensor.name: tensor.reason for tensor in coverage(model).tensors if tensor.format is None}
    assert {t.name: t.reason for t in explained.unreached}.items() <= reasons.items()
    assert reasons["head.weight"] == reasons["head.bias"] == "kept by a rule"
    del model["head"]  # its rule names nothing now
    assert coverage(model).kept() == {"LayerNorm takes no formats": 64, "no format in the recipe": 32}


def test_layers_that_are_switched_off_are_not_counted():
    model = octavo.quantize_model(nn.Sequential(nn.Linear(64, 64)), "mxint8", progress=False)
    assert coverage(model).share > 0.9
    model[0].weight_quantizer.enabled = False
    found = coverage(model)
    assert found.quantized == 0 and found.kept()["its quantizer is switched off"] == 64 * 64


@pytest.mark.parametrize("bias", ["int8", "int32"])
def test_a_rounded_bias_has_the_bytes_that_packing_gives_it(bias):
    recipe = f"type:Linear int8:channel input=int8@minmax bias={bias}"
    model = nn.Sequential(nn.Linear(64, 48)).half()
    data = [torch.randn(4, 64, dtype=torch.float16)]
    model = octavo.quantize_model(model, recipe, calibration=data, progress=False)
    packed = octavo.pack_model(model)
    held = packed[0].packed_weight.nbytes + packed[0].bias.nbytes
    assert coverage(model).nbytes == coverage(packed).nbytes == held
    assert coverage(model).parameters == coverage(packed).parameters == 65 * 48
    assert coverage(model).nbytes_before == coverage(packed).nbytes_before


def test_less_than_half_is_warned_of_with_the_reasons():
    (warning,) = warned(quantized)
    assert "Model takes no formats" in str(warning) and "octavo.quant.coverage(model)" in str(warning)
    share = f"{100 * coverage(quantized()).share:.1f}%"
    assert share in str(warning)
    assert not warned(lambda: octavo.quantize_model(nn.Sequential(nn.Linear(8, 8)), "mxint8"))


def test_plans_activations_and_empty_recipes_do_not_warn():
    plan = {"head": LayerPlan(output=Spec(octavo.Format("int8")))}
    for recipe in (plan, "", "type:Linear output=int8"):
        assert not warned(lambda recipe=recipe: octavo.quantize_model(Model(), recipe))


def test_it_prints_and_is_json():
    found = coverage(quantized())
    text = str(found)
    for word in ("mxint8", "float: Cell takes no formats", "total", "of the parameters", "of the bytes are quantized"):
        assert word in text
    read = json.loads(found.to_json())
    assert read["parameters"] == found.parameters and len(read["tensors"]) == len(found.tensors)
    assert read["share"] == found.share and read["kept"] == found.kept()


class OwnProducts(nn.Bilinear):
    """A subclass of a module of torch, whose parameters no rewriting takes."""

    def __init__(self):
        super().__init__(2, 2, 2)
        self.matrices = nn.Parameter(torch.randn(4, 32, 128))

    def forward(self, x):
        return sum(x @ matrix for matrix in self.matrices)


def test_modules_that_multiply_parameters_of_their_own_are_warned_of():
    model = nn.Sequential(nn.Linear(32, 32), OwnProducts())
    (warning,) = warned(lambda: octavo.quantize_model(model, "mxint8"))
    assert "OwnProducts takes no formats" in str(warning)


def test_experts_of_transformers_are_covered():
    model = transformer("MixtralForCausalLM", num_key_value_heads=2, num_local_experts=4)
    quantized = octavo.quantize_model(model, "mxint8")
    assert octavo.quant.coverage(quantized).share > 0.95


def test_what_is_no_model_is_refused():
    with pytest.raises(DTypeError, match=r"coverage: model is a dict; accepted is a torch.nn.Module"):
        coverage({})
