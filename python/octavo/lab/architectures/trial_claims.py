"""Claims of workers on trials: who works on one, until when, and whether a claim still stands.

A claim ends with its deadline, which its worker moves on while it lives; on one machine it ends with the process.
Deadlines are compared by the clocks of the machines, so those of one study must agree within the lease.
"""

from __future__ import annotations

import os
import socket
import time
from functools import cache
from pathlib import Path
from typing import Any

from octavo.storage import system

_PROCESSES = Path("/proc/self").parent
LEASE_S = 120.0
"""Seconds that a claim stands without a sign of its worker."""


def claim(lease_s: float) -> dict[str, Any]:
    """Return a new claim of this process, or the present one with a later deadline."""
    return {
        "machine": _machine(),
        "process": os.getpid(),
        "begun": _begun(os.getpid()),
        "deadline": time.time() + lease_s,
    }


def stands(given: Any) -> bool:
    """Tell whether the worker of a claim may still be at work; what is no claim does not stand."""
    if not isinstance(given, dict):
        return False
    deadline = given.get("deadline")
    if not isinstance(deadline, int | float) or time.time() > deadline:
        return False
    if given.get("machine") != _machine():
        return True
    begun = _begun(given.get("process"))
    return begun is not None and begun == given.get("begun")


@cache
def _machine() -> str:
    """Return what tells machines and containers apart; process numbers mean the same inside it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _begun(process: Any) -> str | None:
    """Return when a process of this machine began, in clock ticks; None where there is none, or it is a zombie.

    ``there`` where the system does not tell more of a process; on Windows of any: a claim ends by its deadline there.
    """
    if not _PROCESSES.is_dir():
        try:
            if system.POSIX:
                os.kill(int(process), 0)  # on Windows this would be Ctrl-C
        except PermissionError:
            return "there"
        except (OSError, TypeError, ValueError, OverflowError):
            return None
        return "there"
    try:
        # The name of the program, which may hold spaces and brackets, ends at the last bracket.
        stat = (_PROCESSES / str(int(process)) / "stat").read_text(encoding="utf-8", errors="replace")
        fields = stat.rpartition(")")[2].split()
    except (OSError, TypeError, ValueError):
        return None
    return None if fields[0] in ("Z", "X") else fields[19]
