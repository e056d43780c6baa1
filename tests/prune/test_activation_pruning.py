"""Activations are pruned as an option of its own: the share is met, weights stay, and the cost is measured."""

import copy
import json

import octavo
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from octavo.nn.input_threshold import InputThreshold
from octavo.prune import activation_report, prune_activations, restore_activations
from torch import nn

DATA = [torch.randn(64, 24, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 5)).eval()


@pytest.mark.parametrize("method", ["calibrated", "quantile"])
@pytest.mark.parametrize("sparsity", [0.1, 0.5, 0.9])
def test_the_share_of_small_inputs_becomes_0(method, sparsity):
    model = network()
    made = prune_activations(model, sparsity, method=method, calibration=DATA, progress=False, samples=None)
    x = DATA[0]
    cut = made[0].input_threshold(x)
    kept = cut != 0
    assert torch.equal(cut[kept], x[kept]) and x[~kept].abs().max() <= x[kept].abs().min()
    share = 1 - kept.double().mean().item()
    assert abs(share - sparsity) < (1e-3 if method == "quantile" else 0.05)
    assert torch.equal(made[0](x), model[0](cut))
    told = json.loads(activation_report(made, DATA).to_json())
    assert [row["layer"] for row in told] == ["0", "2", "the model"] and told[-1]["ms"] > 0
    assert abs(told[0]["zeros after"] - sparsity) < 0.02
    assert method == "calibrated" or abs(told[1]["zeros after"] - sparsity) < 0.02  # what layer 0 loses changes 2


@given(st.integers(1, 60), st.floats(0, 0.99))
def test_activations_lose_their_smallest(count, share):
    values = torch.randperm(count).float() - count / 2 + 0.25  # no two of one magnitude
    found = InputThreshold(share, None)(values)
    gone = found != values
    assert int(gone.sum()) == round(share * count) and not found[gone].any()
    if gone.any() and not gone.all():
        assert values[gone].abs().max() < values[~gone].abs().min()


def test_it_is_taken_off_without_a_trace_and_trains_and_copies():
    model = network()
    made = prune_activations(model, 0.5, method="quantile")
    other = copy.deepcopy(made)
    other.train()(DATA[0]).sum().backward()
    assert torch.equal(other[0].weight.grad, torch.autograd.grad(made.train()(DATA[0]).sum(), made[0].weight)[0])
    restore_activations(made)
    assert torch.equal(made.eval()(DATA[0]), model(DATA[0])) and not made[0]._forward_pre_hooks
    assert list(made.state_dict()) == list(model.state_dict())


def test_what_does_not_fit_is_refused(tmp_path):
    model = network()
    with pytest.raises(octavo.CalibrationError, match="calibrated needs data"):
        prune_activations(model, 0.5)
    with pytest.raises(octavo.ModelError, match="unknown method 'l1'"):
        prune_activations(model, 0.5, method="l1")
    with pytest.raises(octavo.ModelError, match="no layer has a threshold"):
        activation_report(model, DATA)
    with pytest.raises(octavo.ModelError, match=r"0: has its inputs pruned.*restore_activations"):
        octavo.save_model(prune_activations(model, 0.5, method="quantile"), tmp_path / "m")


@pytest.mark.parametrize("sparsity", [0.1, 0.5, 0.9])
def test_random_inputs_meet_the_share_and_are_a_function_of_the_seed(sparsity):
    """In evaluation; in training every batch has others."""
    x = DATA[0]
    first, again, other = (
        prune_activations(network(), sparsity, method="random", seed=seed, progress=False) for seed in (3, 3, 4)
    )
    cut = first[0].input_threshold(x)
    kept = cut != 0
    assert torch.equal(cut[kept], x[kept]) and int((~kept).sum()) == round(sparsity * x.numel())
    assert torch.equal(first(x), again(x)) and torch.equal(first(x), first(x))
    own = first[0].input_threshold
    assert not torch.equal(cut, other[0].input_threshold(x))
    assert not torch.equal(own.train()(x), own(x)) and torch.equal(own.eval()(x), cut)
    values = x.clone().requires_grad_()
    own(values).sum().backward()
    assert torch.equal(values.grad, kept.float())
