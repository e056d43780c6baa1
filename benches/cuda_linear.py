"""Products with packed weights on a GPU against torch in bfloat16, and int8 matrices against ``torch._int_mm``.

Every figure is the median of replays of a CUDA graph whose products walk through more weights than the second cache
holds; every kernel is checked against float64 first. Usage: ``python benches/cuda_linear.py [--json FILE]``.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import octavo
import torch
from octavo.gemm import int8_gemm
from octavo.linear import kernel, packed_linear

SHAPES = [(4096, 4096), (8192, 8192), (14336, 4096)]
FORMATS = ["int8:channel", "mxint8", "int4:g128", "int4:g32", "mxfp4", "mxfp8e4m3"]
ROWS = [1, 8, 16, 64]
WALK = 200 << 20
"""Bytes of weights that a graph walks through: three times the second cache of an H100."""


def milliseconds(products: list[Callable[[], object]], replays: int = 50) -> float:
    """Return the median time of one product; the products are captured into one graph."""
    for product in products:
        product()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for product in products:
            product()
    times = []
    for _ in range(replays):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / len(products))
    return statistics.median(times)


def check(y: torch.Tensor, x: torch.Tensor, weight: octavo.PackedTensor) -> float:
    """Return the relative error of a product."""
    exact = x.double() @ weight.decode(torch.float32).double().t()
    return float((y.double() - exact).norm() / exact.norm())


def clone(weight: octavo.PackedTensor) -> octavo.PackedTensor:
    """Return the same weight elsewhere in memory."""
    parts = (part.clone() for part in weight.parts)
    return octavo.PackedTensor(weight.format, *parts, shape=weight.shape, axis=weight.axis, dtype=weight.dtype)


def packed(n: int, k: int, format: str, m: int) -> dict:
    """Time one product, and torch's of the same shape."""
    x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    first = octavo.encode(torch.randn(n, k, device="cuda"), format)
    weights = [first, *(clone(first) for _ in range(WALK // first.nbytes))]
    error = check(packed_linear(x, first), x, first)
    own = milliseconds([lambda w=w: packed_linear(x, w) for w in weights])
    dense = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(WALK // (2 * n * k) + 1)]
    torch_time = milliseconds([lambda w=w: torch.nn.functional.linear(x, w) for w in dense])
    name = kernel(format, m, n, k, torch.bfloat16, device="cuda")
    rate = first.nbytes / own / 1e6
    return {
        "n": n, "k": k, "m": m, "format": format, "kernel": name, "error": error, "ms": own, "torch_ms": torch_time,
        "ratio": torch_time / own, "gigabytes_per_second": rate,
    }  # fmt: skip


def integers(side: int) -> dict:
    """Time a product of int8 matrices, plain and requantised, and torch's in the faster of its layouts."""
    a, b = (torch.randint(-128, 128, (side, side), device="cuda", dtype=torch.int8) for _ in range(2))
    exact = torch.equal(int8_gemm(a, b), torch._int_mm(a, b.t()))
    bias = torch.randint(-1000, 1000, (side,), device="cuda", dtype=torch.int32)
    scales = torch.rand(side, device="cuda") * 1e-4
    own = milliseconds([lambda: int8_gemm(a, b)])
    requantised = milliseconds([lambda: int8_gemm(a, b, bias, column_scales=scales, dtype=torch.int8)])
    rows = b.t().contiguous()
    theirs = min(milliseconds([lambda: torch._int_mm(a, b.t())]), milliseconds([lambda: torch._int_mm(a, rows)]))
    rate = 2 * side**3 / own / 1e9
    return {
        "side": side, "exact": exact, "ms": own, "requantised_ms": requantised, "torch_ms": theirs,
        "ratio": theirs / own, "tops": rate,
    }  # fmt: skip


def main() -> None:
    """Print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = []
    for side in (1024, 2048, 4096, 8192):
        found.append(integers(side))
        print(found[-1], flush=True)
    for n, k in SHAPES:
        for format in FORMATS:
            for m in ROWS:
                found.append(packed(n, k, format, m))
                print(found[-1], flush=True)
    if given.json:
        given.json.write_text(json.dumps({"device": torch.cuda.get_device_name(), "figures": found}, indent=1))


if __name__ == "__main__":
    main()
