"""Experts of a mixture: solvers and calibration take those that tokens reach, and name the others."""

import copy
import warnings

import octavo
import pytest
import torch
from helpers.models import copied_state, same_tensors, transformer
from octavo.graph.tensor_statistics import Statistics
from octavo.quant.algorithms import solve_in_order
from octavo.quant.algorithms.gptq import gptq
from octavo.quant.calibration import hooked
from octavo.recipe.expert_families import expert_family, experts_module, experts_of

TOKENS = torch.randint(0, 50, (6, 24), generator=torch.Generator().manual_seed(4))


def mixture(experts=4, layers=2):
    return transformer(
        "MixtralForCausalLM", width=64, inner=96, heads=4, layers=layers, num_local_experts=experts,
        num_experts_per_tok=2, num_key_value_heads=2,
    )  # fmt: skip


def warned(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = call()
    return made, [one.message for one in caught if isinstance(one.message, octavo.CalibrationWarning)]


def test_paths_tell_families():
    path = "model.layers.1.mlp.experts.12.down_proj"
    assert expert_family(path) == "model.layers.1.mlp.experts.*.down_proj"
    assert experts_module(path) == "model.layers.1.mlp.experts"
    assert experts_of([path, path, "lm_head"]) == ["model.layers.1.mlp.experts.12"]
    assert expert_family("model.experts.proj") is None and experts_module("lm_head") is None


def test_experts_that_no_token_reached_are_named_and_rounded_to_nearest():
    plain = mixture(experts=8)
    quantized, told = warned(
        lambda: octavo.quantize_model(plain, "int4:g32@gptq; lm_head keep; embed* keep".replace("embed*", "**.embed_tokens"),
                                      calibration=[TOKENS[:1, :3]], progress=False)
    )  # fmt: skip
    (warning,) = told
    reached = set()
    names = {module: path for path, module in plain.named_modules()}
    for block in plain.model.layers:
        with hooked([block.mlp.experts], lambda module, x: reached.update(
            f"{names[module]}.{number}" for number in x[1].unique().tolist()
        )):  # fmt: skip
            plain(TOKENS[:1, :3])
    every = {f"model.layers.{layer}.mlp.experts.{number}" for layer in range(2) for number in range(8)}
    # A token may choose other experts once the layers before are rounded.
    assert set(warning.layers) <= every and len(set(warning.layers) ^ (every - reached)) <= 2
    assert all(name in str(warning) for name in warning.layers[:6])
    for name in warning.layers:
        layer = quantized.get_submodule(f"{name}.down_proj")
        block, number = name.split(".")[2], int(name.split(".")[-1])
        weight = plain.model.layers[int(block)].mlp.experts.down_proj[number]
        assert torch.equal(layer.weight, octavo.quantize(weight.detach(), "int4:g32"))


def test_gptq_of_experts_is_that_of_their_own_inputs():
    """The first mixture of a model, where nothing before it is quantized: the Hessian of the tokens that chose."""
    plain = mixture(layers=1)
    rule = "model.layers.0.mlp.experts.gate_up_proj int3:g32@gptq"
    quantized, _ = warned(lambda: octavo.quantize_model(plain, rule, calibration=list(TOKENS[:, None]), progress=False))
    inputs = [[] for _ in range(4)]

    def see(_, arguments):
        x, chosen, _ = arguments
        for number in range(4):
            inputs[number].append(x[(chosen == number).any(-1)])

    experts = plain.model.layers[0].mlp.experts
    with hooked([experts], see), torch.no_grad():
        for sample in TOKENS:
            plain(sample[None])
    for number, rows in enumerate(inputs):
        x = torch.cat(rows).double()
        weight = experts.gate_up_proj[number].detach()
        solved = gptq(weight, 2 / len(x) * x.T @ x, "int3:g32", order="descending", scale="mse").weight
        layer = quantized.model.layers[0].mlp.experts.get_submodule(f"{number}.gate_up_proj")
        near = (layer.weight - solved).abs() < 1e-6
        assert near.float().mean() > 0.99, number  # sums in another order may tip a rounding


def test_a_solver_runs_a_mixture_a_few_times_however_many_experts_it_has():
    calls = {}
    for experts in (2, 8):
        plain = mixture(experts)
        count = 0

        def see(*_):
            nonlocal count
            count += 1

        with hooked([plain.model.layers[1].mlp.gate], see):
            octavo.quantize_model(plain, "int4:g32@gptq; **.embed_tokens keep", calibration=[TOKENS], inplace=True,
                                  samples=2, progress=False)  # fmt: skip
        calls[experts] = count
    assert calls[8] == calls[2]


def test_inputs_of_unreached_experts_have_the_ranges_of_the_others():
    plain = mixture(experts=8)
    recipe = "model.layers.0.mlp.experts.down_proj int8:channel input=int8@minmax"
    quantized, (warning,) = warned(
        lambda: octavo.quantize_model(plain, recipe, calibration=[TOKENS[:1, :2]], progress=False)
    )
    scales = {
        number: float(layer.down_proj.input_quantizer.scales)
        for number, layer in quantized.model.layers[0].mlp.experts.named_children()
        if number.isdigit()
    }
    missed = {name.rpartition(".")[2] for name in warning.layers}
    assert missed and {scales[number] for number in missed} == {max(scales.values())}
    assert len({scales[number] for number in scales.keys() - missed}) > 1


def test_statistics_that_are_joined_are_those_of_all_numbers():
    x, y = torch.randn(1000) * 3, torch.randn(500) * 100
    together, joined, other = Statistics(), Statistics(), Statistics()
    together.add(torch.cat([x, y]))
    joined.add(x)
    other.add(y)
    joined.join(other)
    joined.join(Statistics())
    assert (joined.low, joined.high, joined.count) == (together.low, together.high, together.count)
    for a, b in zip(joined.histogram(), together.histogram(), strict=True):
        assert torch.equal(a, b)
    other.join(joined)
    assert other.count == 2000 and other.largest == joined.largest


def test_a_pass_that_misses_experts_warns_of_none():
    quantized = octavo.quantize_model(mixture(experts=8), "int4:g32", progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", octavo.UnusedLayerWarning)
        quantized(TOKENS[:1, :1])


def test_a_mixture_that_is_never_called_is_an_error():
    plain = mixture(layers=2)
    plain.model.layers[1].mlp.forward = lambda x: x
    with pytest.raises(octavo.CalibrationError, match=r"layers\.1\.mlp\.experts\.0\.\w+_proj: weight.*got no"):
        octavo.quantize_model(plain, "int4:g32@gptq; **.embed_tokens keep", calibration=[TOKENS], progress=False)
    del plain.model.layers[1].mlp.forward
    octavo.quantize_model(
        copy.deepcopy(plain), "int4:g32@gptq; **.embed_tokens keep", calibration=[TOKENS], progress=False
    )


def test_experts_of_a_module_dict_are_a_family_too():
    model = transformer(
        "SwitchTransformersForConditionalGeneration", vocab_size=50, d_model=32, d_kv=16, d_ff=64, num_layers=2,
        num_decoder_layers=2, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, num_heads=2, num_experts=8,
        decoder_start_token_id=0,
    )  # fmt: skip
    batch = {"input_ids": TOKENS[:1, :4], "decoder_input_ids": TOKENS[:1, :3]}
    recipe = "int4:g32; **.experts.** int4:g32@gptq"
    _, (warning,) = warned(lambda: octavo.quantize_model(model, recipe, calibration=[batch], progress=False))
    assert len(warning.layers) >= 8 and all(".experts.expert_" in name for name in warning.layers)
    assert expert_family("mlp.experts.expert_3.wi") == "mlp.experts.*.wi"


def test_solutions_do_not_depend_on_how_many_experts_are_solved_at_once(monkeypatch):
    recipe = "int4:g32; **.experts.** int3:g32@gptq"
    together = octavo.quantize_model(mixture(), recipe, calibration=[TOKENS], progress=False)
    monkeypatch.setattr(solve_in_order, "_MOST_BYTES", 8 * 96 * 96)  # of one expert
    alone = octavo.quantize_model(mixture(), recipe, calibration=[TOKENS], progress=False)
    assert same_tensors(copied_state(together), copied_state(alone))


def test_biases_of_experts_are_corrected():
    plain = transformer(
        "GptOssForCausalLM", width=64, inner=96, heads=4, num_local_experts=4, num_experts_per_tok=2,
        num_key_value_heads=2, head_dim=16, pad_token_id=0, eos_token_id=1,
    )  # fmt: skip
    recipe = "model.layers.0.mlp.experts.down_proj int2:g32"
    quantized = octavo.quantize_model(plain, recipe, progress=False)
    before = quantized.model.layers[0].mlp.experts.get_submodule("2.down_proj").bias.clone()
    corrections = octavo.quant.correct_bias_model(quantized, plain, [TOKENS], progress=False)
    name = "model.layers.0.mlp.experts.2.down_proj"
    assert corrections.added[name].abs().max() > 0
    after = quantized.get_submodule(name).bias
    assert torch.equal(after, before + corrections.added[name])
