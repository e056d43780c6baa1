"""Other libraries that convert float32 to fewer bits and back, as contestants of ``codecs.py``.

Peers that can write into existing buffers do; the others are marked ``new``, since they allocate their result each
time. A library that is missing, or a function that fails on this machine, costs one line and nothing else.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Contestant:
    """One operation to time. ``row`` is its line in the table, ``operation`` its column."""

    row: str
    operation: str
    call: Callable[[], object]
    bits: float
    family: str = "peer"
    format: str = ""
    rule: str = "floor"


def peers(x: Tensor, out: Tensor) -> tuple[list[Contestant], list[str]]:
    """Contestants of every library that is installed, and a line for each that is not or that fails.

    ``x``: what they read, ``[rows, K]`` float32; ``out``: where decoded values go.
    """
    found: list[Contestant] = []
    complaints: list[str] = []
    logging.disable(logging.WARNING)  # torchao and bitsandbytes tell on import which CUDA parts they lack
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for library, build in (
            ("torch", _torch),
            ("torchao", _torchao),
            ("ml_dtypes", _ml_dtypes),
            ("bitsandbytes", _bitsandbytes),
        ):
            try:
                for row, operation, bits, call in build(x, out):
                    found.append(Contestant(f"{library} {row}", operation, call, bits))
            except Exception as error:  # whatever a foreign library raises: the bench goes on without it
                complaints.append(one_line(library, error))
    logging.disable(logging.NOTSET)
    return found, complaints


def one_line(what: str, error: Exception) -> str:
    """Say in one line that a peer takes no part, and why."""
    reason = (str(error).splitlines() or [""])[0]
    return f"{what} takes no part: {type(error).__name__}: {reason[:120]}"


Row = tuple[str, str, float, Callable[[], object]]


def _torch(x: Tensor, out: Tensor) -> Iterator[Row]:
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float16):
        codes = x.to(dtype)
        row = f"{str(dtype).removeprefix('torch.')} copy_"
        yield row, "encode", codes.itemsize * 8, lambda codes=codes: codes.copy_(x)
        yield row, "decode", codes.itemsize * 8, lambda codes=codes: out.copy_(codes)
    # These are given their scales; octavo's int8 finds its own, which takes one more pass over x.
    scale = float(x.abs().max()) / 127
    scales = x.abs().amax(1) / 127
    zeros = torch.zeros(len(x), dtype=torch.int64)
    tensor = torch.quantize_per_tensor(x, scale, 0, torch.qint8)
    row = "quantize_per_tensor qint8 (new)"
    yield row, "encode", 8, lambda: torch.quantize_per_tensor(x, scale, 0, torch.qint8)
    yield row, "decode", 8, lambda: tensor.dequantize()
    channel = torch.quantize_per_channel(x, scales, zeros, 0, torch.qint8)
    row = "quantize_per_channel qint8 (new)"
    yield row, "encode", 8, lambda: torch.quantize_per_channel(x, scales, zeros, 0, torch.qint8)
    yield row, "decode", 8, lambda: channel.dequantize()
    row = "fake_quantize_per_tensor_affine (new)"
    yield row, "quantize", 8, lambda: torch.fake_quantize_per_tensor_affine(x, scale, 0, -128, 127)


def _torchao(x: Tensor, out: Tensor) -> Iterator[Row]:
    from torchao.prototype.mx_formats.mx_tensor import to_dtype, to_mx

    for row, element, bits in (
        ("to_mx float8_e4m3fn (new)", torch.float8_e4m3fn, 8.25),
        ("to_mx float8_e5m2 (new)", torch.float8_e5m2, 8.25),
        ("to_mx fp6_e3m2, a byte each (new)", "fp6_e3m2", 8.25),
        ("to_mx fp6_e2m3, a byte each (new)", "fp6_e2m3", 8.25),
        ("to_mx float4_e2m1fn_x2 (new)", torch.float4_e2m1fn_x2, 4.25),
    ):
        scales, codes = to_mx(x, element, 32)
        yield row, "encode", bits, lambda element=element: to_mx(x, element, 32)
        yield row, "decode", bits, lambda e=element, s=scales, c=codes: to_dtype(c, s, e, 32, torch.float32)
    from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

    scale = per_tensor_amax_to_scale(x.abs().max())
    yield "nvfp4_quantize, scale given (new)", "encode", 4.5, lambda: nvfp4_quantize(x, 16, scale)


def _ml_dtypes(x: Tensor, out: Tensor) -> Iterator[Row]:
    import ml_dtypes
    import numpy as np

    values, decoded = x.numpy(), out.numpy()
    names = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn")
    for name in names:
        codes = np.empty(values.shape, dtype=getattr(ml_dtypes, name))
        row = f"{name}, 1 thread"
        yield row, "encode", codes.itemsize * 8, lambda codes=codes: np.copyto(codes, values, casting="unsafe")
        yield row, "decode", codes.itemsize * 8, lambda codes=codes: np.copyto(decoded, codes, casting="unsafe")


def _bitsandbytes(x: Tensor, out: Tensor) -> Iterator[Row]:
    from bitsandbytes import functional

    codes, state = functional.quantize_4bit(x, blocksize=64, quant_type="nf4")
    row = "nf4, block 64 (new)"
    yield row, "encode", 4.5, lambda: functional.quantize_4bit(x, blocksize=64, quant_type="nf4")
    yield row, "decode", 4.5, lambda: functional.dequantize_4bit(codes, state)
    bytes8, state8 = functional.quantize_blockwise(x, blocksize=256)
    row = "dynamic 8 bit, block 256 (new)"
    yield row, "encode", 8.125, lambda: functional.quantize_blockwise(x, blocksize=256)
    yield row, "decode", 8.125, lambda: functional.dequantize_blockwise(bytes8, state8)
