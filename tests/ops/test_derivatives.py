"""Derivatives of the ops, in reverse and forward mode and under torch.func, against finite differences and dense ones."""

import octavo
import pytest
import torch
from helpers.values import normal
from octavo.ops import codec as ops
from octavo.ops import gemm, linear
from octavo.tensors.formats import core
from torch import func
from torch.autograd import forward_ad

OPS = torch.ops.octavo
DENSE_ERROR = 2e-5
"""Products are sums of 40 float32 terms of size 1 to 10, in another order than the dense ones."""
WEIGHTS = (
    "mxint8",
    "int4:g32",
    "uint4:g32",
    "nvfp4",
    "int8:channel",
    "e4m3",
    "fixed8:channel",
    "nf4",
    "binary2:channel",
)
INTEGERS = (("int8:channel", "int8:channel"), ("int4:channel", "int8"), ("int8", "int8:channel"))
ROUNDINGS = ("mxint8", "int8:channel", "fixed8.4", "e4m3", "nvfp4", "uint4:g32")


def close(found, wanted):
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted, rtol=DENSE_ERROR, atol=DENSE_ERROR * 10)


def product(text):
    """A packed product of x and bias, and the dense one with the same derivatives."""
    weight = octavo.encode(normal(6, 40, seed=1), text)
    return lambda x, b: linear.packed_linear(x, weight, b), lambda x, b: x @ weight.decode().T + b


def integer_product(texts):
    weight = octavo.encode(normal(6, 40, seed=1), texts[0])
    given = texts[1]

    def dense(x, b):
        """Straight through the rounding: the values of the integer product, the derivatives of the dense one."""
        return x @ weight.decode().T + b

    return lambda x, b: linear.integer_linear(x, weight, given, b), dense


PRODUCTS = [*(pytest.param(product(text), id=text) for text in WEIGHTS),
            *(pytest.param(integer_product(texts), id="-".join(texts)) for texts in INTEGERS)]  # fmt: skip


@pytest.mark.parametrize("pair", PRODUCTS)
def test_products_have_the_derivatives_of_dense_ones(pair):
    packed, dense = pair
    x, b, tx, tb, ty = normal(3, 40), normal(6), normal(3, 40, seed=2), normal(6, seed=3), normal(3, 6, seed=4)
    wanted = func.jvp(dense, (x, b), (tx, tb))[1]
    close(func.jvp(packed, (x, b), (tx, tb))[1], wanted)
    close(func.jvp(lambda x: packed(x, b), (x,), (tx,))[1], func.jvp(lambda x: dense(x, b), (x,), (tx,))[1])
    close(func.jvp(lambda b: packed(x, b), (b,), (tb,))[1], func.jvp(lambda b: dense(x, b), (b,), (tb,))[1])
    with forward_ad.dual_level():
        close(forward_ad.unpack_dual(packed(forward_ad.make_dual(x, tx), forward_ad.make_dual(b, tb))).tangent, wanted)
    for transform in (func.jacfwd, func.jacrev):
        for found, right in zip(transform(packed, (0, 1))(x, b), transform(dense, (0, 1))(x, b), strict=True):
            close(found, right)
    for found, right in zip(func.vjp(packed, x, b)[1](ty), func.vjp(dense, x, b)[1](ty), strict=True):
        close(found, right)


@pytest.mark.parametrize("pair", PRODUCTS[:2])
def test_products_compose_with_transforms(pair):
    packed, dense = pair
    x, b, batch = normal(3, 40), normal(6), normal(4, 3, 40, seed=5)

    def loss(product):
        """A polynomial of degree 3 in the product, whose second derivatives are not 0."""
        return lambda x: (0.01 * product(x, b)).pow(3).sum()

    for found, right in (
        (func.vmap(lambda x: packed(x, b))(batch), dense(batch, b)),
        (func.vmap(func.grad(loss(packed)))(batch), func.vmap(func.grad(loss(dense)))(batch)),
        (func.vmap(lambda b: packed(x, b))(normal(4, 6)), func.vmap(lambda b: dense(x, b))(normal(4, 6))),
        (func.hessian(loss(packed))(x), func.hessian(loss(dense))(x)),
        (func.jacrev(func.jacfwd(loss(packed)))(x), func.hessian(loss(dense))(x)),
        (func.jvp(func.grad(loss(packed)), (x,), (x,))[1], func.jvp(func.grad(loss(dense)), (x,), (x,))[1]),
        (func.grad(loss(packed))(x.double().float()), func.grad(loss(dense))(x)),
    ):
        close(found, right)


@pytest.mark.parametrize("text", WEIGHTS)
def test_products_have_the_derivatives_of_finite_differences(text):
    """The product is linear: a difference over any step is the derivative."""
    packed, _ = product(text)
    x, b, tx, tb = normal(3, 40), normal(6), normal(3, 40, seed=2), normal(6, seed=3)
    close(func.jvp(packed, (x, b), (tx, tb))[1], (packed(x + tx, b + tb) - packed(x - tx, b - tb)) / 2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_tangents_keep_the_dtype_of_the_product(dtype):
    weight, x = octavo.encode(normal(6, 40), "mxint8"), normal(3, 40).to(dtype)
    for function in (
        lambda x: linear.packed_linear(x, weight, normal(6)),
        lambda x: octavo.quantize(x, "mxint8"),
        lambda x: octavo.quantize(x, "mxint8", ste="identity"),
    ):
        y, tangent = func.jvp(function, (x,), (x,))
        assert tangent.dtype == y.dtype == dtype and tangent.shape == y.shape and tangent.abs().max() > 0


@pytest.mark.parametrize("text", ROUNDINGS)
@pytest.mark.parametrize("ste", ["clipped", "identity"])
def test_rounding_passes_tangents_as_it_passes_gradients(text, ste):
    """The derivative of the rounding is a diagonal matrix: both modes multiply with the same."""
    x, t = 20 * normal(5, 40), normal(5, 40, seed=1)
    leaf = x.clone().requires_grad_()

    def rounded(x):
        return octavo.quantize(x, text, ste=ste)

    rounded(leaf).backward(t)
    assert torch.equal(func.jvp(rounded, (x,), (t,))[1], leaf.grad)
    assert torch.equal(func.vjp(rounded, x)[1](t)[0], leaf.grad)
    with forward_ad.dual_level():
        assert torch.equal(forward_ad.unpack_dual(rounded(forward_ad.make_dual(x, t))).tangent, leaf.grad)
    diagonal = torch.diag(func.vjp(rounded, x)[1](torch.ones_like(x))[0].flatten())
    for transform in (func.jacfwd, func.jacrev):
        assert torch.equal(transform(rounded)(x).reshape(200, 200), diagonal)
    assert torch.equal(func.grad(lambda x: (rounded(x) * t).sum())(x), leaf.grad)
    assert torch.equal(func.hessian(lambda x: (rounded(x) * t).sum())(x), torch.zeros(5, 40, 5, 40))


@pytest.mark.parametrize("text", ["int8", "int8:channel", "nvfp4", "mxint8", "fixed8:mse"])
def test_mapped_elements_are_rounded_one_by_one(text):
    """Scales of a whole tensor are those of each element that vmap maps, not of the batch."""
    x = normal(4, 3, 40) * torch.tensor([1.0, 10.0, 0.1, 100.0]).view(4, 1, 1)
    wanted = torch.stack([octavo.quantize(row, text) for row in x])
    assert torch.equal(func.vmap(lambda x: octavo.quantize(x, text))(x), wanted)
    assert torch.equal(func.vmap(lambda x: octavo.quantize(x, text), 1, 1)(x.transpose(0, 1)), wanted.transpose(0, 1))
    assert torch.equal(func.vmap(lambda x: octavo.encode(x, text).decode())(x), wanted)
    weight = octavo.encode(normal(6, 40), "int8:channel")
    both = [linear.integer_linear(row, weight, "int8") for row in x]
    assert torch.equal(func.vmap(lambda x: linear.integer_linear(x, weight, "int8"))(x), torch.stack(both))


@pytest.mark.parametrize("text", ["int4:g32", "int8:channel", "fixed8:channel"])
def test_learned_scales_have_their_gradient_under_transforms(text):
    x = normal(4, 64)
    scales = octavo.encode(x, text).scales.float()
    leaf = scales.clone().requires_grad_()
    octavo.quantize(x, text, scales=leaf).square().sum().backward()

    def loss(scales):
        return octavo.quantize(x, text, scales=scales).square().sum()

    assert torch.equal(func.grad(loss)(scales), leaf.grad) and leaf.grad.abs().max() > 0
    with pytest.raises(NotImplementedError, match="derivatives by scales"):
        func.jvp(loss, (scales,), (scales,))
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="derivatives by scales"):
        loss(forward_ad.make_dual(scales, scales))
    with pytest.raises(NotImplementedError, match=r"by scales are not defined|second derivatives"):
        func.hessian(loss)(scales)


def test_quantized_layers_pass_derivatives_in_both_modes():
    layer = torch.nn.Linear(40, 6)
    quantized = octavo.quantize_model(torch.nn.Sequential(layer), "mxint8").eval()
    x, t = normal(3, 40), normal(3, 40, seed=1)
    jacobian = func.jacrev(quantized)(x)
    close(func.jacfwd(quantized)(x), jacobian)
    wanted = torch.einsum("bnck,ck->bn", jacobian, t)
    close(func.jvp(quantized, (x,), (t,))[1], wanted)
    with forward_ad.dual_level():
        close(forward_ad.unpack_dual(quantized(forward_ad.make_dual(x, t))).tangent, wanted)


def undifferentiated():
    """Functions of one float tensor of shape (4, 32) that have no derivative."""
    w = octavo.encode(normal(4, 32), "int8:channel")
    sizes = ("int8:channel", 4, 32)
    a, few, many = torch.ones(4, 8, dtype=torch.int8), normal(2, 32), normal(4, 32)
    yield "encode", lambda x: octavo.encode(x, "mxint8").scales
    yield "encode_op", lambda x: OPS.encode(x.abs(), "mxint8")[0]
    yield "encode_scales", lambda x: OPS.encode(w.decode(), "int8:channel", scales=x[:, :1].abs())[1]
    yield (
        "decode",
        lambda x: OPS.decode(w.codes, x[:, :1] * 1, *w.parts[2:], "int8:channel", [4, 32], -1, torch.float32),
    )
    yield (
        "embedding",
        lambda x: OPS.packed_embedding(torch.tensor([1]), w.codes, x[:, :1] * 1, *w.parts[2:], *sizes, torch.float32),
    )
    yield "weight", lambda x: OPS.packed_linear(few, w.codes, x[:, :1] * 1, *w.parts[2:], None, *sizes)
    yield (
        "integer_weight",
        lambda x: OPS.integer_linear(few, w.codes, x[:, :1] * 1, None, None, "int8:channel", *sizes),
    )
    yield (
        "input_scales",
        lambda x: OPS.integer_linear(many, w.codes, w.scales, None, x[:, 0] * 1, "int8:channel", *sizes),
    )
    yield "gemm", lambda x: gemm.int8_gemm(a, a, column_scales=x[:, 0] * 1, dtype=torch.float32)


@pytest.mark.parametrize("function", [pytest.param(function, id=name) for name, function in undifferentiated()])
def test_ops_without_derivatives_say_so_in_forward_mode(function):
    """A tangent of 0 would be a wrong answer in silence."""
    x = normal(4, 32).abs() + 0.1
    with pytest.raises(NotImplementedError, match="forward-mode"):
        func.jvp(function, (x,), (x,))
    with pytest.raises(NotImplementedError, match="forward-mode"):
        func.jacfwd(function)(x)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward-mode"):
        function(forward_ad.make_dual(x, x))


def test_plain_ops_refuse_tangents_and_have_derivatives_under_transforms():
    w, x = octavo.encode(normal(4, 32), "int8:channel"), normal(3, 32)
    plain = {
        "quantize_plain": lambda x: OPS.quantize_plain(x, "mxint8"),
        "packed_linear_plain": lambda x: OPS.packed_linear_plain(x, *w.parts, None, "int8:channel", 4, 32),
        "integer_linear_plain": lambda x: OPS.integer_linear_plain(
            x, w.codes, w.scales, None, None, "int8:channel", "int8:channel", 4, 32
        ),
    }
    for name, function in plain.items():
        with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=f"{name}.*forward-mode"):
            function(forward_ad.make_dual(x, x))
        close(func.jacfwd(function)(x), func.jacrev(function)(x))
        assert func.jacfwd(function)(x).abs().max() > 0


def test_constants_inside_a_transformed_function_stay_constants():
    """What has no tangent is no reason to refuse: weights are decoded and encoded inside models."""
    w, x, table = octavo.encode(normal(4, 32), "mxint8"), normal(3, 32), octavo.encode(normal(1, 4), "mxint8")

    def model(x):
        own = octavo.encode(w.decode() * 2, "mxint8")
        return x @ own.decode().T + linear.packed_embedding(torch.zeros(1, dtype=torch.int64), table)

    close(func.jvp(model, (x,), (x,))[1], x @ (2 * w.decode()).T)
    close(func.jacrev(model)(x), func.jacfwd(model)(x))


def test_out_is_refused_under_transforms():
    x, packed = normal(4, 32), octavo.encode(normal(4, 32), "mxint8")
    for call in (
        lambda x: octavo.quantize(x, "mxint8", out=torch.empty(4, 32)),
        lambda x: octavo.encode(x, "mxint8", out=packed),
        lambda x: octavo.decode(packed, out=torch.empty(4, 32)) + x,
    ):
        for transform in (func.grad(lambda x: call(x).sum()), lambda x: func.vmap(call)(x[None])):  # noqa: B023
            with pytest.raises((NotImplementedError, octavo.DTypeError), match=r"leave out= away|no gradient"):
                transform(x)


def test_every_differentiable_op_passes_gradcheck_of_its_own_backward():
    """The backward of a product is linear, and its derivative the product: both modes, both orders."""
    w = octavo.encode(normal(6, 40), "int4:g32")
    sizes = ("int4:g32", 6, 40)
    g, t = normal(3, 6), normal(3, 6, seed=1)
    dense = w.decode()
    close(func.jvp(lambda g: OPS.packed_linear_backward(g, *w.parts, *sizes), (g,), (t,))[1], t @ dense)
    close(
        func.jacrev(lambda g: OPS.packed_linear_backward(g, *w.parts, *sizes))(g), func.jacrev(lambda g: g @ dense)(g)
    )
    x = 30 * normal(3, 40)
    mask = OPS.quantize_backward(torch.ones_like(x), x, "fixed8.4")[0]
    assert 0 < mask.sum() < mask.numel()
    found = func.jvp(lambda g: OPS.quantize_backward(g, x, "fixed8.4")[0], (x,), (x,))[1]
    assert torch.equal(found, x * mask)
    assert ops and core("fixed8.4").scale_type is None
