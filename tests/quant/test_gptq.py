"""GPTQ: representable, never worse than rounding to nearest, equal to a plain reference, and what is refused."""

import math

import octavo
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from octavo import DataError, DTypeError, Format, FormatError, NonFiniteError, ShapeError
from octavo.quant import Solution, gptq

FORMATS = [
    "int4:g32", "int3:g16", "int8:channel", "int4", "int2:g8", "uint4:g32", "uint2:g16", "uint8:channel", "uint4",
    "mxint4", "mxint8", "mxfp4", "mxfp6e3m2", "mxfp8e4m3", "nvfp4", "nf4", "nf3/16", "bfp4/16", "bm4e2/16",
    "blog4/16", "fixed6.5", "ufixed4.4", "fixed5", "fixed4:channel", "e2m1", "e4m3", "e5m2:finite", "e3m0", "log4", "denorm5e2",
    "binary", "binary2:channel", "binary3:channel", "binary:unit", "ternary:channel", "ternary:unit", "fp16", "bf16", "fp32",
]  # fmt: skip


def case(rows=24, k=96, seed=0, rank=12):
    """A weight and the second moments of correlated inputs."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(4 * k, rank, generator=generator) @ torch.randn(rank, k, generator=generator)
    x += 0.2 * torch.randn(4 * k, k, generator=generator)
    return 0.3 * torch.randn(rows, k, generator=generator), x.T @ x / len(x)


def loss(weight, hessian, quantized):
    error = (weight - quantized).double()
    return ((error @ hessian.double()) * error).sum().item()


def parts(solution):
    return {name: part for name, part in solution._asdict().items() if name != "weight" and part is not None}


def assert_representable(solution, fmt):
    packed = octavo.encode(solution.weight, fmt, **parts(solution))
    assert torch.equal(packed.decode(), solution.weight)
    assert solution.encode(fmt) == packed


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("options", [{}, {"scale": "mse"}, {"order": "descending", "scale": "mse"}], ids=str)
def test_representable_and_never_worse(fmt, options):
    weight, hessian = case(rows=10, k=80)
    solution = gptq(weight, hessian, fmt, **options)
    assert_representable(solution, fmt)
    scale = options.get("scale", "floor") if Format(fmt).is_block else "floor"
    nearest = loss(weight, hessian, octavo.quantize(weight, fmt, scale=scale))
    assert loss(weight, hessian, solution.weight) <= nearest * (1 + 1e-6)


@pytest.mark.parametrize("fmt", ["int4:g32", "uint4:g32", "mxint4", "mxfp4", "nvfp4", "nf4", "int4:channel", "e2m1"])
def test_correlated_inputs_gain(fmt):
    weight, hessian = case()
    nearest = loss(weight, hessian, octavo.quantize(weight, fmt))
    plain, fitted = (
        loss(weight, hessian, gptq(weight, hessian, fmt, scale=scale).weight) for scale in ("floor", "mse")
    )
    assert plain < 0.5 * nearest
    assert fitted < 1.05 * plain


def reference(weight, hessian, fmt, damp=0.01):
    """GPTQ as published, column by column in float64, with given scales of int4:channel."""
    w, h = weight.double(), hessian.double()
    h = h + damp * h.diagonal().mean() * torch.eye(len(h), dtype=torch.float64)
    upper = torch.linalg.cholesky(torch.linalg.inv(h), upper=True)
    scales = octavo.encode(weight, fmt).scales
    out = torch.empty_like(weight)
    for k in range(w.shape[1]):
        column = w[:, k].float()[:, None].contiguous()
        out[:, k] = octavo.quantize(column, fmt, scales=scales)[:, 0]
        error = (w[:, k] - out[:, k].double()) / upper[k, k]
        w[:, k:] -= error[:, None] * upper[k, k:]
    return out


@pytest.mark.parametrize("block", [16, 40, 128])
def test_equals_the_published_algorithm(block):
    weight, hessian = case(rows=20, k=100)
    solution = gptq(weight, hessian, "int4:channel", block=block)
    same = (solution.weight == reference(weight, hessian, "int4:channel")).float().mean()
    assert same > 0.99  # a quotient near a tie may fall on the other side, and moves what follows


@given(
    rows=st.integers(1, 20),
    k=st.integers(1, 70),
    seed=st.integers(0, 999),
    fmt=st.sampled_from(["int4:g32", "uint3:g8", "mxint4/16", "nvfp4", "nf4/8", "int3", "binary2:channel", "e2m1"]),
    order=st.sampled_from(["natural", "descending"]),
    scale=st.sampled_from(["floor", "mse"]),
    block=st.sampled_from([1, 7, 32, 500]),
    rank=st.integers(1, 4),
)
def test_any_size_and_singular_hessians(rows, k, seed, fmt, order, scale, block, rank):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, k, generator=generator)
    x = torch.randn(rank, k, generator=generator) * (torch.rand(k, generator=generator) < 0.8)  # dead columns, too
    hessian = x.T @ x
    solution = gptq(weight, hessian, fmt, order=order, scale=scale, block=block)
    assert_representable(solution, fmt)
    rule = scale if Format(fmt).is_block else "floor"
    nearest = loss(weight, hessian, octavo.quantize(weight, fmt, scale=rule))
    # Losses are measured in float32; what damping adds bounds their noise.
    noise = 1e-5 * hessian.diagonal().mean().item() * weight.square().sum().item()
    assert loss(weight, hessian, solution.weight) <= nearest * (1 + 1e-5) + noise


@pytest.mark.parametrize("fmt", ["int4:g16", "mxint4/16", "nvfp4", "uint4", "binary2:channel"])
@pytest.mark.parametrize("scale", ["floor", "mse"])
def test_the_same_bits_at_every_simd_level_and_number_of_threads(fmt, scale, simd):
    from octavo import _core

    weight, hessian = case(rows=40, k=72)
    levels = []
    for threads in (1, 2):
        _core.set_num_threads(threads)
        levels.append(gptq(weight, hessian, fmt, scale=scale))
    _core.set_num_threads(0)
    _core.force_simd("scalar")
    levels.append(gptq(weight, hessian, fmt, scale=scale))
    for other in levels[1:]:
        assert torch.equal(other.weight, levels[0].weight)
        assert all(torch.equal(a, b) for a, b in zip(parts(other).values(), parts(levels[0]).values(), strict=True))


def test_columns_without_input_are_rounded_to_nearest():
    weight, hessian = case()
    hessian[5], hessian[:, 5] = 0, 0
    scales = octavo.encode(weight, "int4:channel").scales
    nearest = octavo.quantize(weight, "int4:channel", scales=scales)
    assert torch.equal(gptq(weight, hessian, "int4:channel").weight[:, 5], nearest[:, 5])
    assert torch.equal(gptq(weight, torch.zeros_like(hessian), "int4:channel").weight, nearest)


def test_uncorrelated_inputs_leave_rounding_to_nearest():
    weight, _ = case()
    diagonal = torch.diag(torch.rand(96) + 0.5)
    assert torch.equal(gptq(weight, diagonal, "int4:g32", damp=0).weight, octavo.quantize(weight, "int4:g32"))


def test_the_factor_of_the_hessian_and_its_dtype_do_not_matter():
    weight, hessian = case()
    first = gptq(weight, hessian, "mxint4").weight
    assert torch.equal(gptq(weight, hessian.double() * 4096, "mxint4").weight, first)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    weight, hessian = case()
    weight = weight.to(dtype)
    solution = gptq(weight, hessian, "int4:g32")
    assert solution.weight.dtype == dtype and isinstance(solution, Solution)
    assert_representable(solution, "int4:g32")


def test_leading_dimensions_and_nothing_at_all():
    weight, hessian = case()
    solution = gptq(weight.view(4, 6, 96), hessian, "int4:g32")
    assert torch.equal(solution.weight.view(24, 96), gptq(weight, hessian, "int4:g32").weight)
    assert solution.scales.shape == (4, 6, 3)
    assert gptq(torch.empty(0, 96), hessian, "int4:g32").weight.shape == (0, 96)


@pytest.mark.parametrize("fmt", ["int4", "uint4", "fixed5", "ternary:tensor"])
@pytest.mark.parametrize("seed", range(6))
def test_one_scale_for_rows_that_gain_and_rows_that_do_not(fmt, seed):
    weight, hessian = case(rows=6, k=16, seed=seed, rank=1)
    weight[3:] = octavo.quantize(weight, fmt)[3:]  # nothing to gain here
    solution = gptq(weight, hessian, fmt, scale="mse")
    assert_representable(solution, fmt)
    nearest = loss(weight, hessian, octavo.quantize(weight, fmt))
    assert loss(weight, hessian, solution.weight) <= nearest * (1 + 1e-6)


WRONG = {
    "kind of weight": (DTypeError, "weight is a list", lambda w, h: gptq([1.0], h, "int4")),
    "integers": (DTypeError, "torch.int64", lambda w, h: gptq(w.long(), h, "int4")),
    "no dimension": (ShapeError, "no dimensions", lambda w, h: gptq(w[0, 0], h, "int4")),
    "hessian": (DTypeError, "hessian is a list", lambda w, h: gptq(w, [1.0], "int4")),
    "size": (ShapeError, r"\(95, 95\), expected \(96, 96\)", lambda w, h: gptq(w, h[:95, :95], "int4")),
    "NaN weight": (NonFiniteError, "position 7", lambda w, h: gptq(w.view(-1).index_fill(0, torch.tensor(7), math.nan).view(24, 96), h, "int4")),
    "NaN hessian": (NonFiniteError, "hessian holds NaN", lambda w, h: gptq(w, h * math.nan, "int4")),
    "infinite hessian": (NonFiniteError, "hessian holds NaN", lambda w, h: gptq(w, h * math.inf, "int4")),
    "negative": (DataError, "diagonal holds -", lambda w, h: gptq(w, -h, "int4")),
    "asymmetric": (DataError, "not symmetric", lambda w, h: gptq(w, h + torch.triu(h.abs()), "int4")),
    "indefinite": (DataError, "semidefinite", lambda w, h: gptq(w, torch.eye(96) - torch.ones(96, 96).fill_diagonal_(0), "int4")),
    "zero diagonal": (DataError, "beside a zero of its diagonal", lambda w, h: gptq(w[:2, :2], torch.tensor([[0.0, 1], [1, 0]]), "int8")),
    "one zero on the diagonal": (DataError, "beside a zero of its diagonal", lambda w, h: gptq(w[:2, :2], torch.tensor([[0.0, 1], [1, 2]]), "int8")),
    "sparse": (DTypeError, "hessian is torch.sparse_coo; accepted is a dense float tensor", lambda w, h: gptq(w, h.to_sparse(), "int4")),
    "format": (FormatError, "int4:g32x", lambda w, h: gptq(w, h, "int4:g32x")),
    "damp": (FormatError, "damp = -1", lambda w, h: gptq(w, h, "int4", damp=-1)),
    "block": (FormatError, "block = 0", lambda w, h: gptq(w, h, "int4", block=0)),
    "order": (FormatError, "unknown order 'up'; accepted are natural, descending", lambda w, h: gptq(w, h, "int4", order="up")),
    "scale": (FormatError, "unknown scale rule 'max'", lambda w, h: gptq(w, h, "int4", scale="max")),
    "ceil": (FormatError, "no block scale", lambda w, h: gptq(w, h, "int4", scale="ceil")),
}  # fmt: skip


@pytest.mark.parametrize("error, match, attempt", WRONG.values(), ids=WRONG)
def test_refused(error, match, attempt):
    with pytest.raises(error, match=match):
        attempt(*case())
