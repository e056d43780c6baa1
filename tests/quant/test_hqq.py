"""HQQ: representable, never worse in its norm nor in squared error, the same bits everywhere, and what is refused."""

import math

import octavo
import pytest
import torch
from octavo import DTypeError, FormatError, NonFiniteError
from octavo.quant import hqq

FORMATS = [
    "int4:g32", "int3:g16", "int8:channel", "int4", "int2:g8", "uint4:g32", "uint2:g16", "uint8:channel", "uint4",
    "mxint4", "mxfp4", "mxfp8e4m3", "nvfp4", "nf4", "nf3/16", "bfp4/16", "bm4e2/16", "blog4/16", "fixed5",
    "fixed4:channel", "fixed6.5", "e2m1", "log4", "binary", "binary2:channel", "ternary:channel", "fp32", "bf16",
]  # fmt: skip


def heavy(rows=24, k=200, seed=0):
    """Weights with outliers, as trained ones have."""
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(rows, k, generator=generator)
    return 0.05 * w * w.abs()


def norm(weight, quantized, p):
    return (weight - quantized).double().abs().pow(p).sum().item()


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("p", [0.7, 1.0, 2.0])
def test_representable_and_never_worse(fmt, p):
    weight = heavy()
    solution = hqq(weight, fmt, p=p)
    assert solution.encode(fmt).decode().equal(solution.weight)
    nearest = octavo.quantize(weight, fmt)
    for power in (p, 2.0):  # errors are summed in float32
        assert norm(weight, solution.weight, power) <= norm(weight, nearest, power) * (1 + 1e-4)


@pytest.mark.parametrize("fmt", ["int4:g32", "uint4:g32", "mxint4", "nvfp4", "nf4", "int4:channel", "uint3:g64"])
def test_gains_in_its_norm_and_in_the_outputs_of_the_layer(fmt):
    weight = heavy(64, 256)
    x = torch.randn(500, 256, generator=torch.Generator().manual_seed(1))
    solved, nearest = hqq(weight, fmt).weight, octavo.quantize(weight, fmt)
    assert norm(weight, solved, 0.7) < 0.99 * norm(weight, nearest, 0.7)
    assert norm(x @ weight.T, x @ solved.T, 2) < norm(x @ weight.T, x @ nearest.T, 2)


def test_representable_weights_stay():
    weight = octavo.quantize(heavy(), "mxint4")
    assert torch.equal(hqq(weight, "mxint4").weight, weight)


def test_zero_points_move_with_the_weights():
    weight = heavy().abs() + 1.0  # far from zero, which the rule keeps in the range
    solution = hqq(weight, "uint3:g32", p=2.0)
    assert solution.zeros.dtype == torch.int32 and solution.zeros.shape == solution.scales.shape
    assert int(solution.zeros.min()) >= 0 and int(solution.zeros.max()) <= 7


def test_close_to_the_best_scale_of_a_search():
    weight = heavy(8, 64)
    solution = hqq(weight, "int4:channel", p=2.0)
    start = octavo.encode(weight, "int4:channel").scales
    best = torch.full((8,), math.inf, dtype=torch.float64)
    for share in torch.linspace(0.2, 1.1, 400):
        q = octavo.quantize(weight, "int4:channel", scales=start * share)
        best = torch.minimum(best, (weight - q).double().square().sum(1))
    assert ((weight - solution.weight).double().square().sum(1) <= 1.1 * best).all()


@pytest.mark.parametrize(
    "fmt", ["int4:g32", "uint4:g24", "mxint4", "nvfp4", "nf4", "e2m1", "binary2", "int4", "fixed5"]
)
def test_the_same_bits_at_every_simd_level_and_number_of_threads(fmt, simd):
    from octavo import _core

    weight = heavy(350, 200)  # longer than what one thread sums up
    found = [hqq(weight, fmt)]
    _core.set_num_threads(1)
    found.append(hqq(weight, fmt))
    _core.set_num_threads(0)
    _core.force_simd("scalar")
    found.append(hqq(weight, fmt))
    for other in found[1:]:
        assert other.encode(fmt) == found[0].encode(fmt)


@pytest.mark.parametrize("value", [0.0, 1e-45, 1e-38, 3e38, -5.0])
@pytest.mark.parametrize(
    "fmt", ["int4:g8", "uint4:g8", "nvfp4", "mxfp4", "binary2:channel", "ternary:channel", "fixed5"]
)
def test_extremes(fmt, value):
    weight = torch.full((2, 16), value)
    solution = hqq(weight, fmt)
    assert torch.isfinite(solution.weight).all()
    assert norm(weight, solution.weight, 2) <= norm(weight, octavo.quantize(weight, fmt), 2) * (1 + 1e-4)


def test_shapes_and_dtypes():
    solution = hqq(heavy().bfloat16().view(4, 6, 200), "int4:g32")
    assert solution.weight.dtype == torch.bfloat16 and solution.scales.shape == (4, 6, 7)
    assert hqq(torch.empty(3, 0), "int4:g32").weight.shape == (3, 0)
    assert hqq(heavy()[0], "mxint4").weight.shape == (200,)


WRONG = {
    "kind": (DTypeError, "weight is a int", lambda w: hqq(3, "int4")),
    "NaN": (NonFiniteError, "position 1", lambda w: hqq(torch.tensor([1.0, math.nan]), "int4")),
    "iterations": (FormatError, "iterations = -1", lambda w: hqq(w, "int4", iterations=-1)),
    "endless": (FormatError, "accepted are whole numbers from 0 to 10000", lambda w: hqq(w, "int4", iterations=10**30)),
    "true": (FormatError, "iterations = True", lambda w: hqq(w, "int4", iterations=True)),
    "p": (FormatError, "p = 0", lambda w: hqq(w, "int4", p=0)),
    "large p": (FormatError, "p = 3", lambda w: hqq(w, "int4", p=3)),
    "NaN p": (FormatError, "p = nan", lambda w: hqq(w, "int4", p=math.nan)),
}


@pytest.mark.parametrize("error, match, attempt", WRONG.values(), ids=WRONG)
def test_refused(error, match, attempt):
    with pytest.raises(error, match=match):
        attempt(heavy())
