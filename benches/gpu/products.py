"""int8 matrices and packed linear layers on a GPU: checked, then timed beside torch on the same shapes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import octavo
import octavo.ops.gemm  # registers the op
import torch
from octavo import settings
from octavo.errors import OctavoError
from octavo.ops.linear import kernel, packed_linear
from torch import Tensor
from torch.nn.functional import pad

from gpu.bars import EIGHT, FOUR, Figure, of_rate
from gpu.codecs import copied, on_cpu
from gpu.timing import DEVICE, dense_linear, fastest, int_mm, microseconds, poison, rotation, same_bits

SIDES = (1024, 2048, 4096, 8192)
ODD = ((1, 4096, 4096), (8, 4096, 4096), (16, 4096, 4096), (64, 4095, 4096), (64, 4096, 4090), (17, 33, 144))
SHAPES = ((4096, 4096), (8192, 8192), (14336, 4096), (28672, 8192))
ROWS = (1, 2, 4, 8, 16, 32, 64)
FORMATS = (*EIGHT, *FOUR, "mxfp8e4m3", "mxfp4", "nf4")
SAMPLED = 32
"""Rows of a large product that the CPU computes; float64 on the GPU, exact for int8, checks all of them."""
MOST_ERROR = 5e-3
"""Of ||y - exact|| / ||exact||: rounding results to bfloat16 alone costs 2e-3."""


def gemm(a: Tensor, b: Tensor, bias: Tensor | None = None, scales: Tensor | None = None) -> Tensor:
    """Multiply int8 matrices, to int32, or with column scales to int8, into poisoned memory where the GPU is used."""
    dtype = torch.int32 if scales is None else torch.int8
    return torch.ops.octavo.int8_gemm.default(a, b, bias, None, scales, dtype, 0)


def checked(a: Tensor, b: Tensor, bias: Tensor | None = None, scales: Tensor | None = None) -> bool:
    """Tell whether a product on the GPU has the bits of the CPU's on some rows, and of exact sums on all."""
    poison(a.shape[0] * b.shape[0] * (4 if scales is None else 1))
    found = gemm(a, b, bias, scales)
    rows = torch.randperm(a.shape[0])[:SAMPLED].to(a.device)
    parts = (None if part is None else part.cpu() for part in (bias, scales))
    if not same_bits(found[rows].cpu(), gemm(a[rows].cpu(), b.cpu(), *parts)):
        return False
    sums = a.double() @ b.double().t()
    if bias is not None:
        sums += bias
    if scales is not None:
        sums = (sums.float() * scales).round().clamp(-128, 127)
    return bool((found == sums).all())


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Inside, products go to kernels that every GPU runs: ``mma.sync`` where a Hopper has ``wgmma``."""

    def use(plain: bool) -> None:
        os.environ["OCTAVO_CUDA_PLAIN"] = "01"[plain]
        settings.apply()
        octavo.ops.gemm._scratch.cache_clear()  # another kernel, another size

    use(True)
    try:
        yield
    finally:
        use(False)


def integers(m: int, n: int, k: int) -> Iterator[Figure]:
    """Check and time a product, plain and requantized."""
    sides = [(_int8(m, k), _int8(n, k)) for _ in range(min(8, rotation(m * k + n * k + 4 * m * n)))]
    theirs = fastest(int_mm(m, n, k))
    us = microseconds([lambda a=a, b=b: gemm(a, b) for a, b in sides])
    size: Figure = {"m": m, "n": n, "k": k}
    yield {"kernel": "int8_gemm", **size, "us": us, "tops": 2e-6 * m * n * k / us, "mm_us": theirs,
           "correct": checked(*sides[0]), "of_mm": None if theirs is None else theirs / us}  # fmt: skip
    if has_own_kernels():
        with plain_kernels():
            us = microseconds([lambda a=a, b=b: gemm(a, b) for a, b in sides])
            yield {"kernel": "int8_gemm plain kernel", **size, "us": us, "tops": 2e-6 * m * n * k / us, "mm_us": theirs,
                   "correct": checked(*sides[0]), "of_mm": None if theirs is None else theirs / us}  # fmt: skip
    bias = torch.randint(-1000, 1000, (n,), device=DEVICE, dtype=torch.int32)
    scales = torch.rand(n, device=DEVICE) * 1e-3 + 1e-5
    us = microseconds([lambda a=a, b=b: gemm(a, b, bias, scales) for a, b in sides])
    sums = [torch.randint(-(2**20), 2**20, (m, n), dtype=torch.int32, device=DEVICE) for _ in sides]
    requantize = torch.compile(_requantize, dynamic=False)
    apart = microseconds([lambda s=s: requantize(s, bias, scales) for s in sums])
    yield {"kernel": "int8_gemm requantized", **size, "us": us, "requantize_us": apart, "mm_us": theirs,
           "correct": checked(*sides[0], bias, scales),
           "over_torch": None if theirs is None else (theirs + apart) / us}  # fmt: skip


def has_own_kernels() -> bool:
    """Tell whether large products of int8 have a kernel of their own on this GPU."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def odd(m: int, n: int, k: int) -> Figure:
    """Check and time a product that ``torch._int_mm`` needs padding for; weights are padded beforehand."""
    up_m, up_n, up_k = max(32, -(-m // 8) * 8), -(-n // 8) * 8, -(-k // 8) * 8
    sides = [(_int8(m, k), _int8(n, k)) for _ in range(rotation(m * k + n * k + 4 * m * n))]
    wide = [pad(b, (0, up_k - k, 0, up_n - n)).t() for _, b in sides]

    def padded(a: Tensor, b: Tensor) -> Tensor:
        return torch._int_mm(pad(a, (0, up_k - k, 0, up_m - m)), b)[:m, :n].contiguous()

    us = microseconds([lambda a=a, b=b: gemm(a, b) for a, b in sides])
    theirs = microseconds([lambda a=a, b=b: padded(a, b) for (a, _), b in zip(sides, wide, strict=True)])
    return {"kernel": "int8_gemm odd", "m": m, "n": n, "k": k, "us": us, "padded_us": theirs,
            "correct": checked(*sides[0]), "over_padded": theirs / us}  # fmt: skip


def refusals() -> Iterator[Figure]:
    """Call with what must be refused; each a typed error."""
    a, b = _int8(32, 64), _int8(16, 64)
    cases: dict[str, Callable[[], object]] = {
        "columns differ": lambda: gemm(a, _int8(16, 128)),
        "too many columns": lambda: gemm(_int8(1, 131_072), _int8(1, 131_072)),
        "dtype": lambda: gemm(a.to(torch.int32), b),
        "device": lambda: gemm(a, b.cpu()),
        "dimensions": lambda: gemm(a[0], b),
        "length of the bias": lambda: gemm(a, b, torch.zeros(15, dtype=torch.int32, device=DEVICE)),
        "number of scales": lambda: gemm(a, b, None, torch.ones(15, device=DEVICE)),
    }
    for name, call in cases.items():
        try:
            call()
            refused = False
        except OctavoError:
            refused = True
        except Exception:
            refused = False
        yield {"kernel": "int8_gemm refusals", "case": name, "refused": float(refused), "correct": refused}


def linear(m: int, n: int, k: int, format: str, read: float) -> Figure:
    """Check and time one packed product."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    x = torch.randn(m, k, generator=generator, device=DEVICE).bfloat16()
    first = octavo.encode(torch.randn(n, k, generator=generator, device=DEVICE), format)
    exact = x.double() @ octavo.decode(on_cpu(first), dtype=torch.float32).to(DEVICE).double().t()
    poison(2 * m * n)
    found = packed_linear(x, first)
    error = float((found.double() - exact).norm() / exact.norm())
    del exact
    weights = [first, *(copied(first) for _ in range(rotation(first.nbytes) - 1))]
    us = microseconds([lambda w=w: packed_linear(x, w) for w in weights])
    theirs = _lin(m, n, k)
    return {
        "kernel": "packed_linear", "format": format, "m": m, "n": n, "k": k, "weights": n * k,
        "weight_bytes": first.nbytes, "runs": kernel(format, m, n, k, torch.bfloat16, device=DEVICE), "us": us,
        "error": error, "correct": error <= MOST_ERROR, "lin_us": theirs, "over_lin": theirs / us,
        "of_read": of_rate(first.nbytes, us, read),
    }  # fmt: skip


def run_integers() -> Iterator[Callable[[], Iterator[Figure]]]:
    """Yield what is measured of int8 matrices, in order."""
    yield refusals
    for side in SIDES:
        yield lambda s=side: integers(s, s, s)
    for sizes in ODD:
        yield lambda s=sizes: iter([odd(*s)])


def run_linear(read: float) -> Iterator[Callable[[], Figure]]:
    """Yield what is measured of packed layers, in order."""
    for n, k in SHAPES:
        for format in FORMATS:
            for m in ROWS if n * k <= 8192**2 else (1, 8):
                yield lambda m=m, n=n, k=k, f=format: linear(m, n, k, f, read)


@cache
def _lin(m: int, n: int, k: int) -> float:
    return dense_linear(m, n, k)


def _int8(rows: int, columns: int) -> Tensor:
    return torch.randint(-128, 128, (rows, columns), dtype=torch.int8, device=DEVICE)


def _requantize(sums: Tensor, bias: Tensor, scales: Tensor) -> Tensor:
    return ((sums + bias).float() * scales).round().clamp(-128, 127).to(torch.int8)
