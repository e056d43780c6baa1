"""Products that read packed weights: every format, shape, dtype and SIMD level against decoded weights in float64."""

import octavo
import pytest
import torch
from helpers import oracle
from helpers.oracle import EXAMPLES
from helpers.quick import spread
from helpers.simd import SIMD_LEVELS
from helpers.values import normal
from octavo import DTypeError, FormatError, NonFiniteError, RangeError, ShapeError, _core
from octavo.ops import linear
from octavo.ops.linear import integer_linear, packed_embedding, packed_linear

ops = torch.ops.octavo

ROUNDING = 2.0**-20
"""Bound on the error of a float32 product of some hundred columns, over the sum of the magnitudes of its terms: sixteen
chains of roundings of 2^-24."""
OUTPUT = {torch.float32: 0.0, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
"""Relative error of rounding to the dtype of the output."""
SHAPES = [(1, 5, 40), (3, 17, 33), (6, 20, 129)]
"""Rows of inputs, of weights, and columns: odd, with short last groups, more than a panel of rows."""
LARGE_SHAPES = [(1, 131, 333), (4, 70, 577), (5, 131, 333), (37, 66, 577)]
"""The same where kernels for large weights run: few rows of inputs, and many."""
FORMATS = sorted({text for text in EXAMPLES if oracle.parse(text).width <= 32})


def assert_product(y, x, weight, bias=None, *, chunk=1):
    """The law of every product: decoded weights times inputs, to the order of summation and one rounding.

    ``chunk``: columns whose largest input counts for all of them, 256 where a kernel may take inputs in fixed point
    (FORMATS.md, section 6).
    """
    wide, values = x.double(), weight.decode(torch.float32).double()
    largest = wide.abs()
    for part in largest.split(chunk, -1) if chunk > 1 else ():
        part[:] = part.amax(-1, keepdim=True)
    wanted, terms = wide @ values.T, largest @ values.abs().T
    if bias is not None:
        wanted, terms = wanted + bias.double(), terms + bias.double().abs()
    assert y.dtype == x.dtype and y.shape == (*x.shape[:-1], weight.shape[0])
    bound = ROUNDING * terms + OUTPUT[x.dtype] * wanted.abs() + torch.finfo(x.dtype).tiny
    excess = (y.double() - wanted).abs() - bound
    assert not (excess > 0).any(), f"off by {(y.double() - wanted).abs().max()}"


# ------------------------------------------------------------------------------------------------------- float products


@pytest.mark.parametrize("text", spread(FORMATS))
def test_a_product_is_that_of_the_decoded_weight(text):
    for seed, (m, n, k) in enumerate(SHAPES):
        weight, bias = octavo.encode(normal(n, k, seed=seed), text), normal(n, seed=seed + 9)
        for dtype in OUTPUT:
            x = normal(m, k, seed=seed + 5, dtype=dtype)
            assert_product(packed_linear(x, weight, bias), x, weight, bias)
            assert_product(packed_linear(x, weight, bias.to(dtype)), x, weight, bias.to(dtype))
        assert_product(packed_linear(x, weight), x, weight)


@pytest.mark.parametrize("text", spread(FORMATS))
def test_a_large_product_is_that_of_the_decoded_weight(text):
    for seed, (m, n, k) in enumerate(LARGE_SHAPES):
        weight, bias = octavo.encode(normal(n, k, seed=seed), text), normal(n, seed=seed + 9)
        for dtype in OUTPUT:
            x = normal(m, k, seed=seed + 5, dtype=dtype)
            assert_product(packed_linear(x, weight, bias), x, weight, bias, chunk=256)


@pytest.mark.parametrize("text", ["mxint8", "mxfp4", "nvfp4", "int4:g32", "uint4:g32", "int8:channel", "bf16", "nf4"])
@pytest.mark.parametrize("power", [-120, -70, 70, 120])
def test_extreme_magnitudes_do_not_matter(text, power):
    """Kernels in fixed point and bfloat16 hand inputs and weights over that would overflow or vanish in them."""
    scale = 2.0**power if text not in ("int4:g32", "uint4:g32", "nf4") else 1.0  # float16 scales
    for m, n, k in LARGE_SHAPES[1:3]:
        weight = octavo.encode(normal(n, k) * scale, text)
        x = normal(m, k, seed=1) / 2.0**power
        assert_product(packed_linear(x, weight), x, weight)
        x[:, 40:] = 0
        weight = octavo.encode(torch.cat([normal(n, 64) * scale, torch.zeros(n, k - 64)], 1), text)
        assert_product(packed_linear(x, weight), x, weight)


def test_outliers_cost_no_more_than_in_float32():
    """Fixed-point inputs lose what float32 sums lose: nothing that shows beside the largest term."""
    weight = octavo.encode(normal(131, 512), "mxint8")
    x = normal(1, 512, seed=1)
    x[0, 17] = 1e4
    assert_product(packed_linear(x, weight), x, weight)


@pytest.mark.parametrize("text", spread(FORMATS))
def test_products_do_not_depend_on_the_simd_level(text):
    m, n, k = SHAPES[1]
    x, weight = normal(m, k), octavo.encode(normal(n, k, seed=1), text)
    results = []
    try:
        for level in SIMD_LEVELS:
            try:
                _core.force_simd(level)
            except octavo.SettingError:
                continue
            results.append(packed_linear(x, weight))
    finally:
        _core.force_simd(None)
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("text", ["mxint8", "int4:g32", "uint4:g32", "nf4", "nvfp4", "fixed8:channel", "int12"])
@pytest.mark.parametrize("dtype", OUTPUT, ids=str)
def test_a_row_depends_neither_on_the_other_rows_nor_on_threads(text, dtype):
    for rows, slices in ((4, (slice(0, 3), slice(1, 4))), (37, (slice(3, 8), slice(20, 37)))):
        x, weight = normal(rows, 320, dtype=dtype), octavo.encode(normal(300, 320, seed=1), text)
        try:
            _core.set_num_threads(1)
            whole = packed_linear(x, weight)
            _core.set_num_threads(3)
            assert torch.equal(packed_linear(x, weight), whole)
        finally:
            _core.set_num_threads(0)
        for some in slices:
            assert torch.equal(packed_linear(x[some], weight), whole[some])


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize(
    "text", ["uint4:g16", "uint2:g16", "int4:g16", "mxint8/16", "nvfp4/48", "mxint4/192", "int5:g320"]
)
def test_groups_that_are_no_vectors(text, rows):
    x, weight = normal(rows, 1100), octavo.encode(normal(70, 1100, seed=1), text)
    assert_product(packed_linear(x, weight), x, weight)


@pytest.mark.parametrize("rows", [1, 8])
def test_a_zero_point_leaves_nothing_behind(rows):
    values = torch.zeros(128, 512)
    values[0] = normal(512) * 1e3 - 1
    weight = octavo.encode(values, "uint8:tensor")
    assert not packed_linear(normal(rows, 512), weight)[:, 1:].any()


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("scale", [3e38, 2.0**60, float("inf"), float("nan")])
def test_extreme_scales_of_rows_give_what_decoded_weights_give(scale, rows):
    x, weight = normal(rows, 512) * 2.0**-30, octavo.encode(normal(128, 512, seed=1), "int8:channel")
    weight.scales[7] = scale
    y, values = packed_linear(x, weight), weight.decode(torch.float32)
    assert torch.equal(y.isnan(), (x.double() @ values.double().T).isnan())
    kept = [row for row in range(128) if row != 7 or scale < float("inf")]
    assert_product(y[:, kept], x, octavo.encode(values[kept], "fp32"))


def test_many_columns_lose_nothing():
    x, weight = torch.rand(8, 16384) + 0.5, octavo.encode(torch.rand(64, 16384) + 0.5, "int8:channel")
    assert_product(packed_linear(x, weight), x, weight)


def test_operands_on_two_devices_are_refused():
    x, weight = normal(2, 64), octavo.encode(normal(8, 64), "int8")
    for call in (
        lambda: packed_linear(x, weight.to(device="meta")),
        lambda: packed_linear(x, weight, torch.zeros(8, device="meta")),
        lambda: integer_linear(x, weight.to(device="meta"), "int8"),
        lambda: packed_embedding(torch.tensor([1], device="meta"), weight),
    ):
        with pytest.raises(DTypeError, match="move them together"):
            call()


@pytest.mark.parametrize("m, n, k", [(0, 3, 4), (2, 0, 5), (2, 3, 0), (0, 0, 0), (1, 1, 1)])
@pytest.mark.parametrize("text", ["mxint8", "uint4:g32", "int8", "e4m3"])
def test_products_of_nothing(text, m, n, k):
    x, weight, bias = normal(m, k), octavo.encode(normal(n, k), text), normal(n)
    assert_product(packed_linear(x, weight, bias), x, weight, bias)
    if k == 0:
        assert torch.equal(packed_linear(x, weight, bias), bias.expand(m, n))


def test_inputs_may_have_any_rank_and_layout():
    weight = octavo.encode(normal(7, 64), "mxint8")
    x = normal(2, 3, 5, 64)
    wanted = packed_linear(x, weight)
    assert wanted.shape == (2, 3, 5, 7)
    assert torch.equal(packed_linear(x[1, 2, 3], weight), wanted[1, 2, 3])
    strided = normal(2, 3, 64, 5).mT
    assert torch.equal(packed_linear(strided, weight), packed_linear(strided.contiguous(), weight))
    shifted = torch.cat([torch.zeros(1), x.flatten()])[1:].view_as(x)
    assert torch.equal(packed_linear(shifted, weight), wanted)


@pytest.mark.parametrize("rows, n", [(4, 6), (4, 400), (6, 400)])
def test_infinities_and_nan_reach_their_rows_only(rows, n):
    weight = octavo.encode(normal(n, 96).abs() + 1, "int4:g32")
    x = normal(rows, 96)
    x[1, 7], x[3, 90] = torch.nan, torch.inf
    y = packed_linear(x, weight)
    assert y[1].isnan().all() and (y[3] == torch.inf).all()
    assert_product(y[::2], x[::2], weight)


def test_a_block_of_nan_reaches_its_outputs_only():
    w = normal(400, 96)
    w[7, 3] = torch.nan
    weight = octavo.encode(w, "mxint8", nonfinite="nan")
    for rows in (2, 6):
        y = packed_linear(normal(rows, 96), weight)
        assert y[:, 7].isnan().all() and y.isnan().sum() == rows


def test_a_product_beyond_the_dtype_is_infinite():
    weight = octavo.encode(torch.full((2, 8), 100.0), "int8")
    for dtype, most in ((torch.float16, 6e4), (torch.bfloat16, 3e38)):
        x = torch.full((1, 8), most, dtype=dtype)
        assert (packed_linear(x, weight) == torch.inf).all() and (packed_linear(-x, weight) == -torch.inf).all()


# ----------------------------------------------------------------------------------------------------- integer products


def numbers(packed):
    """Codes of a scaled integer format as numbers."""
    unused = 32 - packed.format.width
    return packed.unpack() << unused >> unused


def reference(x, weight, input_format, bias, input_scales):
    """The arithmetic of an integer product, one operation of float32 after the other."""
    inputs = octavo.encode(x.float(), input_format, scales=input_scales)
    sums = numbers(inputs).long() @ numbers(weight).long().T
    scale = inputs.scales.view(-1, 1) * weight.scales.view(1, -1)
    if bias is None:
        return (sums.float() * scale).to(x.dtype)
    if bias.dtype == torch.int32:
        return ((sums + bias).float() * scale).to(x.dtype)
    return (sums.float() * scale + bias.float()).to(x.dtype)


@pytest.mark.parametrize("input_format", ["int8", "int8:channel", "int5", "int2:channel"])
@pytest.mark.parametrize("text", ["int8", "int8:channel", "int4", "int7:channel", "int2:channel"])
def test_integer_products_are_exact(text, input_format, simd):
    for seed, (m, n, k) in enumerate([*SHAPES, (1, 1, 1), (0, 3, 4), (2, 0, 5), (2, 3, 0), (33, 65, 300)]):
        weight = octavo.encode(normal(n, k, seed=seed), text)
        bias = normal(n, seed=seed + 1)
        integers = (1e5 * normal(n, seed=seed + 2)).to(torch.int32)
        for dtype in OUTPUT if k == 33 else (torch.float32,):
            x = normal(m, k, seed=seed + 3, dtype=dtype)
            static = octavo.encode(normal(m, k, seed=seed + 4).mul(0.7), input_format).scales.flatten()
            for added in (None, bias, integers):
                for scales in (None, static):
                    y = integer_linear(x, weight, input_format, added, input_scales=scales)
                    assert torch.equal(y, reference(x, weight, input_format, added, scales))


def test_integer_sums_do_not_overflow():
    k = 2**17 + 64
    x, weight = torch.ones(1, k), octavo.encode(torch.ones(2, k), "int8")
    assert torch.equal(integer_linear(x, weight, "int8"), reference(x, weight, "int8", None, None))


# --------------------------------------------------------------------------------------------------------------- gather


@pytest.mark.parametrize("text", spread(FORMATS))
def test_gathered_rows_are_those_of_the_decoded_table(text):
    for width in (40, 33):
        table = octavo.encode(normal(19, width), text)
        ids = torch.tensor([[18, 0, 7], [7, 3, 0]])
        for dtype in OUTPUT:
            assert torch.equal(packed_embedding(ids, table, dtype), table.decode(dtype)[ids])
    assert packed_embedding(torch.zeros(0, 2, dtype=torch.int32), table).shape == (0, 2, width)


@pytest.mark.parametrize("wrong", [-1, 19, 2**62])
def test_ids_outside_the_table_are_refused(wrong):
    table = octavo.encode(normal(19, 8), "mxint8")
    with pytest.raises(RangeError, match=rf"id {wrong} at position 1 is outside 0\.\.19"):
        packed_embedding(torch.tensor([3, wrong]), table)
    assert issubclass(RangeError, IndexError)


# ------------------------------------------------------------------------------------------------------------ contracts


@pytest.mark.parametrize("text", spread(["mxint8", "uint4:g32", "int8", "nvfp4"], 2))
def test_ops_keep_the_contract_of_torch_library(text):
    weight, bias = octavo.encode(normal(6, 40), text), normal(6).requires_grad_()
    x = normal(2, 3, 40, seed=1).requires_grad_()
    sizes = (text, 6, 40)
    torch.library.opcheck(ops.packed_linear.default, (x, *weight.parts, bias, *sizes))
    torch.library.opcheck(ops.packed_linear.default, (x.detach().bfloat16(), *weight.parts, None, *sizes))
    torch.library.opcheck(ops.packed_linear_plain.default, (x.detach(), *weight.parts, bias.detach(), *sizes))
    torch.library.opcheck(ops.packed_linear_backward.default, (normal(4, 6).requires_grad_(), *weight.parts, *sizes))
    torch.library.opcheck(ops.packed_embedding.default, (torch.tensor([[1, 5]]), *weight.parts, *sizes, torch.bfloat16))


@pytest.mark.parametrize("input_scales", [None, torch.tensor([0.02])])
def test_integer_ops_keep_the_contract_of_torch_library(input_scales):
    weight, x = octavo.encode(normal(6, 40), "int8:channel"), normal(3, 40, seed=1)
    args = (weight.codes, weight.scales, normal(6), input_scales, "int8:channel", "int8", 6, 40)
    torch.library.opcheck(ops.integer_linear.default, (x.requires_grad_(), *args))
    torch.library.opcheck(ops.integer_linear_plain.default, (x.detach(), *args))


def test_products_compile_without_graph_breaks():
    weight, integers = octavo.encode(normal(16, 64), "mxfp4"), octavo.encode(normal(16, 64), "int8:channel")
    bias = normal(16)

    def step(x, ids):
        y = packed_linear(x.relu(), weight, bias) + integer_linear(x, integers, "int8:channel", bias)
        return y.sum() + packed_embedding(ids, weight).sum()

    results = []
    for function in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        x = normal(5, 64, seed=2).requires_grad_()
        value = function(x, torch.tensor([3, 1]))
        value.backward()
        results.append((value.detach(), x.grad))
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("text", ["mxint8", "uint4:g32", "int8", "nvfp4"])
def test_gradients_are_those_of_the_decoded_weight(text):
    weight, n = octavo.encode(normal(1100, 40), text), 1100  # more than two panels of the backward pass
    bias = normal(n).requires_grad_()
    grads = []
    for product in (packed_linear, lambda x, w, b: torch.nn.functional.linear(x, w.decode(), b)):
        x = normal(2, 3, 40, seed=1).requires_grad_()
        bias.grad = None
        product(x, weight, bias).square().sum().backward()
        grads.append((x.grad, bias.grad))
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-4, atol=1e-2)
    torch.autograd.gradgradcheck(
        lambda x: packed_linear(x.float(), weight[:3]).double().square().sum(),
        normal(2, 40).double().requires_grad_(),
        atol=1e-2, rtol=1e-2, eps=1e-2,
    )  # fmt: skip


def test_gradients_of_integer_products_pass_straight_through():
    weight = octavo.encode(normal(6, 40), "int8:channel")
    x, bias = normal(3, 40).requires_grad_(), normal(6).requires_grad_()
    grad = normal(3, 6)
    integer_linear(x, weight, "int8", bias).backward(grad)
    torch.testing.assert_close(x.grad, grad @ weight.decode())
    torch.testing.assert_close(bias.grad, grad.sum(0))


@pytest.mark.parametrize("granularity", ["", ":channel"])
def test_gradients_of_integer_products_are_0_where_given_scales_saturate(granularity):
    weight, x = octavo.encode(normal(6, 40), "int8:channel"), 1.5 * normal(2, 3, 40)
    scales = (normal(6 if granularity else 1, seed=2).abs() + 0.5) / 127
    inside = (x.abs() <= 127 * scales.reshape(2, 3, 1) if granularity else x.abs() <= 127 * scales).float()
    assert 0 < inside.mean() < 1

    def product(x):
        return integer_linear(x, weight, "int8" + granularity, input_scales=scales)

    grad = normal(2, 3, 6)
    found = x.clone().requires_grad_()
    product(found).backward(grad)
    torch.testing.assert_close(found.grad, (grad @ weight.decode()) * inside)
    tangent = normal(2, 3, 40)
    torch.testing.assert_close(torch.func.jvp(product, (x,), (tangent,))[1], (tangent * inside) @ weight.decode().T)


@pytest.mark.parametrize("recipe", ["int8:channel input=int8@mse", "int4:g32 input=int8@mse"])
def test_a_packed_layer_has_the_gradients_of_the_simulated_one_where_inputs_saturate(recipe):
    layer = torch.nn.Sequential(torch.nn.Linear(4, 3))
    simulated = octavo.quantize_model(layer, f"type:Linear {recipe}", calibration=[torch.ones(8, 4)]).eval()
    packed = octavo.pack_model(simulated)
    found = []
    for model in (simulated, packed):
        x = torch.tensor([[0.5, 5.0, -5.0, 0.9]], requires_grad=True)
        model(x).sum().backward()
        found.append(x.grad)
    assert torch.equal(found[0] == 0, torch.tensor([[False, True, True, False]]))
    torch.testing.assert_close(found[1], found[0])


# --------------------------------------------------------------------------------------------------------------- errors


def test_what_does_not_fit_is_refused_with_both_shapes():
    weight, x = octavo.encode(normal(6, 40), "int8"), normal(2, 39)
    for product in (packed_linear, lambda x, w, b=None: integer_linear(x, w, "int8", b)):
        with pytest.raises(ShapeError, match=r"x has shape \(2, 39\), the 'int8' weight has shape \(6, 40\)"):
            product(x, weight)
        with pytest.raises(ShapeError, match=r"x has shape \(\)"):
            product(torch.tensor(1.0), weight)
        with pytest.raises(DTypeError, match="float64"):
            product(normal(2, 40).double(), weight)
        with pytest.raises(ShapeError, match=r"bias has shape \(5,\)"):
            product(normal(2, 40), weight, normal(5))
        with pytest.raises(DTypeError, match=r"bias has dtype torch\.int64"):
            product(normal(2, 40), weight, torch.zeros(6, dtype=torch.int64))
        with pytest.raises(ShapeError, match="encoded along the last"):
            product(normal(2, 6), octavo.encode(normal(6, 40), "int8", axis=0))
    with pytest.raises(DTypeError, match="got list and PackedTensor"):
        linear.packed_linear([1.0], weight)
    with pytest.raises(DTypeError, match="got Tensor and Tensor"):
        linear.packed_linear(torch.zeros(2, 40), torch.zeros(6, 40))
    for sizes in ((-6, 40), (6, -40)):
        with pytest.raises(ShapeError, match="sizes are at least 0"):
            torch.ops.octavo.packed_linear(torch.zeros(2, 40), *weight.parts, None, "int8", *sizes)
    for grad in (torch.zeros(2, 5), torch.tensor(1.0)):
        with pytest.raises(ShapeError, match="last dimension of grad must be 6"):
            torch.ops.octavo.packed_linear_backward(grad, *weight.parts, "int8", 6, 40)
    with pytest.raises(ShapeError, match="codes are"):
        ops.packed_linear(normal(2, 40), weight.codes[:, :8], *weight.parts[1:], None, "int8", 6, 40)
    with pytest.raises(ShapeError, match="not contiguous"):
        ops.packed_linear(
            normal(2, 6), octavo.encode(normal(40, 40), "int8").codes[:, :6], *weight.parts[1:], None, "int8", 40, 6
        )
    with pytest.raises(DTypeError, match="ids have dtype"):
        packed_embedding(torch.tensor([1.0]), weight)
    with pytest.raises(DTypeError, match=r"to torch\.float64"):
        packed_embedding(torch.tensor([1]), weight, torch.float64)


def test_integer_products_refuse_other_formats_and_inputs():
    x, weight = normal(2, 40), octavo.encode(normal(6, 40), "int8")
    for other in ("mxint8", "uint8", "int4:g32", "int9"):
        with pytest.raises(FormatError, match="int2 to int8"):
            integer_linear(x, octavo.encode(normal(6, 40), other), "int8")
        with pytest.raises(FormatError, match="int2 to int8"):
            integer_linear(x, weight, other)
    with pytest.raises(ShapeError, match="scales"):
        integer_linear(x, weight, "int8", input_scales=torch.ones(3))
    with pytest.raises(DTypeError, match="input_scales"):
        integer_linear(x, weight, "int8", input_scales=torch.ones(1).double())
    with pytest.raises(NonFiniteError, match="position 3"):
        integer_linear(torch.tensor([[0.0] * 3 + [torch.inf] + [0.0] * 36]), weight, "int8")


def test_the_kernel_has_a_name(simd):
    assert linear.kernel("int12", 1, 64, 64, torch.float32) == f"fma {simd}"
    assert linear.kernel("int12", 32, 4096, 4096, torch.float32) in (f"fma {simd}", "bfloat16 limbs amx")
    assert linear.kernel("mxfp4", 1, 4096, 4096, torch.float32) in ("fma scalar", "fma codes avx2", "int8 limbs vnni")
    wide = linear.kernel("mxfp4", 32, 4096, 4096, torch.bfloat16)
    assert wide in (f"fma {simd}", "bfloat16 limbs amx", "bfloat16 limbs avx512")
    assert linear.kernel("int12", 64, 64, 64, torch.float32) == (
        "fma scalar" if simd == "scalar" else f"fma tiles {simd}"
    )
    small = "int8 scalar" if simd == "scalar" else "int8 avx2"
    assert linear.kernel("int8:channel", 1, 64, 64, torch.float32, "int8") == small
    assert linear.kernel("int8:channel", 1, 512, 512, torch.float32, "int8") in (small, "int8 amx", "int8 vnni")
    with pytest.raises(FormatError):
        linear.kernel("mxint8", 1, 64, 64, torch.float32, "int8")
    with pytest.raises(DTypeError):
        linear.kernel("mxint8", 1, 64, 64, torch.float64)
