"""Products and codecs at the ends of the range and in a foreign floating-point state: FORMATS.md, section 6, "Products"."""

import ctypes
import ctypes.util

import octavo
import pytest
import torch
from helpers import oracle
from helpers.oracle import EXAMPLES
from helpers.quick import spread
from helpers.values import normal
from octavo.ops.linear import integer_linear, packed_embedding, packed_linear

FORMATS = sorted({text for text in EXAMPLES if oracle.parse(text).width <= 32})
ROWS = [1, 2, 4, 5, 16, 32, 33, 64]
SHAPE = (72, 544)
"""Rows of weights and columns: enough for the kernels of large weights, not whole chunks."""
CHUNK = 256
HALF_ULP = {
    torch.float32: (2.0**-24, 2.0**-150),
    torch.float16: (2.0**-11, 2.0**-25),
    torch.bfloat16: (2.0**-8, 2.0**-134),
}
"""Relative, and absolute below the smallest normal number."""


class Reference:
    """Products of decoded weights in float64, and how far others may be from them: FORMATS.md section 6."""

    def __init__(self, x, weight, bias=None):
        wide, values = x.double(), weight.decode(torch.float32).double()
        k = values.shape[1]
        self.wanted, terms = wide @ values.T, torch.zeros(len(x), len(values), dtype=torch.float64)
        for at in range(0, k, CHUNK):
            columns = slice(at, at + CHUNK)
            terms += wide[:, columns].abs().amax(1, keepdim=True) * values[:, columns].abs().sum(1)
        if bias is not None:
            self.wanted, terms = self.wanted + bias.double(), terms + bias.double().abs()
        relative, absolute = HALF_ULP[x.dtype]
        self.bound = (2.0**-20 + k * 2.0**-28) * terms + k * 2.0**-149 + relative * self.wanted.abs() + absolute
        # Beyond float32, sums may overflow on the way; at the end of the dtype, the result may round to infinity.
        most = torch.finfo(x.dtype).max * (1 - 2.0**-7)
        self.finite = (terms < torch.finfo(torch.float32).max) & (self.wanted.abs() + self.bound < most)

    def check(self, y, rows):
        finite, bound = self.finite[rows], self.bound[rows]
        excess = ((y.double() - self.wanted[rows]).abs() - bound)[finite]
        assert not (excess > 0).any() and not y[finite].isnan().any(), f"{excess.max()} beyond {bound[finite].min()}"


def inputs(k, seed=0):
    """Rows of every magnitude, one kind each, by column scale too."""
    x = normal(64, k, seed=seed)
    for row, power in enumerate([0, -149, -140, -126, -110, -80, -61, -50, -30, 30, 59, 62, 90, 110, 126]):
        x[row] = (x[row].double() * 2.0**power).clamp(-3.4e38, 3.4e38).float()
    x[16] *= 10.0 ** (normal(k, seed=seed + 1) * 8)
    x[17, ::2] *= 2.0**-70
    x[18, :CHUNK] = 0
    x[19, :CHUNK] *= 2.0**-100
    x[20, 9] = 1e20
    x[21] = 0
    x[22, 1:] = 0
    return x


def weights(kind, n, k):
    w = normal(n, k, seed=5).double()
    if kind == "rows":
        w *= torch.exp2(torch.linspace(-145, 120, n).double()).view(-1, 1)
    elif kind == "columns":
        w *= torch.exp2(((torch.arange(k) // 32 * 37) % 240 - 140).double())
    elif kind == "zeros":
        w[:, 64:192] = 0
        w[1] = 0
        w[::4] *= 2.0**-130
    else:
        w *= 2.0 ** float(kind)
    return w.clamp(-3e38, 3e38).float()


WEIGHTS = ["0", "-112", "-126", "-140", "60", "110", "rows", "columns", "zeros"]


@pytest.mark.parametrize("text", spread(FORMATS, 6))
def test_products_of_all_magnitudes_are_within_the_bound(text):
    n, k = SHAPE
    x = inputs(k)
    for kind in WEIGHTS:
        weight = octavo.encode(weights(kind, n, k), text)
        reference = Reference(x, weight)
        for rows in ROWS:
            for start in range(0, 24, rows) if rows in (1, 5) else (0, 16) if rows < 5 else (0,):
                chosen = slice(start, start + rows)
                reference.check(packed_linear(x[chosen], weight), chosen)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "text", ["mxint8", "mxfp4", "bm8e4/16", "int4:g32", "uint4:g32", "nf4", "nvfp4", "int8:channel"]
)
def test_products_of_sixteen_bits_are_within_the_bound(text, dtype, simd):
    n, k = SHAPE
    x, most = inputs(k), torch.finfo(dtype).max
    x, bias = x.clamp(-most, most).to(dtype), normal(n, seed=7)
    for kind in ("0", "-112", "rows"):
        weight = octavo.encode(weights(kind, n, k), text)
        reference = Reference(x, weight, bias)
        for chosen in (slice(0, 4), slice(16, 20), slice(0, 64)):
            reference.check(packed_linear(x[chosen], weight, bias), chosen)


# ------------------------------------------------------------------------------------------------------ the sign of zero


SIGNS = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 0.3, -0.3, 1.0, -1.0, -(2.0**-149), 2.0**-149, 5.0, -5.0] * 8)


@pytest.mark.parametrize("text", spread(EXAMPLES))
def test_a_zero_is_positive_at_every_level(text, simd):
    """quantize equals decode of encode with its sign, and nothing that rounds to the code of zero keeps one."""
    for x in (SIGNS, SIGNS * 2.0**-20, SIGNS * 2.0**20, SIGNS[:2].repeat(48), SIGNS[:7].view(1, 7)):
        x = x.view(1, -1)
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            values = x.clamp(-6e4, 6e4).to(dtype)
            q = octavo.quantize(values, text)
            encoded = octavo.encode(values, text)
            decoded = encoded.decode(dtype)
            bits = torch.int32 if dtype == torch.float32 else torch.int16
            assert torch.equal(q.view(bits), decoded.view(bits)), "quantize is decode of encode, signs included"
            if oracle.parse(text).family not in ("binary", "affine"):  # which need not have a zero
                assert not q[values == 0].signbit().any()


# ------------------------------------------------------------------------------------------------ floating-point states


ROUNDINGS = {"down": 0x400, "up": 0x800, "to zero": 0xC00}


class State:
    """Another floating-point state of this thread: flushing of subnormals, or a rounding of the C library."""

    def __init__(self, name):
        self.name, self.libm = name, ctypes.CDLL(ctypes.util.find_library("m") or "libm.so.6")

    def __enter__(self):
        if self.name == "flush":
            if not torch.set_flush_denormal(True):
                pytest.skip("this machine cannot flush subnormals")
        elif self.libm.fesetround(ROUNDINGS[self.name]):
            pytest.skip("this machine has no such rounding")

    def __exit__(self, *_):
        torch.set_flush_denormal(False) if self.name == "flush" else self.libm.fesetround(0)


def everything(text, x, w):
    """All that the core computes for a format, as integers."""
    out = []
    for rule in oracle.rules(text):
        packed = octavo.encode(x, text, scale=rule)
        out += [part for part in (packed.codes, packed.scales, packed.zeros, packed.levels) if part is not None]
        out += [packed.decode(dtype) for dtype in (torch.float32, torch.float16, torch.bfloat16)]
        out += [octavo.quantize(x.to(dtype), text, scale=rule) for dtype in (torch.float32, torch.float16)]
    out += torch.ops.octavo.quantize_backward(x, x, text)
    weight = octavo.encode(w, text)
    out += [packed_linear(x[:rows], weight) for rows in (1, 5, 24)]
    out.append(packed_embedding(torch.tensor([0, 3, 3]), weight))
    if text in ("int8", "int8:channel", "int4"):
        out.append(integer_linear(x, weight, "int8:channel"))
    whole = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}
    return [tensor.view(whole.get(tensor.dtype, tensor.dtype)) for tensor in out]


@pytest.mark.parametrize("text", spread(EXAMPLES))
def test_a_callers_floating_point_state_changes_no_bit(text, simd):
    x, w = inputs(160)[:24], weights("rows", 40, 160)
    wanted = everything(text, x, w)
    for name in ("flush", *ROUNDINGS):
        with State(name):
            got = everything(text, x, w)
        assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True)), name


def test_a_callers_state_holds_for_scales_of_whole_tensors_and_long_rows():
    """These are chosen before work is handed to threads."""
    x = (normal(2, 300_000) * 2.0**-130).contiguous()
    for text in ("int8", "int8:channel", "uint8", "fixed8", "fixed8:mse", "ternary", "binary", "nvfp4", "int4:channel"):
        wanted = octavo.quantize(x, text).view(torch.int32)
        for name in ("flush", *ROUNDINGS):
            with State(name):
                got = octavo.quantize(x, text).view(torch.int32)
            assert torch.equal(got, wanted), (text, name)


def test_a_callers_state_is_left_as_it_was():
    libm = State("up").libm
    for name, value in ROUNDINGS.items():
        with State(name):
            octavo.quantize(torch.randn(100_000), "mxint8")
            packed_linear(torch.randn(4, 544), octavo.encode(torch.randn(72, 544), "mxint8"))
            assert libm.fegetround() == value
    assert libm.fegetround() == 0
