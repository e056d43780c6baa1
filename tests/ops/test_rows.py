"""A row's product depends on that row, the weights, the number of rows and the SIMD level alone: to the bit."""

import octavo
import pytest
import torch
from helpers import oracle
from helpers.oracle import EXAMPLES
from helpers.quick import spread
from helpers.values import normal
from octavo.ops.linear import integer_linear, packed_linear

FORMATS = sorted({text for text in EXAMPLES if oracle.parse(text).width <= 32})
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ROWS = [2, 4, 5, 16, 33]
"""Where kernels change: dot products of bytes for up to four rows, tiles of sixteen and thirty-two beyond."""
SHAPES = [(6, 40), (70, 577)]
"""Rows of weights and columns: of the plain kernel, and of those for large weights."""
BITS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}


def kinds(k, seed=0):
    """Rows of every kind that a kernel may hand to another."""
    x = normal(16, k, seed=seed)
    x[1] *= 2.0**-100
    x[2] *= 2.0**100
    x[3, 7] = torch.nan
    x[4, k - 1] = torch.inf
    x[5] *= 2.0**-140
    x[6] = 0
    x[7, 3] = 1e6  # an outlier: one more digit
    x[8, : k // 2] *= 2.0**-80
    x[9] = torch.where(x[9] > 0, 3e38, -3e38)
    x[10, 0] = 2.0**61
    x[11] *= 10.0 ** (normal(k, seed=seed + 1) * 8)
    x[12, 5] = -torch.inf
    x[13] *= 2.0**-59
    x[14] = torch.where(normal(k, seed=seed + 2) > 0, 0.0, -0.0)
    return x


def assert_same_bits(a, b):
    assert a.dtype == b.dtype and torch.equal(a.view(BITS[a.dtype]), b.view(BITS[b.dtype]))


def assert_rows_are_alone(product, x):
    """Each row gives among all others what it gives among copies of itself, and wherever it stands."""
    alone = {row: product(x[row].expand(len(x), -1).contiguous()) for row in range(min(len(x), 16))}
    for of_row in alone.values():
        assert_same_bits(of_row[-1], of_row[0])
    whole, turned = product(x), product(x.flip(0).contiguous()).flip(0)
    assert_same_bits(turned, whole)
    for row, of_row in alone.items():
        assert_same_bits(of_row[0], whole[row])


def mixed(rows, k, shift):
    """Rows of all kinds; with few of them, the ones that ``shift`` begins with beside ordinary ones."""
    x = kinds(k)
    order = [(shift + 3 * i) % 16 if i % 2 else 0 for i in range(rows)] if rows < 16 else [i % 16 for i in range(rows)]
    return x[order] + 0.0


@pytest.mark.parametrize("text", spread(FORMATS))
def test_a_row_of_any_kind_changes_no_other(text):
    for n, k in SHAPES:
        weight, bias = octavo.encode(normal(n, k, seed=3), text), normal(n, seed=4)
        for rows in ROWS:
            for shift in (1, 2, 4) if rows < 16 else (0,):
                x = mixed(rows, k, shift)
                assert_rows_are_alone(lambda x, weight=weight, bias=bias: packed_linear(x, weight, bias), x)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize(
    "text", spread(["mxint8", "int4:g32", "uint4:g32", "nf4", "nvfp4", "bm8e4/16", "int8:channel", "bf16"])
)
def test_rows_of_sixteen_bits_change_no_other(text, dtype, simd):
    n, k = SHAPES[1]
    weight = octavo.encode(normal(n, k, seed=3), text)
    for rows in ROWS:
        x = mixed(rows, k, 2).to(dtype)
        assert_rows_are_alone(lambda x: packed_linear(x, weight), x)


@pytest.mark.parametrize("rows", [4, 33])
def test_weights_of_all_magnitudes_change_no_other_row(rows):
    """Which rows a kernel leaves to another may depend on the weights; never on the other rows."""
    for text in ("mxint8", "bm8e4/16", "mxfp8e4m3", "nvfp4", "int8:channel", "bf16"):
        w = normal(70, 577, seed=3)
        w[::3] *= 2.0**-112
        w[1::3, :64] *= 2.0**-120
        w[2, 64:128] = 0
        weight = octavo.encode(w, text)
        assert_rows_are_alone(lambda x, weight=weight: packed_linear(x, weight), mixed(rows, 577, 3))


def test_rows_beyond_one_go_are_as_those_of_the_first():
    """Thousands of rows are multiplied some at a time."""
    weight = octavo.encode(normal(64, 544, seed=3), "mxint8")
    x = kinds(544).repeat(300, 1)
    y = packed_linear(x, weight)
    assert_same_bits(y, packed_linear(kinds(544), weight).repeat(300, 1))


@pytest.mark.parametrize("text", ["int8", "int8:channel", "int4:channel"])
@pytest.mark.parametrize("n, k", [(6, 40), (160, 577)])
def test_integer_rows_with_scales_of_their_own_change_no_other(text, n, k, simd):
    weight, finite = octavo.encode(normal(n, k, seed=3), text), [0, 1, 2, 5, 6, 7, 8, 9, 10, 11, 13]
    for rows in ROWS:
        for dtype in DTYPES:
            chosen = [finite[i % len(finite)] for i in range(rows)]
            x = kinds(k)[chosen].clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max).to(dtype)
            assert_rows_are_alone(lambda x: integer_linear(x, weight, "int8:channel"), x)
            static = torch.full((1,), 0.02)
            assert_rows_are_alone(lambda x, s=static: integer_linear(x, weight, "int8", input_scales=s), x)
