"""Products on CUDA devices, without one: what happens around the kernels, which stand-ins on the CPU replace.

The kernels themselves run under emulation in rust/cuda/tests/emulated.
"""

from __future__ import annotations

import octavo
import pytest
import torch
from octavo import _core
from octavo.errors import DTypeError, FormatError, ShapeError
from octavo.ops import gemm, linear_cuda
from octavo.ops.linear import integer_linear, kernel, packed_embedding, packed_linear
from torch import Tensor

FORMATS = ["int8:channel", "int4:g32", "uint4:g32", "mxint8", "mxfp8e4m3", "nvfp4", "nf4", "int8:tensor", "bf16"]


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace kernels by the CPU's, which take the same addresses; returns what ran."""
    ran: list[str] = []

    def packed(fmt, on, sizes, x, parts, bias, out, scratch):
        ran.append("packed")
        _core._packed_linear(fmt, x[1], *sizes, x[0], parts, bias, out)

    def integer(fmt, input_fmt, on, sizes, x, parts, given, bias, out, scratch):
        ran.append("integer")
        scales = (given, sizes[0] if input_fmt.granularity == "channel" else 1) if given else None
        _core._integer_linear(fmt, input_fmt, x[1], *sizes, x[0], (*parts, 0, 0), scales, bias, out)

    def scratch(fmt, device, sizes, code, bias_code, offset):
        return 64 if sizes[0] <= 64 and fmt.width <= 8 else None

    monkeypatch.setattr(linear_cuda, "place", lambda device: (0, 0))
    monkeypatch.setattr(linear_cuda, "_packed_scratch", scratch)
    monkeypatch.setattr(linear_cuda, "_integer_scratch", lambda *args: 0)
    monkeypatch.setattr(_core, "_cuda_packed_linear", packed)
    monkeypatch.setattr(_core, "_cuda_integer_linear", integer)
    return ran


def _weight(format: str, rows: int = 24, columns: int = 96) -> octavo.PackedTensor:
    return octavo.encode(torch.randn(rows, columns, generator=torch.Generator().manual_seed(1)), format)


def _x(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(2))


def _packed(x: Tensor, weight: octavo.PackedTensor, bias: Tensor | None = None) -> Tensor:
    return linear_cuda.OPS["packed_linear"](x, *weight.parts, bias, weight.format.text, *weight.shape)


def _close(y: Tensor, wanted: Tensor) -> None:
    assert y.dtype == wanted.dtype
    assert y.shape == wanted.shape
    assert (y - wanted).float().norm() <= 1e-2 * wanted.float().norm()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_few_rows_go_to_a_kernel_and_many_to_decoded_panels(stand_ins, monkeypatch, format, dtype) -> None:
    weight, bias = _weight(format, 300), _x(300)
    monkeypatch.setattr(linear_cuda, "PANEL", 96)  # panels of 128 rows
    for m in (3, 80):
        stand_ins.clear()
        x = _x(2, m, 96).to(dtype)[1]
        _close(_packed(x, weight, bias), packed_linear(x, weight, bias))
        assert stand_ins == (["packed"] if m == 3 and weight.format.core.width <= 8 else [])
    assert _packed(_x(0, 96), weight).shape == (0, 300)


def test_rows_of_strides_and_no_columns(stand_ins) -> None:
    weight = _weight("int8:channel")
    x = _x(96, 5).t()
    _close(_packed(x, weight), packed_linear(x.contiguous(), weight))
    empty = octavo.encode(torch.empty(4, 0), "int8:channel")
    assert torch.equal(_packed(_x(2, 0), empty, torch.ones(4)), torch.ones(2, 4))


@pytest.mark.parametrize("bias", [None, torch.float32, torch.int32])
@pytest.mark.parametrize("given", [False, True])
def test_integer_products(stand_ins, bias, given) -> None:
    weight, x = _weight("int8:channel"), _x(2, 7, 96)
    added = None if bias is None else (_x(24) * 100).to(bias)
    for input_format, count in (("int8", 1), ("int4:channel", 14)):
        scales = torch.linspace(0.01, 0.02, count) if given else None
        y = linear_cuda.OPS["integer_linear"](
            x, weight.codes, weight.scales, added, scales, "int8:channel", input_format, 24, 96
        )
        assert torch.equal(y, integer_linear(x, weight, input_format, added, input_scales=scales))
    with pytest.raises(ShapeError, match="input_scales hold 3 values"):
        linear_cuda.OPS["integer_linear"](
            x, weight.codes, weight.scales, None, torch.ones(3), "int8:channel", "int8:channel", 24, 96
        )
    with pytest.raises(FormatError, match="integer products take"):
        linear_cuda.OPS["integer_linear"](x, weight.codes, weight.scales, None, None, "int8:channel", "mxint8", 24, 96)


@pytest.mark.parametrize("format", FORMATS)
def test_rows_are_gathered_in_their_packed_form(format) -> None:
    table, ids = _weight(format, 40), torch.tensor([[3, 39], [0, 3]])
    rows = linear_cuda.OPS["packed_embedding"](ids, *table.parts, format, 40, 96, torch.float32)
    assert torch.equal(rows, packed_embedding(ids, table))
    assert linear_cuda.OPS["packed_embedding"](ids[:0], *table.parts, format, 40, 96, torch.bfloat16).shape == (
        0,
        2,
        96,
    )


def test_operands_share_a_device(stand_ins) -> None:
    weight = _weight("int8:channel")
    with pytest.raises(DTypeError, match="operands are on cpu and meta"):
        _packed(_x(2, 96), weight, torch.ones(24, device="meta"))
    with pytest.raises(DTypeError, match="operands are on meta and cpu"):
        linear_cuda.OPS["packed_embedding"](
            torch.ones(2, dtype=torch.int64, device="meta"), *weight.parts, "int8:channel", 24, 96, torch.float32
        )


def test_kernels_are_named_without_a_device() -> None:
    def name(format: str, m: int, input_format: str | None = None) -> str:
        return kernel(format, m, 4096, 4096, torch.bfloat16, input_format, device="cuda")

    assert name("int8:channel", 1) == name("mxint8", 16) == name("int4:g128", 4) == "int8 limbs imma"
    assert name("mxint8", 17) == name("mxfp8e4m3", 1) == name("nf4", 64) == "bfloat16 limbs mma"
    assert name("mxint8", 65) == name("fp16", 1) == "decode + torch"
    assert name("int8:channel", 16, "int8") == "int8 narrow mma"
    assert name("int4:channel", 17, "int8:channel") == "int8 mma"
    with pytest.raises(FormatError, match="integer products take"):
        name("mxint8", 1, "int8")


def test_int8_gemm_is_exact_and_requantizes() -> None:
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randint(-128, 128, (rows, 333), dtype=torch.int8, generator=generator) for rows in (5, 7))
    bias = torch.randint(-(10**6), 10**6, (7,), dtype=torch.int32, generator=generator)
    sums = a.long() @ b.long().t()
    assert torch.equal(gemm.int8_gemm(a, b, bias), (sums + bias).int())
    rows, columns = torch.rand(5, generator=generator) * 0.1, torch.rand(7, generator=generator) * 0.01
    y = gemm.int8_gemm(a, b, bias, row_scales=rows, column_scales=columns, dtype=torch.float32)
    t = rows[:, None] * columns
    assert torch.equal(y, (sums + bias).float() * t)
    added = torch.rand(7, generator=generator)
    y = gemm.int8_gemm(a, b, added, row_scales=rows, column_scales=columns, dtype=torch.bfloat16)
    assert torch.equal(y, (sums.float() * t + added).bfloat16())
    y = gemm.int8_gemm(a, b, bias, column_scales=columns * 0.01, dtype=torch.int8, zero=3)
    assert torch.equal(y, (((sums + bias).float() * (columns * 0.01)).round() + 3).clamp(-128, 127).to(torch.int8))
    assert gemm.int8_gemm(a[:0], b).shape == (0, 7)
    columns[3] = torch.nan
    assert not gemm.int8_gemm(a, b, column_scales=columns, dtype=torch.int8)[:, 3].any()


def test_int8_gemm_refuses_what_does_not_fit() -> None:
    a, b = torch.zeros(2, 8, dtype=torch.int8), torch.zeros(3, 8, dtype=torch.int8)
    for error, text, call in (
        (ShapeError, "8 columns, b 4", lambda: gemm.int8_gemm(a, b[:, :4])),
        (DTypeError, "expected int8", lambda: gemm.int8_gemm(a.float(), b)),
        (ShapeError, "131071", lambda: gemm.int8_gemm(*(torch.zeros(1, 131_072, dtype=torch.int8),) * 2)),
        (ShapeError, "bias is", lambda: gemm.int8_gemm(a, b, torch.zeros(2, dtype=torch.int32))),
        (ShapeError, "bias is torch.float32", lambda: gemm.int8_gemm(a, b, torch.zeros(3))),
        (ShapeError, "row_scales are", lambda: gemm.int8_gemm(a, b, row_scales=torch.ones(3), dtype=torch.float32)),
        (DTypeError, "the sums themselves", lambda: gemm.int8_gemm(a, b, row_scales=torch.ones(2))),
        (DTypeError, "accepted are int32", lambda: gemm.int8_gemm(a, b, dtype=torch.int64)),
        (DTypeError, "got NoneType and Tensor", lambda: gemm.int8_gemm(None, b)),
        (ShapeError, "zero is 200", lambda: gemm.int8_gemm(a, b, dtype=torch.int8, zero=200)),
    ):
        with pytest.raises(error, match=text):
            call()
