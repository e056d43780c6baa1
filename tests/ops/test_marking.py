"""Roundings that may saturate mark, with one bit a value, which gradients pass; the values are not kept."""

import itertools
import math

import numpy as np
import octavo
import pytest
import torch
from helpers.codecs import random_scales
from helpers.simd import at_level, available_levels
from helpers.values import DTYPES, normal
from octavo.tensors.formats import core
from ops.test_passing import pairs

ops = torch.ops.octavo
SATURATING = pairs(False)


def wild(rows, columns, dtype, seed=0):
    """Values beyond every range, NaN, infinities, zeros and small ones."""
    x = normal(rows, columns, seed=seed)
    x[0] *= 1e30
    x[1] *= 1e-30
    x[2] = 0
    x[3, ::5], x[3, 1::5], x[3, 2::5] = math.inf, -math.inf, math.nan
    x[4, : columns // 2] = 0
    return (x * 100).to(dtype)


@pytest.mark.parametrize(("text", "rule"), SATURATING)
def test_marked_gradients_are_those_of_the_op(text, rule):
    for dtype, columns in itertools.product(DTYPES.values(), (8, 40, 512)):
        x, grad = wild(7, columns, dtype), normal(7, columns, seed=1).to(dtype)
        for level in available_levels():
            with at_level(level):
                leaf = x.clone().requires_grad_()
                q = octavo.quantize(leaf, text, scale=rule)
                assert torch.equal(q.detach().nan_to_num(5), octavo.quantize(x, text, scale=rule).nan_to_num(5))
                q.backward(grad)
                assert torch.equal(leaf.grad, ops.quantize_backward(grad, x, text, -1, rule)[0])


@pytest.mark.parametrize("text", ["int8", "int4:g32", "mxfp4", "nf4", "fixed8", "uint4:g32", "int8:channel"])
def test_given_scales_are_marked_too(text, simd):
    x, grad = wild(7, 64, torch.float32), normal(7, 64, seed=1)
    parts = random_scales(text, x.shape, np.random.default_rng(0), -1)
    leaf = x.clone().requires_grad_()
    octavo.quantize(leaf, text, **parts).backward(grad)
    zeros = parts.get("zeros")
    if zeros is not None:
        parts["zeros"] = octavo.ops.codec.pack_zeros(text, zeros, tuple(x.shape), -1)
    assert torch.equal(leaf.grad, ops.quantize_backward(grad, x, text, **parts)[0])


def test_large_tensors_are_marked_over_threads_and_segments():
    for shape in ((300, 1000), (3, 40_008)):
        x = normal(*shape) * 3
        for text in ("mxfp4", "nvfp4", "fixed8", "e4m3", "mxint8"):
            leaf = x.clone().requires_grad_()
            octavo.quantize(leaf, text).backward(x)
            assert torch.equal(leaf.grad, ops.quantize_backward(x, x, text)[0])


@pytest.mark.parametrize(("text", "rule"), SATURATING)
def test_one_bit_a_value_is_kept(text, rule):
    x = normal(6, 64).requires_grad_()
    marks = core(text)._marks(x.shape, -1)
    q = octavo.quantize(x, text, scale=rule)
    if marks:
        assert [saved.nbytes for saved in q.grad_fn.saved_tensors] == [x.numel() // 8]
    assert not core(text)._marks((6, 63), -1) and not core(text)._marks((64, 6), 0)


def test_marked_gradients_compose_with_autograd():
    x, g = (normal(4, 64) * 3).requires_grad_(), normal(4, 64, seed=1).requires_grad_()
    inside = ops.quantize_backward(torch.ones_like(x), x.detach(), "mxfp4")[0]
    assert 0 < inside.sum() < inside.numel()
    (first,) = torch.autograd.grad(octavo.quantize(x, "mxfp4"), x, g, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), g)
    assert torch.equal(second, 2 * g * inside)
    many = normal(3, 4, 64, seed=2)
    (batched,) = torch.autograd.grad(octavo.quantize(x, "mxfp4"), x, many, is_grads_batched=True)
    assert torch.equal(batched, many * inside)
    # Layouts: contiguous or not, the gradient has the values of the incoming one.
    octavo.quantize(x, "mxfp4").backward(normal(64, 4, seed=3).t())
    assert torch.equal(x.grad, normal(64, 4, seed=3).t() * inside)
