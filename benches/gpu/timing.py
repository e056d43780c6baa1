"""Clocks of a GPU and the yardsticks of a run: COPY, READ, MM and LIN."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import Tensor
from torch.nn.functional import linear

Call = Callable[[], object]
DEVICE = "cuda"
REPLAYS = 50
ROTATE = 160 * 10**6
"""Bytes that calls walk through before they meet the same memory again; or three times the second cache."""
MOST_CALLS = 512


def rotation(nbytes: int) -> int:
    """Return how many copies of so many bytes make calls read and write memory and not the second cache."""
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    return max(2, min(MOST_CALLS, -(-max(ROTATE, 3 * cache) // max(nbytes, 1))))


def captured(calls: Sequence[Call]) -> torch.cuda.CUDAGraph:
    """Return calls as a graph. They ran once before: kernels are loaded and caches of plans are warm."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph


def microseconds(calls: Sequence[Call], replays: int = REPLAYS) -> float:
    """Return the median time of one of ``calls``, which follow each other in a graph that is replayed."""
    graph = captured(calls)
    for _ in range(3):
        graph.replay()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(replays)]
    for start, end in events:
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return median(start.elapsed_time(end) for start, end in events) * 1e3 / len(calls)


def host_microseconds(call: Call, calls: int = 200, rounds: int = 15) -> float:
    """Return the time that a call costs the host, the median of rounds, each of fewer calls than a queue holds."""
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - begin) / calls * 1e6)
        torch.cuda.synchronize()
    return median(times)


def poison(nbytes: int) -> None:
    """Fill the memory that torch gives to the next allocation of this size, so that unwritten results show."""
    torch.empty(nbytes, dtype=torch.uint8, device=DEVICE).fill_(0xA5)


def bits(tensor: Tensor) -> Tensor:
    """Return a tensor's bits as integers: NaN and -0 are compared too."""
    return tensor.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Tell whether two tensors, on any devices, hold the same bits; NaNs of any kind are one."""
    right = right.to(left.device)
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    if left.is_floating_point():
        both = left.isnan() & right.isnan()
        return bool(((bits(left) == bits(right)) | both).all())
    return torch.equal(left, right)


# --- yardsticks -----------------------------------------------------------------------------------------------------


def copy_rate(nbytes: int = 2**30) -> float:
    """COPY: bytes read and written a second by a large copy on the device."""
    pairs = [(torch.randint(256, (nbytes,), dtype=torch.uint8, device=DEVICE), torch.empty(nbytes, dtype=torch.uint8,
              device=DEVICE)) for _ in range(2)]  # fmt: skip
    return 2 * nbytes / (microseconds([lambda a=a, b=b: b.copy_(a) for a, b in pairs]) * 1e-6)


def read_rate(nbytes: int = 2**30) -> float:
    """READ: bytes a second of a stream that is only read; the faster of torch's sum and maximum of float32."""
    streams = [torch.randn(nbytes // 4, device=DEVICE) for _ in range(2)]
    sums, most = [lambda s=s: s.sum() for s in streams], [lambda s=s: s.amax() for s in streams]
    return nbytes / (min(microseconds(sums), microseconds(most)) * 1e-6)


def int_mm(m: int, n: int, k: int) -> dict[str, float | str]:
    """MM: microseconds of ``torch._int_mm`` in both layouts of the right side, or what it says where it refuses."""
    made = rotation(m * k + n * k + 4 * m * n)
    sides = [tuple(torch.randint(-128, 128, shape, dtype=torch.int8, device=DEVICE) for shape in ((m, k), (n, k)))
             for _ in range(min(made, 8))]  # fmt: skip
    found: dict[str, float | str] = {}
    for layout, turned in (("transposed", [(a, b.t()) for a, b in sides]),
                           ("rows", [(a, b.t().contiguous()) for a, b in sides])):  # fmt: skip
        try:
            found[layout] = microseconds([lambda a=a, b=b: torch._int_mm(a, b) for a, b in turned])
        except RuntimeError as error:
            found[layout] = str(error).splitlines()[0]
    return found


def fastest(found: dict[str, float | str]) -> float | None:
    """Return the faster layout's time; None where both were refused."""
    return min((value for value in found.values() if isinstance(value, float)), default=None)


def dense_linear(m: int, n: int, k: int) -> float:
    """LIN: microseconds of torch's bfloat16 linear."""
    x = torch.randn(m, k, device=DEVICE, dtype=torch.bfloat16)
    weights = [torch.randn(n, k, device=DEVICE, dtype=torch.bfloat16) for _ in range(rotation(2 * n * k))]
    return microseconds([lambda w=w: linear(x, w) for w in weights])
