"""Memory of this process: how much is resident, and giving back what is free."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from octavo.errors import OctavoError
from octavo.storage import system

_STATUS = Path("/proc/self/status")


def resident() -> int:
    """Return the bytes of memory that the process holds now, or :func:`peak` where the system tells only that."""
    return _status("VmRSS") or peak()


def peak() -> int:
    """Return the most bytes of memory that the process has held. Raises OctavoError where the system does not tell."""
    if nbytes := _status("VmHWM"):
        return nbytes
    resource = system.optional("resource")
    if resource is None:
        raise OctavoError("this system does not tell the memory of a process; measure it on Linux or macOS")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024  # bytes there, KiB elsewhere


def forget_peak() -> None:
    """Let the peak begin anew, where the system can do that."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return  # the peak then is that of the whole process, imports included


def bound_growth(nbytes: int) -> None:
    """Let this process grow by so many bytes at most; what needs more gets a MemoryError.

    Does nothing where the system does not tell or bound the size of a process.
    """
    resource, size = system.optional("resource"), _status("VmSize")
    if resource is not None and size is not None:
        with contextlib.suppress(OSError, ValueError):  # a lower limit is there already
            resource.setrlimit(resource.RLIMIT_AS, (size + nbytes, size + nbytes))


def give_back() -> None:
    """Give freed memory back to the system: glibc holds on to it, and what is needed next may not fit into it."""
    if (trim := _trim()) is not None:
        trim(0)


@cache
def _trim() -> Callable[[int], int] | None:
    """Return ``malloc_trim`` of glibc; None where the process has another allocator."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None


def _status(name: str) -> int | None:
    """Return a line of /proc/self/status in bytes; None where the system has no such file."""
    if not _STATUS.exists():
        return None
    for line in _STATUS.read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return None
