"""The ops for CUDA tensors without a GPU: the processor's codecs stand in for the kernels, so all of Python's part runs."""

import ctypes
import math
from types import SimpleNamespace

import octavo.ops.codec
import pytest
import torch
from helpers.values import normal
from octavo import CudaError, DTypeError, NonFiniteError, ShapeError, _core
from octavo.ops import codec_cuda as ops_cuda
from octavo.tensors.formats import core

cuda = SimpleNamespace(**ops_cuda.OPS)
cpu = torch.ops.octavo
FORMATS = [
    "bf16", "fixed8.4", "fixed8:channel", "int8", "int4:g32", "uint4:g7", "binary2:channel", "ternary", "bfp6/7", "mxint8",
    "mxfp6e3m2", "nvfp4", "nf4",
]  # fmt: skip
SHAPES = [((6, 40), -1), ((5, 64, 3), 1), ((3, 7), 0), ((33,), 0), ((0, 4), -1)]
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def values(address, rows, k, code):
    count = rows * k * FLOATS[code].itemsize
    return torch.frombuffer((ctypes.c_char * count).from_address(address), dtype=FLOATS[code]) if count else None


class Kernels:
    """Takes what the boundary takes, checks it as the boundary does, and lets the processor compute."""

    def __init__(self):
        self.scratch = None
        self.streams = []

    def __getattr__(self, name):
        return getattr(_core, name)

    def _check(self, fmt, on, shape, parts=(), tensors=(), scratch=None):
        self.streams.append(on)
        code, rows, k = shape
        _, _, _, codes, _, scales, _, zeros, levels = fmt._sizes([rows, k], -1)
        assert not parts or [nbytes for _, nbytes in parts] == [codes, scales, zeros, levels]
        for address, nbytes in tensors:
            assert nbytes == rows * k * FLOATS[code].itemsize
            assert address % FLOATS[code].itemsize == 0
        assert scratch is None or scratch[1] == self._cuda_scratch(fmt, rows, k)[0]
        return code, [rows, k]

    def _cuda_encode(self, fmt, on, shape, x, out, scratch, rule, nonfinite, given, first):
        code, sizes = self._check(fmt, on, shape, out, [x], scratch)
        assert bool(first) == (nonfinite == "error")
        if first:
            bad = (~values(x[0], *sizes, code).isfinite()).nonzero()
            ctypes.c_int64.from_address(first).value = int(bad[0]) if len(bad) else 2**63 - 1
            nonfinite = "saturate"
        kept = [ctypes.create_string_buffer(ctypes.string_at(*part), part[1]) if part[1] else None for part in out]
        scales = tuple(ctypes.addressof(part) if part else 0 for part in kept) if given else None
        _core._encode(fmt, code, sizes, -1, x[0], tuple(part[0] for part in out), rule, nonfinite, scales)

    def _cuda_decode(self, fmt, on, shape, parts, out):
        code, sizes = self._check(fmt, on, shape, parts, [out])
        _core._decode(fmt, code, sizes, -1, tuple(part[0] for part in parts), out[0])

    def _cuda_quantize(self, fmt, on, shape, x, out, given, scratch, rule):
        code, sizes = self._check(fmt, on, shape, (), [x, out], scratch)
        _core._quantize(fmt, code, sizes, -1, x[0], out[0], rule, given and tuple(part[0] for part in given))

    def _cuda_quantize_backward(self, fmt, on, shape, grad, x, out, given, scratch, rule, scale_grad):
        code, sizes = self._check(fmt, on, shape, (), [grad, x, out], scratch)
        scales = given and tuple(part[0] for part in given)
        _core._quantize_backward(
            fmt, code, sizes, -1, grad[0], x[0], out[0], rule, scales, scale_grad[0] if scale_grad[1] else 0
        )


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    stand_in = Kernels()
    monkeypatch.setattr(ops_cuda, "_core", stand_in)
    monkeypatch.setattr(ops_cuda, "place", lambda device: (0, 7))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return stand_in


def equal(got, wanted):
    assert got.shape == wanted.shape and got.dtype == wanted.dtype and got.is_contiguous()
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("text", FORMATS)
def test_results_are_those_of_the_processor_along_every_axis(text, kernels):
    for i, (shape, axis) in enumerate(SHAPES):
        x, grad = normal(*shape, seed=i, dtype=FLOATS[i % 3]), normal(*shape, seed=i + 9, dtype=FLOATS[i % 3])
        rule = ("floor", "ceil", "mse")[i % 3] if core(text).is_block else "floor"
        parts = cpu.encode(x, text, axis, rule)
        for got, wanted in zip(cuda.encode(x, text, axis, rule), parts, strict=True):
            equal(got, wanted)
        equal(
            cuda.decode(*parts, text, list(shape), axis, x.dtype), cpu.decode(*parts, text, list(shape), axis, x.dtype)
        )
        equal(cuda.quantize(x, text, axis, rule), cpu.quantize(x, text, axis, rule))
        backward = cuda.quantize_backward(grad, x, text, axis, rule)[0]
        equal(backward, cpu.quantize_backward(grad, x, text, axis, rule)[0])
        into = torch.empty_like(x)
        cuda.quantize_out(x, text, axis, rule, out=into)
        equal(into, cpu.quantize(x, text, axis, rule))
        cuda.decode_out(*parts, text, list(shape), axis, out=into)
        equal(into, cpu.decode(*parts, text, list(shape), axis, x.dtype))
        outs = [torch.empty_like(part) for part in parts]
        names = ("codes_out", "scales_out", "zeros_out", "levels_out")
        cuda.encode_out(x, text, axis, rule, **dict(zip(names, outs, strict=True)))
        for got, wanted in zip(outs, parts, strict=True):
            equal(got, wanted)
        if core(text).scale_type is None or not x.numel():
            continue
        y = normal(*shape, seed=i + 3, dtype=FLOATS[i % 3])
        given = (
            axis,
            rule,
            parts[1],
            parts[2] if core(text).has_zeros else None,
            parts[3] if core(text).has_levels else None,
        )
        equal(cuda.quantize(y, text, *given), cpu.quantize(y, text, *given))
        for got, wanted in zip(cuda.encode(y, text, *given), cpu.encode(y, text, *given), strict=True):
            equal(got, wanted)
        if text in ("int8", "int4:g32", "fixed8:channel"):
            given = (axis, rule, parts[1].float(), *given[3:])  # learned fraction bits are floats
            learned = cuda.quantize_backward(grad, y, text, *given, True)[1]
            equal(learned, cpu.quantize_backward(grad, y, text, *given, True)[1])
    assert set(kernels.streams) == {(0, 7)}


def test_other_layouts_and_addresses_are_read_from_a_copy():
    x = normal(40, 6).t()
    equal(cuda.quantize(x, "mxint8"), cpu.quantize(x.contiguous(), "mxint8"))
    bits = torch.zeros(2 * 64 + 1, dtype=torch.uint8)[1:].view(torch.uint8)
    odd = torch.frombuffer(bits.numpy(), dtype=torch.bfloat16, count=64)
    equal(cuda.quantize(odd, "mxint8"), cpu.quantize(odd.clone(), "mxint8"))


def test_the_first_value_that_is_not_finite_is_named_in_the_callers_order():
    x = normal(4, 6)
    x[1, 5], x[3, 0] = math.inf, math.nan
    for axis in (-1, 0):
        with pytest.raises(NonFiniteError, match=r"'mxint8': value inf at flat position 11; encode takes finite"):
            cuda.encode(x, "mxint8", axis)
        with pytest.raises(NonFiniteError, match=r"flat position 11;"):
            cpu.encode(x, "mxint8", axis)
        for policy in ("saturate", "nan"):
            wanted = cpu.encode(x, "mxint8", axis, nonfinite=policy)
            for got, part in zip(cuda.encode(x, "mxint8", axis, nonfinite=policy), wanted, strict=True):
                equal(got, part)
    x[1, 5] = math.nan
    with pytest.raises(NonFiniteError, match="value NaN at flat position 11;"):
        cuda.encode(x, "mxint8")


def test_the_default_policy_is_refused_while_a_graph_is_captured(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(CudaError, match="pass nonfinite='saturate'"):
        cuda.encode(normal(2, 32), "mxint8")
    cuda.encode(normal(2, 32), "mxint8", nonfinite="saturate")


def test_what_does_not_fit_is_refused_before_any_work(kernels):
    x = normal(4, 64)
    parts = cpu.encode(x, "mxint8")
    with pytest.raises(DTypeError, match=r"'mxint8': scales are on meta, expected cpu"):
        cuda.quantize(x, "mxint8", scales=parts[1].to("meta"))
    with pytest.raises(ShapeError, match="scales have shape"):
        cuda.quantize(x, "mxint8", scales=parts[1][:2])
    with pytest.raises(DTypeError, match="float64"):
        cuda.quantize(x.double(), "mxint8")
    with pytest.raises(ShapeError, match="out overlaps x"):
        memory = normal(5, 64)
        cuda.quantize_out(memory[:4], "mxint8", out=memory[1:])
    with pytest.raises(ShapeError, match="contiguous"):
        cuda.quantize_out(x, "mxint8", out=torch.empty(64, 4).t())
    with pytest.raises(DTypeError, match="scales are on meta"):
        cuda.decode(parts[0], *(part.to("meta") for part in parts[1:]), "mxint8", [4, 64], -1, torch.float32)
    with pytest.raises(DTypeError, match="float64"):
        cuda.decode(*parts, "mxint8", [4, 64], -1, torch.float64)
    with pytest.raises(ShapeError):
        cuda.encode(x, "mxint8", 5)
    assert kernels.streams == []


def test_every_op_has_a_kernel_for_cuda():
    assert octavo.quantize  # defines the ops
    for name in ops_cuda.OPS:
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"octavo::{name}", "CUDA")
