"""Claims of workers on trials: who works on one, until when, and whether a claim still stands.

A claim ends with its deadline, which its worker moves on while it lives; on one machine it ends with the process.
Deadlines are compared by the clocks of the machines, so those of one study must agree within the lease.
"""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path
from typing import Any

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
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{os.uname().nodename} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return os.uname().nodename


def _begun(process: Any) -> str | None:
    """Return when a process of this machine began, in clock ticks; None where there is none, or it is a zombie."""
    try:
        # The name of the program, which may hold spaces and brackets, ends at the last bracket.
        fields = Path(f"/proc/{int(process)}/stat").read_text().rpartition(")")[2].split()
    except (OSError, TypeError, ValueError):
        return None
    return None if fields[0] in ("Z", "X") else fields[19]
