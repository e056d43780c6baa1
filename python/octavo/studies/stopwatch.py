"""Timing for the studies of speed: callers take turns, the device is synchronized, medians are reported."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median

import torch

from octavo.errors import CudaUnavailableError, SettingError

BURST_S = 0.02
"""Time that a burst of calls takes at least, so that a clock and a wait for the device do not count."""
MOST = 50  # calls of a burst


def device_of(text: str | None) -> torch.device:
    """Return a device by name, ``cpu`` or ``cuda``; None: CUDA where there is a GPU, else the CPU.

    Raises SettingError for another name, CudaUnavailableError for ``cuda`` without a GPU that torch can use.
    """
    if text is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if text not in ("cpu", "cuda"):
        raise SettingError(f"--device: {text!r}; accepted are cpu and cuda")
    if text == "cuda" and not torch.cuda.is_available():
        raise CudaUnavailableError("--device cuda: torch finds no GPU here; octavo doctor tells what is missing")
    return torch.device(text)


def machine(device: torch.device) -> dict[str, str | int]:
    """Return what decides times beside the code: device, torch and threads."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    else:
        name = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    return {
        "device": device.type,
        "name": name,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
    }


def wait(device: torch.device) -> None:
    """Wait until the device has done all work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def once(call: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of one call, until its result is there."""
    wait(device)
    begin = time.perf_counter()
    call()
    wait(device)
    return time.perf_counter() - begin


def in_turn(calls: Mapping[str, Callable[[], object]], rounds: int, device: torch.device) -> dict[str, float]:
    """Return the median seconds of each call. Every round times each once, so that a drift of the machine meets all.

    A timing is of a burst of calls in a row, after one that nobody times.
    """
    bursts = {}
    for name, call in calls.items():
        once(call, device)
        bursts[name] = max(1, min(MOST, round(BURST_S / max(once(call, device), 1e-9))))
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            count = bursts[name]
            seconds[name].append(once(partial(_repeat, call, count), device) / count)
    return {name: median(times) for name, times in seconds.items()}


def _repeat(call: Callable[[], object], count: int) -> None:
    for _ in range(count):
        call()
