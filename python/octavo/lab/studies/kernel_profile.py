"""The dominant kernel of a call, by torch's profiler: on a GPU a CUDA kernel, on the CPU an operator."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from torch.autograd import profiler

from octavo.lab.studies.stopwatch import wait

CALLS = 7
"""Calls that are profiled, after one that is not; the median of a kernel's times counts, so that a pause does not."""


def dominant_kernel(call: Callable[[], object], device: torch.device) -> tuple[str, float]:
    """Return the kernel that takes most of a call's time on its device, and its share, 0 to 1.

    Time of a kernel is its own: without the operators that it calls.
    """
    on_gpu = device.type == "cuda"
    call()
    wait(device)
    calls = []
    for _ in range(CALLS):
        with _silent(), profiler.profile(use_device="cuda" if on_gpu else None) as profiled:
            call()
            wait(device)
        calls.append(kernel_times(profiled.function_events or (), on_gpu=on_gpu))
    names = {name for times in calls for name in times}
    return largest_share({name: median(times.get(name, 0.0) for times in calls) for name in names})


@contextmanager
def _silent() -> Iterator[None]:
    """Drop lines that the profiler's C++ prints to standard error at every start and stop."""
    stderr = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def kernel_times(events: Iterable[Any], *, on_gpu: bool) -> dict[str, float]:
    """Return microseconds by name of a profiler's events: of kernels on a GPU, or of operators on the CPU."""
    kind = torch.autograd.DeviceType.CUDA if on_gpu else torch.autograd.DeviceType.CPU
    times: Counter[str] = Counter()
    for event in events:
        if event.device_type == kind and not getattr(event, "is_user_annotation", False):
            times[event.name] += event.time_range.elapsed_us() if on_gpu else event.self_cpu_time_total
    return dict(times)


def largest_share(times: Mapping[str, float]) -> tuple[str, float]:
    """Return the name with most of the time and its share; an empty name and 0 where nothing took time."""
    total = sum(times.values())
    if not total > 0:
        return "", 0.0
    name = max(times, key=lambda one: times[one])
    return name, times[name] / total


def short_name(kernel: str) -> str:
    """Return a kernel's name without its result, template arguments and parameters."""
    plain = kernel.replace("(anonymous namespace)::", "").removeprefix("void ")
    return re.split(r"[<(]", plain, maxsplit=1)[0].strip() or kernel
