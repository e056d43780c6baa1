"""Gradients of roundings that cannot saturate pass as they are, and nothing is kept for them."""

import itertools
import math

import numpy as np
import octavo
import pytest
import torch
from helpers import oracle
from helpers.oracle import EXAMPLES
from helpers.quick import spread
from helpers.simd import at_level, available_levels
from helpers.values import DTYPES, normal, sample
from octavo.tensors.formats import core

ops = torch.ops.octavo


def pairs(passing):
    """Formats and rules under which nothing saturates, or something may."""
    return [
        (text, rule)
        for text in EXAMPLES
        for rule in oracle.rules(text)
        if core(text).saturates(rule, False) is not passing
    ]


@pytest.mark.parametrize("text", EXAMPLES)
def test_what_is_said_to_pass_is_inside_the_range_of_the_oracle(text):
    rng = np.random.default_rng(1)
    for rule in oracle.rules(text):
        for kind in ("normal", "wide", "tiny"):
            x = np.concatenate([sample(rng, (6, 64), kind), np.full((6, 1), np.inf, np.float32)], 1)
            inside = oracle.in_range(x, text, rule=rule)
            assert inside.all() or core(text).saturates(rule, False)
    assert core(text).saturates("floor", True) or oracle.parse(text).family == "binary"


def test_formats_of_both_kinds_are_tried():
    assert {text for text, _ in pairs(True)} >= {"int8", "int4:g32", "uint4:g32", "nf4", "mxint8", "mxfp4"}
    assert {text for text, _ in pairs(False)} >= {"mxint8", "mxfp4", "nvfp4", "fixed8", "e4m3", "ternary"}


@pytest.mark.parametrize(("text", "rule"), pairs(True))
def test_nothing_is_kept_for_a_gradient_that_passes(text, rule):
    x, grad = normal(5, 96).requires_grad_(), normal(5, 96, seed=1)
    q = octavo.quantize(x, text, scale=rule)
    assert q.grad_fn.saved_tensors == ()
    assert torch.equal(q, octavo.quantize(x.detach(), text, scale=rule))
    q.backward(grad)
    assert torch.equal(x.grad, grad)
    x.grad.add_(1)  # memory of its own
    assert torch.equal(grad, normal(5, 96, seed=1))


@pytest.mark.parametrize(("text", "rule"), spread(pairs(True)))
def test_one_nan_has_no_gradient_wherever_it_lies(text, rule):
    for dtype in DTYPES.values():
        values, grad = normal(3, 20_011).to(dtype), normal(3, 20_011, seed=1).to(dtype)
        values[0, 5] = math.inf
        for at, level in itertools.product(((0, 0), (1, 17), (1, 16_390), (2, 20_010)), available_levels()):
            x = values.clone()
            x[at] = math.nan
            x.requires_grad_()
            with at_level(level):
                octavo.quantize(x, text, scale=rule).backward(grad)
            wanted = grad.clone()
            wanted[at] = 0
            assert torch.equal(x.grad, wanted)


def test_a_gradient_that_passes_composes_with_autograd():
    x = normal(4, 64).requires_grad_()
    g = normal(4, 64, seed=1).requires_grad_()
    (first,) = torch.autograd.grad(octavo.quantize(x, "int4:g32"), x, g, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), g)
    assert torch.equal(second, 2 * g)
    # One gradient for two readers of x, added up without changing either.
    y = octavo.quantize(x, "int8") + octavo.quantize(x, "int4:g32", ste="identity") + x
    y.sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 3))
    # Layouts: contiguous or not, the gradient has the values of the incoming one.
    wide = normal(64, 4).t().requires_grad_()
    octavo.quantize(wide, "int8:channel").backward(normal(64, 4, seed=3).t())
    assert torch.equal(wide.grad, normal(64, 4, seed=3).t())
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert octavo.quantize(x, "int8").grad_fn is None


def test_compiled_and_transformed_code_gives_the_same_gradients():
    x = normal(4, 64)
    x[1, 3] = math.nan

    def loss(x):
        return (octavo.quantize(x, "int4:g32") * 3).nan_to_num().sum()

    found = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        leaf = x.clone().requires_grad_()
        function(leaf).backward()
        found.append(leaf.grad)
    found.append(torch.func.grad(loss)(x))
    for one in found[1:]:
        assert torch.equal(one, found[0])


def test_wrong_options_are_refused_as_elsewhere():
    x = normal(2, 32).requires_grad_()
    with pytest.raises(octavo.FormatError, match="unknown ste"):
        ops.quantize(x, "int8", ste="none")
    with pytest.raises(octavo.FormatError):
        ops.quantize(x, "int8", -1, "half")
    with pytest.raises(octavo.FormatError):
        ops.quantize(x, "int8", -1, "ceil")  # no block scale
    with pytest.raises(octavo.ShapeError):
        octavo.quantize(x, "int8", axis=2)
