"""What a call costs the host, whether graphs replay to the same bits, and time against size on CPU and GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median

import octavo
import torch
from octavo.ops.linear import integer_linear, packed_embedding, packed_linear
from torch import Tensor

from gpu.bars import Figure
from gpu.codecs import random_packed
from gpu.products import gemm
from gpu.timing import DEVICE, captured, host_microseconds, microseconds, rotation, same_bits

Op = tuple[Callable[[Tensor], Tensor], Callable[[], Tensor]]
LATENCIES = tuple(2**power for power in range(10, 28, 2))


def ops() -> dict[str, Op]:
    """Return every op as a function of one input, and what makes such inputs."""
    k, n = 512, 256
    weight = {format: octavo.encode(torch.randn(n, k, device=DEVICE), format) for format in ("mxint8", "nf4")}
    whole = octavo.encode(torch.randn(n, k, device=DEVICE), "int8:channel")
    like = octavo.encode(torch.randn(64, k, device=DEVICE), "mxint8")
    other = torch.randint(-128, 128, (n, k), dtype=torch.int8, device=DEVICE)

    def floats(rows: int) -> Callable[[], Tensor]:
        return lambda: torch.randn(rows, k, device=DEVICE).bfloat16()

    def decoded(codes: Tensor) -> Tensor:
        packed = octavo.PackedTensor(
            like.format, codes, *like.parts[1:], shape=like.shape, dtype=torch.bfloat16, axis=like.axis
        )
        return octavo.decode(packed)

    found: dict[str, Op] = {
        "quantize": (lambda x: octavo.quantize(x, "mxint8"), floats(64)),
        "encode": (lambda x: octavo.encode(x, "mxint8", nonfinite="saturate").codes, floats(64)),
        "decode": (decoded, lambda: torch.randint(256, like.codes.shape, dtype=torch.uint8, device=DEVICE)),
        "integer_linear": (lambda x: integer_linear(x, whole, "int8:channel"), floats(8)),
        "packed_embedding": (
            lambda ids: packed_embedding(ids, weight["mxint8"], torch.bfloat16),
            lambda: torch.randint(n, (33,), device=DEVICE),
        ),
        "int8_gemm": (
            lambda a: gemm(a, other),
            lambda: torch.randint(-128, 128, (40, k), dtype=torch.int8, device=DEVICE),
        ),
    }
    for format, packed in weight.items():
        for m in (1, 8, 64, 200):
            found[f"packed_linear {format} M={m}"] = (lambda x, w=packed: packed_linear(x, w), floats(m))
    return found


def capture(name: str, call: Callable[[Tensor], Tensor], make: Callable[[], Tensor]) -> Figure:
    """Capture an op, change its input, poison its output, replay, and compare with eager mode."""
    held, results = make(), []

    def step() -> Tensor:
        results.append(call(held))
        return results[-1]

    figure: Figure = {"kernel": "capture", "op": name}
    try:
        graph = captured([step])
        fresh, out = make(), results[-1]
        held.copy_(fresh)
        out.view(torch.uint8).fill_(0xA5)
        graph.replay()
        torch.cuda.synchronize()
        right = same_bits(out, call(fresh))
    except RuntimeError as error:
        return {**figure, "equal": 0.0, "correct": False, "error": str(error).splitlines()[0]}
    return {**figure, "equal": float(right), "correct": right}


def host(name: str, call: Callable[[Tensor], Tensor], make: Callable[[], Tensor], add_us: float) -> Figure:
    """Time what a call costs the host."""
    x = make()
    with torch.no_grad():
        us = host_microseconds(lambda: call(x))
    return {"kernel": "host", "op": name, "us": us, "add_us": add_us, "of_add": us / add_us, "correct": True}


def latency(elements: int) -> Figure:
    """Time decode of MXINT8 to bfloat16 on the CPU, on the GPU, and in eager mode until the result is there."""
    packed = random_packed(elements, "mxint8")
    here = packed.to(device="cpu")
    out = torch.empty(packed.shape, dtype=torch.bfloat16)
    there = torch.empty(packed.shape, dtype=torch.bfloat16, device=DEVICE)

    def waited() -> None:
        octavo.decode(packed, out=there)
        torch.cuda.synchronize()

    turns = [torch.empty_like(there) for _ in range(rotation(3 * elements))]
    return {
        "kernel": "latency", "elements": elements, "cpu_us": _wall(lambda: octavo.decode(here, out=out)),
        "eager_us": _wall(waited), "us": microseconds([lambda o=o: octavo.decode(packed, out=o) for o in turns]),
        "correct": same_bits(octavo.decode(packed, out=there), octavo.decode(here, out=out)),
    }  # fmt: skip


def run() -> Iterator[Callable[[], Figure]]:
    """Yield what is measured, in order."""
    every = ops()
    for name, (call, make) in every.items():
        yield lambda n=name, c=call, m=make: capture(n, c, m)
    four = torch.ones(4, device=DEVICE)
    add_us = host_microseconds(lambda: torch.add(four, four))
    for name, (call, make) in every.items():
        if not name.endswith("M=200"):  # two kernels, one of them torch's
            yield lambda n=name, c=call, m=make: host(n, c, m, add_us)
    for elements in LATENCIES:
        yield lambda e=elements: latency(e)


def _wall(call: Callable[[], object], rounds: int = 51) -> float:
    call()
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        times.append((time.perf_counter() - begin) * 1e6)
    return median(times)
