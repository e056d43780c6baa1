"""Precisions of a run: simulated FP8 is the codecs', TF32 is refused where there is none, all are undone at the end."""

import pytest
import torch
from helpers.values import normal
from octavo import decode, encode
from octavo.errors import ConfigError
from octavo.train import train
from octavo.train.precision import Precision
from octavo.train.simulated_fp8 import BACKWARD, FORWARD, SimulatedFP8Linear, restore_float, rounded, simulate_fp8
from torch import nn
from train.tiny import Model, Rule, config

CPU = torch.device("cpu")


@pytest.mark.parametrize(("format", "largest"), [(FORWARD, 448.0), (BACKWARD, 57344.0)])
def test_rounding_is_the_codec_s_after_a_scale_of_the_tensor(format, largest):
    x = normal(7, 33)
    scale = x.abs().max() / largest
    codes = encode(x / scale, format)
    assert torch.equal(rounded(x, format), (decode(codes) * scale).bfloat16())
    assert torch.equal(rounded(torch.zeros(3), format), torch.zeros(3, dtype=torch.bfloat16))


def test_a_simulated_layer_multiplies_what_the_codecs_give_forward_and_backward():
    layer = nn.Linear(16, 8)
    x, y_gradient = normal(5, 16, seed=1).requires_grad_(), normal(5, 8, seed=2)
    holder = nn.ModuleDict({"blocks": nn.ModuleList([layer])})
    simulate_fp8(holder)
    assert type(layer) is SimulatedFP8Linear
    layer(x).backward(y_gradient.bfloat16())
    x8, w8, g8 = rounded(x, FORWARD), rounded(layer.weight, FORWARD), rounded(y_gradient.bfloat16(), BACKWARD)
    assert torch.equal(layer(x), x8 @ w8.t() + layer.bias.bfloat16())
    assert torch.equal(x.grad, (g8 @ w8).float()) and torch.equal(layer.weight.grad, (g8.t() @ x8).float())
    assert torch.equal(layer.eval()(x), nn.functional.linear(x, layer.weight, layer.bias))
    restore_float(holder)
    assert type(layer) is nn.Linear


def test_only_linear_layers_of_blocks_are_simulated_where_there_are_blocks():
    model = nn.ModuleDict({"head": nn.Linear(4, 4), "blocks": nn.ModuleList([nn.Linear(4, 4)])})
    simulate_fp8(model)
    assert type(model["head"]) is nn.Linear and type(model["blocks"][0]) is SimulatedFP8Linear


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp8"])
def test_a_run_trains_in_every_precision_and_leaves_the_model_as_it_was(tmp_path, precision):
    torch.manual_seed(0)
    model = Model()
    kinds = [type(module) for module in model.modules()]
    train(model, Rule(), config(precision=precision, steps=6, schedule="constant", warmup=0), tmp_path, progress=False)
    assert [type(module) for module in model.modules()] == kinds
    assert all(parameter.dtype == torch.float32 and parameter.isfinite().all() for parameter in model.parameters())


def test_tf32_is_a_switch_of_gpus():
    with pytest.raises(ConfigError, match="tf32"):
        Precision("tf32", CPU)
    before = torch.backends.cuda.matmul.allow_tf32
    with Precision("tf32", torch.device("cuda")).prepared(nn.Linear(1, 1)):
        assert torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cuda.matmul.allow_tf32 == before
