"""Resident memory of this process, for probes that run in a process of their own."""

from __future__ import annotations

import resource
from pathlib import Path

_STATUS = Path("/proc/self/status")


def resident() -> int:
    """Return the bytes of memory that the process holds now."""
    return _status("VmRSS") or peak()


def peak() -> int:
    """Return the most bytes of memory that the process has held."""
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def forget_peak() -> None:
    """Let the peak begin anew, where the system can do that."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # the peak then is that of the whole process, imports included


def _status(name: str) -> int | None:
    """Return a line of /proc/self/status in bytes; None where the system has no such file."""
    if not _STATUS.exists():
        return None
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None
