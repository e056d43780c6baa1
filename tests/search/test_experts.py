"""Experts of a mixture share decisions: one group for each matrix, however many there are."""

import math

import numpy as np
import octavo
import torch
from helpers.models import copied_state, same_tensors, transformer
from octavo.search import measure_sensitivity, measured_divergences, to_recipe

TOKENS = [torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(seed)) for seed in range(4)]


def mixture(experts=4):
    return transformer(
        "MixtralForCausalLM", width=64, inner=96, heads=4, num_local_experts=experts, num_experts_per_tok=2,
        num_key_value_heads=2,
    )  # fmt: skip


def test_the_experts_of_one_matrix_are_one_group_and_the_model_is_left_alone():
    model = mixture()
    before = copied_state(model)
    measured = measure_sensitivity(model, TOKENS, ["int4:g32", "int2:g32"], progress=False)
    groups = {group.name: group for group in measured.groups}
    for layer in range(2):
        for matrix in ("gate_up_proj", "down_proj"):
            group = groups[f"model.layers.{layer}.mlp.experts.*.{matrix}"]
            whole = model.get_parameter(f"model.layers.{layer}.mlp.experts.{matrix}")
            assert len(group.layers) == 4 and group.elements == whole.numel()
    assert len(groups) == 2 * 2 + 2 * 2 + 2  # experts, attention, and the table with the head
    assert (measured.loss[:, 0] > 0).all() and (measured.loss[:, 1] > measured.loss[:, 0]).all()
    assert same_tensors(before, model.state_dict())
    assert measured.fixed_nbytes + measured.nbytes[:, -1].sum() == sum(value.nbytes for value in before.values())


def test_losses_of_experts_are_those_of_the_quantized_model():
    model = mixture()
    measured = measure_sensitivity(model, TOKENS, ["int3:g32"], divergence="kl", progress=False)
    rows = [group.name for group in measured.groups]
    name = "model.layers.1.mlp.experts.*.down_proj"
    quantized = octavo.quantize_model(model, f"{name} int3:g32", progress=False)
    with torch.no_grad():
        before, after = (
            torch.cat([network(x).logits.double().log_softmax(-1) for x in TOKENS]) for network in (model, quantized)
        )
    divergence = (before.exp() * (before - after)).sum(-1).mean()
    assert math.isclose(measured.loss[rows.index(name), 0], float(divergence), rel_tol=1e-3)


def test_an_assignment_is_one_rule_for_all_experts_of_a_matrix():
    measured = measure_sensitivity(mixture(), TOKENS[:1], ["int4:g32", "int8:g32"], progress=False)
    choice = {group.name: "int4:g32" for group in measured.groups}
    choice["model.layers.1.mlp.experts.*.down_proj"] = "int8:g32"
    recipe = to_recipe(choice, measured)
    assert str(recipe) == "int4:g32; model.layers.1.mlp.experts.*.down_proj int8:g32"
    plan = recipe.plan(mixture())
    assert str(plan["model.layers.1.mlp.experts.3.down_proj"].weight.format) == "int8:g32"
    assert str(plan["model.layers.0.mlp.experts.3.down_proj"].weight.format) == "int4:g32"


def test_experts_that_no_token_reaches_have_losses_and_hessians_of_nothing():
    formats, roles = ["int3:g32@gptq", "int8@minmax"], ("weight", "input")
    measured = measure_sensitivity(mixture(8), [TOKENS[0][:1, :2]], formats, roles=roles, progress=False)
    losses = {group.name: row for group, row in zip(measured.groups, measured.loss, strict=True)}
    name = "model.layers.0.mlp.experts.*.gate_up_proj"
    assert losses[name][0] > 0 and losses[f"{name} input"][1] > 0


def test_a_mixture_is_compressed_within_its_budget(tmp_path):
    model = mixture()
    before = copied_state(model)
    small = octavo.compress_model(
        model, budget=4.6, data=TOKENS, formats=("int4:g32", "int3:g32"), fast=True, progress=False
    )
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert small.model.config.num_local_experts == 4 and same_tensors(before, model.state_dict())
    octavo.save_model(small.model, tmp_path)
    loaded = octavo.load_model(tmp_path)
    with torch.no_grad():
        assert torch.equal(loaded(TOKENS[0]).logits, small.model(TOKENS[0]).logits)
    assert octavo.quant.coverage(loaded).nbytes <= 4.6 / 8 * parameters


def test_losses_do_not_depend_on_how_many_hessians_are_gathered_at_once(monkeypatch):
    arguments = mixture(), TOKENS[:2], ["int3:g32@gptq"]
    together = measure_sensitivity(*arguments, progress=False).loss
    monkeypatch.setattr(measured_divergences, "_HESSIAN_BYTES", 2 * 8 * 64 * 64)  # of two experts
    assert np.array_equal(measure_sensitivity(*arguments, progress=False).loss, together, equal_nan=True)
