"""Joined layers give what they give singly, whatever happens to them and in whichever order they are called."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo.nn.joined_linear import join_layers
from torch import nn
from torch.nn import functional as F

NEAR = 1e-5  # the order in which one large product sums is not that of three small ones


def layers(inner, outs, bias=True, dtype=torch.float32):
    torch.manual_seed(0)
    return [nn.Linear(inner, out, bias=bias, dtype=dtype) for out in outs]


def assert_same(parts, x):
    for part in parts:
        expected = F.linear(x, part.weight, part.bias)
        torch.testing.assert_close(part(x), expected, rtol=NEAR, atol=NEAR)


@settings(max_examples=30, deadline=None)
@given(
    inner=st.integers(1, 17), outs=st.lists(st.integers(1, 9), min_size=2, max_size=4), bias=st.booleans(),
    shape=st.lists(st.integers(0, 4), max_size=3), order=st.randoms(),
)  # fmt: skip
def test_every_order_of_calls_gives_each_layer_its_own(inner, outs, bias, shape, order):
    parts = join_layers(layers(inner, outs, bias))
    x = torch.randn(*shape, inner)
    with torch.no_grad():
        for _ in range(3):
            called = list(parts)
            order.shuffle(called)
            assert_same(called[: order.randint(1, len(called))], x)


def test_names_and_values_stay_and_new_weights_are_used():
    model = nn.Sequential(*layers(8, (8, 4)))
    before = copy.deepcopy(model.state_dict())
    model = nn.Sequential(*join_layers(list(model)))
    x = torch.randn(3, 8)
    with torch.no_grad():
        assert_same(model, x)
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
        model.load_state_dict({name: torch.randn_like(value) for name, value in before.items()})
        assert_same(model, x)
        model.load_state_dict({name: torch.randn_like(value) for name, value in before.items()}, assign=True)
        assert_same(model, x)
        twin = pickle.loads(pickle.dumps(copy.deepcopy(model)))
        twin[0].weight.mul_(2)
        assert_same(twin, x)
        assert_same(model, x)
        assert_same(model.double(), x.double())


def test_a_changed_input_is_computed_again():
    parts = join_layers(layers(8, (8, 4)))
    x = torch.randn(3, 8)
    with torch.no_grad():
        parts[0](x)
        x.mul_(3)
        assert_same(parts[1:], x)
    with torch.inference_mode():
        assert_same(parts, torch.randn(3, 8))
    assert not parts[0].joint._waiting


def test_gradients_are_those_of_single_layers():
    single = layers(8, (8, 4))
    parts = join_layers(copy.deepcopy(single))
    x = torch.randn(3, 8)
    for group in (single, parts):
        sum(part(x).square().sum() for part in group).backward()
    assert all(torch.equal(a.weight.grad, b.weight.grad) for a, b in zip(single, parts, strict=True))
    for part in parts:
        part.requires_grad_(False)
    y = x.clone().requires_grad_()
    sum(part(y).sum() for part in parts).backward()
    torch.testing.assert_close(y.grad, sum(part.weight.sum(0) for part in parts).expand_as(y), rtol=NEAR, atol=NEAR)


@pytest.mark.parametrize("threads", [4])
def test_threads_have_results_of_their_own(threads):
    parts = join_layers(layers(16, (16, 16, 8)))

    def work(seed):
        with torch.no_grad():
            for number in range(50):
                assert_same(parts, torch.randn(2, 16, generator=torch.Generator().manual_seed(seed * 100 + number)))

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))


def test_it_compiles_as_single_layers():
    parts = join_layers(layers(8, (8, 4)))
    with torch.no_grad():
        program = torch.export.export(nn.Sequential(parts[0], parts[1]), (torch.randn(2, 8),), strict=False)
    assert sum("linear" in str(node.target) for node in program.graph.nodes) == 2
