"""Products of inputs rounded to a format: those of the rounded inputs, whichever kernel multiplies codes."""

import octavo
import pytest
import torch
from helpers import oracle
from helpers.oracle import EXAMPLES
from helpers.quick import spread
from helpers.values import normal
from octavo import DTypeError, FormatError, NonFiniteError, ShapeError, _core
from octavo.ops import linear
from octavo.ops.linear import integer_linear, packed_linear, rounded_linear

ops = torch.ops.octavo

ROUNDING, COLUMN = 2.0**-20, 2.0**-28
"""FORMATS.md section 6, Products: bound on the error over T, with so much more for each column."""
OUTPUT = {torch.float32: 0.0, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
"""Relative error of rounding to the dtype of the output."""
WEIGHTS = sorted({text for text in EXAMPLES if oracle.parse(text).width <= 32})
INPUTS = [
    "int8:g32",
    "mxint8",
    "int8:channel",
    "int8",
    "mxint4/16",
    "int3:g64",
    "int6:g128",
    "mxfp4",
    "nvfp4",
    "int8:g7",
]
ROWS = (1, 2, 3, 4, 7, 16, 17)


def assert_product(y, x, weight, input_format, bias=None):
    """The law: float64 products of what is decoded from rounded inputs and weights, within the documented bound."""
    rounded, values = octavo.quantize(x.float(), input_format).double(), weight.decode(torch.float32).double()
    wanted, k = rounded @ values.T, x.shape[-1]
    chunks = max(1, -(-k // 256))
    parts = [torch.nn.functional.pad(part.abs(), (0, 256 * chunks - k)) for part in (rounded, values)]
    largest, sums = (part.unflatten(-1, (chunks, 256)) for part in parts)
    terms = largest.amax(-1) @ sums.sum(-1).T
    if bias is not None:
        wanted, terms = wanted + bias.double(), terms + bias.double().abs()
    assert y.dtype == x.dtype and y.shape == (*x.shape[:-1], weight.shape[0])
    bound = (ROUNDING + k * COLUMN) * terms + OUTPUT[x.dtype] * wanted.abs() + torch.finfo(x.dtype).tiny
    excess = (y.double() - wanted).abs() - bound
    assert not (excess > 0).any(), f"off by {(y.double() - wanted).abs().max()}"


# --------------------------------------------------------------------------------------------------------- the definition


@pytest.mark.parametrize("text", WEIGHTS)
def test_a_product_is_that_of_the_rounded_inputs(text):
    n, k = 70, 512
    weight, bias = octavo.encode(normal(n, k), text), normal(n, seed=9)
    for seed, (m, input_format) in enumerate(zip((*ROWS, 1, 2, 5), INPUTS, strict=True)):
        x = normal(m, k, seed=seed)
        assert_product(rounded_linear(x, weight, input_format, bias), x, weight, input_format, bias)


@pytest.mark.parametrize("input_format", INPUTS)
@pytest.mark.parametrize("text", ["int4:g32", "uint4:g32", "mxint8", "int8:channel", "nf4", "mxfp8e4m3", "int5:g16"])
@pytest.mark.parametrize("dtype", OUTPUT, ids=str)
def test_rows_dtypes_and_columns_that_are_no_vectors(text, input_format, dtype):
    for seed, (m, n, k) in enumerate([(1, 131, 333), (4, 66, 577), (3, 5, 40), (9, 33, 1100), (0, 3, 4), (2, 3, 0)]):
        weight, x = octavo.encode(normal(n, k, seed=seed), text), normal(m, k, seed=seed + 1, dtype=dtype)
        assert_product(rounded_linear(x, weight, input_format), x, weight, input_format)


@pytest.mark.parametrize("input_format", ["int8:g32", "mxint8", "int8:channel", "mxfp4"])
@pytest.mark.parametrize("text", ["mxint8", "int4:g32", "uint4:g32", "nvfp4", "int6:channel"])
def test_every_simd_level_is_within_the_bound(text, input_format, simd):
    weight = octavo.encode(normal(80, 512, seed=1), text)
    for m in (1, 6, 30):
        x = normal(m, 512, seed=m)
        assert_product(rounded_linear(x, weight, input_format), x, weight, input_format)


@pytest.mark.parametrize("input_format", ["int8:g32", "mxint8/64", "int5:channel"])
@pytest.mark.parametrize("text", ["mxint8", "int4:g32", "uint4:g32", "nf4", "nvfp4"])
def test_a_row_depends_neither_on_the_other_rows_nor_on_threads(text, input_format):
    x, weight = normal(8, 320), octavo.encode(normal(300, 320, seed=1), text)
    x[3, 7], x[4, 9], x[5] = torch.nan, torch.inf, 1e-38
    try:
        _core.set_num_threads(1)
        whole = rounded_linear(x, weight, input_format)
        _core.set_num_threads(3)
        assert torch.equal(rounded_linear(x, weight, input_format).nan_to_num(7.0), whole.nan_to_num(7.0))
    finally:
        _core.set_num_threads(0)
    for some in (slice(0, 1), slice(0, 3), slice(6, 8)):
        assert torch.equal(rounded_linear(x[some], weight, input_format), whole[some])


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("text", ["int8:channel", "mxint8", "int4:g32", "mxint6"])
@pytest.mark.parametrize("input_format", ["fixed8.4", "fixed8:mse"])
def test_inputs_may_have_the_code_that_has_no_other_sign(input_format, text, rows, simd):
    weight = octavo.encode(-normal(70, 128, seed=1).abs(), text)
    x = normal(rows, 128)
    x[0, 0] = x[-1, 77] = -8.0
    x[rows // 2, 5] = -100.0
    assert octavo.encode(x, "fixed8.4").codes.view(torch.int8).min() == -128
    assert_product(rounded_linear(x, weight, input_format), x, weight, input_format)


@pytest.mark.parametrize("input_format", ["mxint8", "int8:channel", "mxfp4"])
@pytest.mark.parametrize("text", ["mxint8", "mxfp4", "nvfp4", "int8:channel"])
@pytest.mark.parametrize("power", [-120, -70, 70, 120])
def test_extreme_magnitudes_do_not_matter(text, input_format, power):
    weight = octavo.encode(normal(131, 512) * 2.0**power, text)
    x = normal(4, 512, seed=1) / 2.0**power
    x[1, 32:] = 0
    x[2, :480] = 0
    x[3] = 0
    assert_product(rounded_linear(x, weight, input_format), x, weight, input_format)


@pytest.mark.parametrize("input_format", ["int8:g32", "mxint8", "int8:channel"])
def test_infinities_saturate_and_nan_stays_in_its_row(input_format):
    weight = octavo.encode(normal(100, 96).abs() + 1, "int4:g32")
    x = normal(4, 96)
    x[1, 7], x[3, 90] = torch.nan, torch.inf
    y = rounded_linear(x, weight, input_format)
    assert y[1].isnan().all()
    assert_product(y[[0, 2]], x[[0, 2]], weight, input_format)
    wanted = packed_linear(octavo.quantize(x[3:], input_format), weight)
    assert torch.equal(y[3:].isfinite(), wanted.isfinite())


def test_a_zero_point_leaves_nothing_behind():
    values = torch.zeros(128, 512)
    values[0] = normal(512) * 1e3 - 1
    weight = octavo.encode(values, "uint8:tensor")
    assert not rounded_linear(normal(3, 512), weight, "int8:g32")[:, 1:].any()


def test_the_largest_codes_do_not_overflow():
    for text in ("uint8:channel", "int8:channel", "mxint8"):
        weight = octavo.encode(torch.cat([torch.zeros(70, 1), torch.ones(70, 4095)], 1), text)
        for sign in (1, -1):
            x = torch.full((2, 4096), float(sign))
            assert_product(rounded_linear(x, weight, "int8:channel"), x, weight, "int8:channel")


# -------------------------------------------------------------------------------------------------------- integer_linear


@pytest.mark.parametrize("input_format", ["int8:g32", "mxint8", "int4:g128"])
@pytest.mark.parametrize("text", ["int8:g32", "mxint8", "int4:g64", "mxint4"])
def test_integers_by_groups_are_an_integer_product(text, input_format):
    weight, bias, x = octavo.encode(normal(70, 512), text), normal(70, seed=1), normal(3, 512, seed=2)
    y = integer_linear(x, weight, input_format, bias)
    assert_product(y, x, weight, input_format, bias)
    assert torch.equal(y, rounded_linear(x, weight, input_format, bias))
    assert linear.kernel(text, 1, 70, 512, torch.float32, input_format) in (
        "int8 groups vnni",
        "int8 groups avx2",
        "fma scalar",
    )
    x[1, 3] = torch.inf
    with pytest.raises(NonFiniteError, match="position 515"):
        integer_linear(x, weight, input_format)
    with pytest.raises(ShapeError, match="chosen from x"):
        integer_linear(x, weight, input_format, input_scales=torch.ones(1))
    with pytest.raises(DTypeError, match=r"bias has dtype torch\.int32"):
        integer_linear(x, weight, input_format, bias.int())


# -------------------------------------------------------------------------------------------------------------- contracts


@pytest.mark.parametrize("text", spread(["mxint8", "uint4:g32", "nvfp4"]))
@pytest.mark.parametrize("input_format", ["int8:g32", "bf16"])
def test_ops_keep_the_contract_of_torch_library(text, input_format):
    weight, bias = octavo.encode(normal(6, 40), text), normal(6).requires_grad_()
    x, rest = normal(2, 3, 40, seed=1).requires_grad_(), (None, None, None, text, 6, 40, input_format, "floor")
    torch.library.opcheck(ops.rounded_linear.default, (x, *weight.parts, bias, *rest))
    torch.library.opcheck(ops.rounded_linear_plain.default, (x.detach().bfloat16(), *weight.parts, None, *rest))


def test_gradients_pass_straight_through_the_rounding():
    weight, bias = octavo.encode(normal(6, 40), "mxint8"), normal(6).requires_grad_()
    grads = []
    for product in (
        lambda x: rounded_linear(x, weight, "mxint4", bias),
        lambda x: packed_linear(octavo.quantize(x, "mxint4"), weight, bias),
    ):
        x, bias.grad = normal(3, 40, seed=1).requires_grad_(), None
        product(x).square().sum().backward()
        grads.append((x.grad, bias.grad))
        direction = normal(3, 40, seed=2)
        grads[-1] += torch.func.jvp(lambda x, f=product: f(x), (x.detach(),), (direction,))
        grads[-1] += (torch.func.vmap(product)(x.detach()[:, None]),)
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)


def test_given_scales_are_used():
    weight, x = octavo.encode(normal(70, 512), "int4:g32"), normal(2, 512, seed=1)
    scales = torch.tensor([0.01])
    y = ops.rounded_linear_plain(x, *weight.parts, None, scales, None, None, "int4:g32", 70, 512, "int8", "floor")
    wanted = octavo.quantize(x, "int8", scales=scales).double() @ weight.decode().double().T
    torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-4)


def test_what_does_not_fit_is_refused():
    weight, x = octavo.encode(normal(6, 40), "int4:g32"), normal(2, 40)
    with pytest.raises(FormatError, match="width 99"):
        rounded_linear(x, weight, "mxint99q")
    with pytest.raises(FormatError):
        rounded_linear(x, weight, "int8:g32", scale="ceil")
    with pytest.raises(ShapeError, match=r"x has shape \(2, 39\)"):
        rounded_linear(x[:, :39], weight, "int8:g32")
    with pytest.raises(ShapeError, match=r"bias has shape \(5,\)"):
        rounded_linear(x, weight, "int8:g32", normal(5))
    with pytest.raises(DTypeError, match="float64"):
        rounded_linear(x.double(), weight, "int8:g32")


def test_the_kernel_has_a_name(simd):
    name = linear.kernel("int4:g32", 4, 4096, 4096, torch.float32, "int8:g32", rounded=True)
    assert name in ("fma scalar", "int8 groups avx2", "int8 groups vnni")
    assert linear.kernel("int12", 1, 64, 64, torch.float32, "int8:g32", rounded=True) == f"fma {simd}"
