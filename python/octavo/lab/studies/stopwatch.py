"""Timing for the studies of speed: callers take turns, the device is synchronized, medians are reported."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median

import torch

from octavo.cuda.device_names import best_device, torch_device
from octavo.cuda.machine import computer, versions
from octavo.errors import SettingError

BURST_S = 0.02
"""Time that a burst of calls takes at least, so that a clock and a wait for the device do not count."""
MOST = 50  # calls of a burst
_LONG_S = 1.0


def device_of(text: str | None) -> torch.device:
    """Return a device by name; None: CUDA where there is a GPU, else the CPU. Raises as :func:`torch_device`."""
    return best_device() if text is None else torch_device(text)


def chosen_device(text: str | None) -> torch.device:
    """Return :func:`device_of` a name, and make it torch's current GPU where it is one: training runs on that."""
    device = device_of(text)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def devices_of(text: str | None) -> dict[str, torch.device]:
    """Return one or two devices by name, of names with a comma between; None: :func:`device_of`.

    Raises SettingError for more, and as :func:`torch_device`.
    """
    if text is None:
        device = device_of(None)
        return {device.type: device}
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not 1 <= len(names) <= 2:
        raise SettingError(f"--device {text}: accepted are one device, or two to compare, such as cpu,cuda")
    return {name: torch_device(name) for name in names}


def machine(device: torch.device) -> dict[str, str | int]:
    """Return what decides times and last digits beside the code: device, torch and threads."""
    found, made = computer(device), versions()
    return {
        "device": device.type,
        "name": found["gpu"] or f"{found['machine']} {found['cpu']}",
        "torch": str(made["torch"]),
        "python": str(made["python"]),
        "threads": found["threads"],
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


def timed(call: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of a call: of a burst of calls in a row, after two that nobody counts.

    A call of more than a second is made twice, and the second one counts.
    """
    once(call, device)
    second = once(call, device)
    if second > _LONG_S:
        return second
    count = max(1, min(MOST, round(BURST_S / max(second, 1e-9))))
    return once(partial(_repeat, call, count), device) / count


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
