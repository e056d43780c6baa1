"""The torch ops: their contracts with torch.library and torch.compile, gradients, and errors before work starts."""

import math
import shutil

import numpy as np
import octavo
import pytest
import torch
from helpers import oracle
from helpers.codecs import own_scales, random_scales
from helpers.oracle import EXAMPLES
from helpers.quick import spread
from helpers.simd import at_level, available_levels
from helpers.values import DTYPES, assert_same_bits, normal, sample
from octavo import DTypeError, FormatError, NonFiniteError, ShapeError
from octavo.ops.codec import pack_zeros

OPCHECKED = ["fixed8:channel", "int4:g32", "uint4:g7", "e4m3", "binary2:channel", "mxfp4/12", "nvfp4", "nf4"]
ops = torch.ops.octavo


def stored(packed):
    """The scales of a PackedTensor as the ops take them, zero points packed."""
    parts = own_scales(packed)
    if "zeros" in parts:
        parts["zeros"] = packed.zeros
    return parts


def learnable(text):
    """Formats whose given scales get a gradient."""
    return oracle.parse(text).family == "int" or (oracle.parse(text).scale == "F" and not text.startswith("u"))


# ------------------------------------------------------------------------------------------------------------ contracts


@pytest.mark.parametrize("text", spread(OPCHECKED))
def test_ops_keep_the_contract_of_torch_library(text):
    for dtype, axis in ((torch.float32, -1), (torch.bfloat16, 0))[: 2 if text == "int4:g32" else 1]:
        x = normal(6, 40, dtype=dtype).requires_grad_()
        packed = octavo.encode(x, text, axis=axis)
        options = (text, axis, "floor")
        scales = stored(packed)
        grad, plain = normal(6, 40, seed=1, dtype=dtype), x.detach()
        torch.library.opcheck(ops.quantize.default, (x, *options))
        torch.library.opcheck(ops.quantize.default, (x, *options), {"ste": "identity"})
        torch.library.opcheck(ops.quantize_backward.default, (grad, plain, *options))
        torch.library.opcheck(ops.encode.default, (plain, *options))
        torch.library.opcheck(ops.decode.default, (*packed.parts, text, [6, 40], packed.axis, dtype))
        torch.library.opcheck(
            ops.decode_out.default, (*packed.parts, text, [6, 40], packed.axis), {"out": torch.empty_like(plain)}
        )
        torch.library.opcheck(ops.quantize_out.default, (plain, *options), {"out": torch.empty_like(plain)})
        outs = dict(zip(("codes_out", "scales_out", "zeros_out", "levels_out"), packed.parts, strict=True))
        torch.library.opcheck(ops.encode_out.default, (plain, *options), {k: v.clone() for k, v in outs.items()})
        if scales:
            torch.library.opcheck(ops.quantize.default, (x, *options), scales)
            torch.library.opcheck(ops.encode.default, (plain, *options), scales)


@pytest.mark.parametrize("text", ["int8", "int4:channel", "int4:g32"])
def test_learned_scales_keep_the_contract_of_torch_library(text):
    x = normal(3, 40).requires_grad_()
    scales = octavo.encode(x, text).scales.requires_grad_()
    torch.library.opcheck(ops.quantize.default, (x, text), {"scales": scales})
    torch.library.opcheck(
        ops.quantize_backward.default, (x.detach(), x.detach(), text), {"scales": scales.detach(), "learn": True}
    )


@pytest.mark.parametrize("kind", ["text", "format", "scales", "module"])
def test_quantize_compiles_without_graph_breaks(kind):
    fmt = octavo.Format("mxint8")
    scales = torch.tensor([0.05], requires_grad=True)

    def step(x, w):
        if kind == "text":
            return (octavo.quantize(x, "mxfp8e4m3", axis=0) @ octavo.quantize(w, "int4:g32", scale="floor").T).sum()
        if kind == "format":
            return (
                (octavo.quantize(x * 2, fmt, scale="ceil") @ octavo.quantize(w, fmt, ste="identity").T).square().sum()
            )
        if kind == "scales":
            return (octavo.quantize(x, "int8", scales=scales) @ w.T).sum()
        return torch.nn.functional.linear(octavo.quantize(x, fmt), octavo.quantize(w, fmt)).relu().sum()

    values, grads = [], []
    for function in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        x, w = normal(5, 64).requires_grad_(), normal(7, 64, seed=1).requires_grad_()
        scales.grad = None
        value = function(x, w)
        value.backward()
        values.append(value.detach())
        grads.append([x.grad, w.grad] + ([scales.grad] if kind == "scales" else []))
    assert torch.equal(*values)
    for eager, compiled in zip(*grads, strict=True):
        assert torch.equal(eager, compiled)


def test_encode_and_decode_compile_without_graph_breaks():
    def there_and_back(x):
        parts = ops.encode(x * 1.0, "mxfp4", 0)
        return ops.decode(*parts, "mxfp4", x.shape, 0, x.dtype) + 1

    x = normal(40, 6)
    compiled = torch.compile(there_and_back, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), there_and_back(x))


def test_quantize_compiles_for_changing_shapes():
    compiled = torch.compile(
        lambda x: octavo.quantize(x, "mxint8") + 1, fullgraph=True, backend="aot_eager", dynamic=True
    )
    for n in (3, 8, 33):
        x = normal(n, 48, seed=n)
        assert torch.equal(compiled(x), octavo.quantize(x, "mxint8") + 1)


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="inductor needs a C++ compiler")
def test_quantize_compiles_with_inductor():
    per_row = octavo.Format("int8:channel")

    def step(x, w):
        return torch.nn.functional.gelu(octavo.quantize(x, "mxfp8e4m3") @ octavo.quantize(w, per_row).T)

    results = []
    for function in (step, torch.compile(step, fullgraph=True)):
        x, w = normal(8, 64).requires_grad_(), normal(16, 64, seed=1).requires_grad_()
        y = function(x, w)
        y.square().mean().backward()
        results.append((y.detach(), x.grad, w.grad))
    for eager, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-6)  # inductor's gelu rounds otherwise


# ------------------------------------------------------------------------------------------------------------ gradients


def inputs_for_gradients(rng, dtype="float32"):
    """Values inside and outside of ranges, exact bounds, NaN and infinities."""
    x = np.concatenate(
        [sample(rng, (4, 32), kind) * factor for kind, factor in (("normal", 1), ("grid", 0.1), ("wide", 1))], 1
    )
    x[0, :3] = [math.nan, math.inf, -math.inf]
    x[1, 5] = math.nan
    with np.errstate(over="ignore"):
        return torch.from_numpy(x).to(DTYPES[dtype])


def gradient(x, text, grad=None, **options):
    x = x.clone().requires_grad_()
    q = octavo.quantize(x, text, **options)
    q.backward(torch.full_like(q, 3.0) if grad is None else grad)
    return x.grad


@pytest.mark.parametrize("text", spread(EXAMPLES))
def test_gradient_is_one_inside_the_range_and_zero_where_it_saturates(text):
    rng = np.random.default_rng(list(text.encode()))
    for dtype in DTYPES:
        x = inputs_for_gradients(rng, dtype)
        values = x.float().numpy()
        for rule in oracle.rules(text):
            for axis in (-1, 0):
                inside = oracle.in_range(values, text, rule=rule, dtype=dtype, axis=axis)
                for level in available_levels():
                    with at_level(level):
                        got = gradient(x, text, scale=rule, axis=axis)
                    assert got.dtype == x.dtype
                    np.testing.assert_array_equal(got.float().numpy(), np.where(inside, 3.0, 0.0))


@pytest.mark.parametrize("text", spread([t for t in EXAMPLES if oracle.parse(t).scale not in ("none", "e4m3")]))
def test_gradient_of_given_scales_saturates_at_their_range(text):
    rng = np.random.default_rng(list(text.encode()))
    for axis in (-1, 0):
        x = inputs_for_gradients(rng)
        parts = random_scales(text, x.shape, rng, axis)
        inside = oracle.in_range(x.numpy(), text, axis=axis, **{name: part.numpy() for name, part in parts.items()})
        for level in available_levels():
            with at_level(level):
                got = gradient(x, text, axis=axis, **parts)
            np.testing.assert_array_equal(got.numpy(), np.where(inside, 3.0, 0.0))


@pytest.mark.parametrize("text", spread(EXAMPLES))
def test_identity_passes_every_gradient(text):
    x = inputs_for_gradients(np.random.default_rng(0))
    grad = normal(*x.shape, seed=2)
    assert torch.equal(gradient(x, text, grad, ste="identity"), grad)


@pytest.mark.parametrize("text", spread(EXAMPLES))
def test_gradients_keep_the_incoming_values(text):
    """Bit for bit where x is inside, also for gradients that are not contiguous."""
    x = inputs_for_gradients(np.random.default_rng(0))
    grad = normal(x.shape[1], x.shape[0], seed=2).T
    inside = gradient(x, text) != 0
    assert torch.equal(gradient(x, text, grad), torch.where(inside, grad, 0.0))


def test_gradients_of_binary_and_nan():
    x = torch.tensor([0.5, -1.0, 1.0, 1.5, -7.0, math.nan, math.inf])
    assert gradient(x, "binary:unit").tolist() == [3, 3, 3, 0, 0, 0, 0]
    for text in ("binary", "binary:channel"):
        assert gradient(x, text).tolist() == [3, 3, 3, 3, 3, 0, 3]
    assert gradient(x, "mxint8")[5] == 0 and gradient(x, "e4m3")[5] == 0


LEARNED = ["int8", "int4:channel", "int4:g32", "int2:g3", "fixed8", "fixed4:channel"]


def lsq(x, grad, text, scales):
    """Gradient of the scales by the formula of LSQ (Esser et al. 2020, equations 3 to 5), in float64 plain torch."""
    spec, n = oracle.parse(text), x.shape[-1]
    top = 2 ** (spec.width - 1) - 1
    low = -top if spec.family == "int" else -top - 1
    size = {"tensor": x.numel(), "channel": n, "block": spec.block}[spec.scope]
    groups = x.numel() if spec.scope == "tensor" else n
    x, grad = x.double().reshape(-1, groups), grad.double().reshape(-1, groups)
    step = scales.double().reshape(len(x), -1)
    step = step if spec.family == "int" else torch.exp2(-step)
    each = step.repeat_interleave(size, 1)[:, :groups]
    y = x / each
    slope = torch.where(y <= low, low, torch.where(y >= top, top, y.round() - y))
    parts = list((grad * slope).split(size, dim=1))
    sums = torch.stack([part.sum(1) for part in parts], 1)
    counts = torch.tensor([part.shape[1] for part in parts], dtype=torch.float64)
    result = sums / (counts * top).sqrt()
    return result if spec.family == "int" else result * -math.log(2) * step


# Sums in float64 are rounded to float32 once; the orders of summation differ.
LSQ_TOLERANCE = 1e-5


@pytest.mark.parametrize("text", LEARNED)
def test_gradient_of_scales_equals_the_formula_of_lsq(text, simd):
    x, grad = normal(5, 70) * 2, normal(5, 70, seed=1)
    packed = octavo.encode(x, text)
    for shrink in (1.0, 0.4):
        scales = packed.scales.float()
        scales = scales * shrink if oracle.parse(text).family == "int" else scales + (shrink != 1)
        if packed.scales.dtype == torch.float16:
            scales = scales.half().float()  # what is stored is what is used
        scales.requires_grad_()
        octavo.quantize(x, text, scales=scales).backward(grad)
        wanted = lsq(x, grad, text, scales.detach()).reshape(scales.shape)
        assert scales.grad.shape == scales.shape and scales.grad.dtype == scales.dtype
        torch.testing.assert_close(scales.grad.double(), wanted, rtol=LSQ_TOLERANCE, atol=LSQ_TOLERANCE)


@pytest.mark.parametrize("text", LEARNED)
def test_learned_scales_reduce_the_error(text):
    x = normal(8, 96)
    scales = octavo.encode(x, text).scales.float()
    scales = (scales * 0.3 if oracle.parse(text).family == "int" else scales + 2).requires_grad_()
    optimizer = torch.optim.Adam([scales], lr=0.01 if oracle.parse(text).family == "int" else 0.3)
    errors = []
    for _ in range(40):
        optimizer.zero_grad()
        error = (octavo.quantize(x, text, scales=scales) - x).square().sum()
        error.backward()
        optimizer.step()
        errors.append(error.item())
    assert errors[-1] < 0.7 * errors[0]


@pytest.mark.parametrize("text", spread(EXAMPLES))
def test_every_format_trains(text):
    weight, x = normal(12, 33).requires_grad_(), normal(20, 33, seed=1)
    target = normal(20, 12, seed=2)
    optimizer = torch.optim.SGD([weight], lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        loss = (octavo.quantize(x, text) @ octavo.quantize(weight, text).T - target).square().mean()
        loss.backward()
        assert torch.isfinite(weight.grad).all()
        optimizer.step()
    assert torch.isfinite(weight).all()


def test_scales_that_cannot_learn_say_so():
    x = normal(2, 32)
    for text, scales in (("nf4", torch.ones(2, 1)), ("ternary", torch.ones(1)), ("binary", torch.ones(1))):
        with pytest.raises(FormatError, match="only given scales of intW and fixedW can learn"):
            octavo.quantize(x, text, scales=scales.requires_grad_()).sum().backward()


def test_out_refuses_gradients():
    x = normal(2, 32).requires_grad_()
    with pytest.raises(DTypeError, match="no gradient"):
        octavo.quantize(x, "mxint8", out=torch.empty(2, 32))
    with torch.no_grad():
        octavo.quantize(x, "mxint8", out=torch.empty(2, 32))


@pytest.mark.parametrize("write", ["quantize", "decode", "encode"])
def test_writing_out_is_seen_by_autograd(write):
    """Writing into a tensor that a backward pass needs is an error of torch, not a wrong gradient."""
    x, target = normal(4, 32), octavo.encode(normal(4, 32), "int8")
    saved = target.scales if write == "encode" else x
    y = normal(*saved.shape).requires_grad_()
    product = (y * saved).sum()
    if write == "quantize":
        octavo.quantize(x, "mxint8", out=x)
    elif write == "decode":
        octavo.decode(target, out=x)
    else:
        octavo.encode(x, "int8", out=target)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


# --------------------------------------------------------------------------------------------------------------- errors

x32 = torch.ones(4, 32)
WRONG_CALLS = {
    "dtype": (DTypeError, "float64", lambda: octavo.quantize(x32.double(), "mxint8")),
    "integers": (DTypeError, "int64", lambda: octavo.encode(x32.long(), "mxint8")),
    "a list": (DTypeError, "list", lambda: octavo.quantize([1.0], "mxint8")),
    "none": (DTypeError, "NoneType", lambda: octavo.encode(None, "mxint8")),
    "meta device": (DTypeError, "meta", lambda: octavo.quantize(x32.to("meta"), "mxint8")),
    "encode on meta": (DTypeError, "meta", lambda: octavo.encode(x32.to("meta"), "mxint8")),
    "numpy float64": (DTypeError, "float64", lambda: octavo.quantize(np.ones(3), "mxint8")),
    "format": (FormatError, "did you mean", lambda: octavo.quantize(x32, "mxfp6e3m3")),
    "format type": (FormatError, "text", lambda: octavo.quantize(x32, 8)),
    "ste": (FormatError, "clipped, identity", lambda: octavo.quantize(x32, "mxint8", ste="soft")),
    "rule": (FormatError, "floor, ceil, mse", lambda: octavo.quantize(x32, "mxint8", scale="round")),
    "rule without block": (FormatError, "no block scale", lambda: octavo.encode(x32, "int8", scale="ceil")),
    "policy": (FormatError, "error, saturate, nan", lambda: octavo.encode(x32, "mxint8", nonfinite="drop")),
    "no nan": (FormatError, "cannot store NaN", lambda: octavo.encode(x32, "int8", nonfinite="nan")),
    "axis": (ShapeError, "outside shape", lambda: octavo.quantize(x32, "mxint8", axis=2)),
    "axis below": (ShapeError, "outside shape", lambda: octavo.encode(x32, "mxint8", axis=-3)),
    "0-d block": (ShapeError, "at least 1 dimension", lambda: octavo.quantize(torch.tensor(1.0), "mxint8")),
    "scales shape": (
        ShapeError, "expected \\(4, 1\\)", lambda: octavo.quantize(x32, "mxint8", scales=torch.zeros(3, 1, dtype=torch.uint8)),
    ),
    "scales dtype": (DTypeError, "codes", lambda: octavo.quantize(x32, "mxint8", scales=torch.zeros(4, 1))),
    "scales of none": (FormatError, "no scales", lambda: octavo.quantize(x32, "e4m3", scales=torch.empty(0, dtype=torch.uint8))),
    "nan scale": (FormatError, "finite", lambda: octavo.quantize(x32, "int8", scales=torch.tensor([math.nan]))),
    "negative scale": (FormatError, "not negative", lambda: octavo.quantize(x32, "int8", scales=torch.tensor([-1.0]))),
    "scale code 255": (
        FormatError, "255", lambda: octavo.encode(x32, "mxint8", scales=torch.full((4, 1), 255, dtype=torch.uint8)),
    ),
    "zeros alone": (ShapeError, "with scales", lambda: octavo.quantize(x32, "uint8", zeros=torch.zeros(1, dtype=torch.int32))),
    "zeros missing": (ShapeError, "need zeros", lambda: octavo.quantize(x32, "uint8", scales=torch.ones(1))),
    "zeros too large": (
        ShapeError, "0..15", lambda: octavo.quantize(x32, "uint4", scales=torch.ones(1), zeros=torch.tensor([16])),
    ),
    "zeros of none": (
        FormatError, "no zero points", lambda: octavo.quantize(x32, "int8", scales=torch.ones(1), zeros=torch.tensor([1])),
    ),
    "levels missing": (
        ShapeError, "need levels", lambda: octavo.quantize(x32, "nvfp4", scales=torch.zeros(4, 2, dtype=torch.uint8)),
    ),
    "out shape": (ShapeError, "expected", lambda: octavo.quantize(x32, "mxint8", out=torch.empty(4, 31))),
    "out dtype": (ShapeError, "expected", lambda: octavo.quantize(x32, "mxint8", out=torch.empty(4, 32, dtype=torch.float16))),
    "out strides": (ShapeError, "contiguous", lambda: octavo.quantize(x32, "mxint8", out=torch.empty(32, 4).T)),
    "out packed": (ShapeError, "expected", lambda: octavo.encode(x32, "mxint8", out=octavo.encode(x32, "mxfp4"))),
    "decode a tensor": (DTypeError, "PackedTensor", lambda: octavo.decode(x32)),
    "decode dtype": (DTypeError, "int32", lambda: octavo.decode(octavo.encode(x32, "mxint8"), dtype=torch.int32)),
    "decode out": (ShapeError, "expected", lambda: octavo.decode(octavo.encode(x32, "mxint8"), out=torch.empty(3))),
    "decode out dtype": (
        DTypeError, "float16", lambda: octavo.decode(octavo.encode(x32, "mxint8"), dtype=torch.float32, out=torch.empty(4, 32).half()),
    ),
    "non-finite": (NonFiniteError, "flat position 33", lambda: octavo.encode(x32.clone().index_put_((torch.tensor(1), torch.tensor(1)), torch.tensor(math.nan)), "mxint8")),
}  # fmt: skip


@pytest.mark.parametrize("name", list(WRONG_CALLS))
def test_wrong_calls_are_refused_with_a_typed_error(name):
    error, part, call = WRONG_CALLS[name]
    with pytest.raises(error, match=part):
        call()


def test_out_that_overlaps_its_input_is_refused():
    storage = normal(200)
    x = storage[:160].view(5, 32)
    for shift in (1, 8, 32):
        with pytest.raises(ShapeError, match="overlaps"):
            octavo.quantize(x, "mxint8", out=storage[shift : shift + 160].view(5, 32))


def test_out_that_shares_memory_with_a_strided_input_is_right_or_refused():
    square = normal(12, 12)
    wanted = octavo.quantize(square.T.clone(), "mxint8")
    assert torch.equal(octavo.quantize(square.T, "mxint8", out=square), wanted)


def test_an_error_leaves_the_input_as_it_was():
    x = normal(4, 32)
    kept = x.clone()
    for call in (
        lambda: octavo.quantize(x, "mxint8", scale="round", out=x),
        lambda: octavo.quantize(x, "int8", scales=torch.tensor([math.inf]), out=x),
        lambda: octavo.quantize(x, "mxint8", axis=7, out=x),
    ):
        with pytest.raises(octavo.OctavoError):
            call()
    assert torch.equal(x, kept)


def test_given_scales_and_zero_points_are_stored_as_given():
    x = normal(3, 40)
    for text in ("uint4:g32", "uint8", "int4:g32", "mxfp4", "nvfp4", "fixed8:channel", "nf4", "binary2:channel"):
        packed = octavo.encode(x, text)
        again = octavo.encode(x * 0.5, text, **own_scales(packed))
        for part, wanted in zip(again.parts[1:], packed.parts[1:], strict=True):
            assert torch.equal(part, wanted)
    zeros = torch.tensor([[3, 9], [0, 15], [7, 1]])
    assert torch.equal(
        pack_zeros("uint4:g32", zeros, (3, 40), -1), torch.tensor([[0x93], [0xF0], [0x17]], dtype=torch.uint8)
    )


def test_numpy_and_torch_give_the_same():
    x = normal(3, 40)
    for text in ("mxint8", "int4:g32", "e4m3"):
        assert isinstance(octavo.quantize(x.numpy(), text), np.ndarray)
        assert_same_bits(torch.from_numpy(octavo.quantize(x.numpy(), text)), octavo.quantize(x, text))
        assert octavo.encode(x.numpy(), text) == octavo.encode(x, text)


def test_a_parameter_is_quantized_in_place_without_gradients():
    weight = torch.nn.Parameter(torch.randn(4, 32))
    wanted = octavo.quantize(weight.detach(), "mxint8")
    with torch.no_grad():
        octavo.quantize(weight, "mxint8", out=weight)
    assert torch.equal(weight, wanted)
    with pytest.raises(DTypeError, match="requires a gradient"):
        octavo.quantize(torch.randn(4, 32), "mxint8", out=weight)


@pytest.mark.parametrize("text", ["ufixed25", "ufixed30:channel", "fixed32", "ufixed32:mse"])
def test_infinities_saturate_in_wide_fixed_point(text, simd):
    x = torch.ones(32)
    x[0] = torch.inf
    assert octavo.quantize(x, text)[0] == torch.finfo(torch.float32).max
