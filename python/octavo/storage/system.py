"""What systems do differently, in one place: flags of opening, locks of open files, folders as descriptors.

Linux and macOS are POSIX. Windows has no ``fcntl``: a lock is that of a byte there (``msvcrt``), an open file can be
neither renamed nor removed, and a folder cannot be opened. Leftovers of killed processes that only a lock of a folder
or a lease would tell from work in progress stay there until somebody removes them.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import operator
import os
import signal
import time
from typing import Any


def optional(name: str) -> Any:
    """Return a module of the standard library that some systems lack; None there."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


fcntl: Any = optional("fcntl")
_msvcrt: Any = optional("msvcrt")

POSIX: bool = fcntl is not None
"""Whether open files can be renamed and removed, and folders opened and locked."""

_LOCKED_BYTE = 0x7FFF_0000  # far behind what is read of a file that is locked: Windows refuses others the byte itself
_POLL_S = 0.05
_ALWAYS = ("CLOEXEC", "NOINHERIT", "BINARY")  # no child inherits it; Windows translates ends of lines otherwise


def flags(*names: str) -> int:
    """Return the flags ``os.O_NAME`` for bytes as they are, without those that this system lacks."""
    return functools.reduce(operator.or_, (getattr(os, f"O_{name}", 0) for name in (*names, *_ALWAYS)))


READ = flags("RDONLY", "NONBLOCK")
"""To read a file, or find that it is none: opening a named pipe does not wait."""
READ_ITSELF = flags("RDONLY", "NONBLOCK", "NOFOLLOW")
"""The same, refusing a link."""


def open_folder(path: str | os.PathLike[str]) -> int | None:
    """Return a descriptor of a folder; None where the system has none. Raises OSErrors."""
    return os.open(path, flags("RDONLY", "DIRECTORY")) if POSIX else None


def lock(descriptor: int, *, wait: bool) -> bool | None:
    """Lock an open file, until it is closed. True: held now; False: another holds it; None: there are no locks here."""
    try:
        if POSIX:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            return True
        if _msvcrt is None:
            return None
        while not _lock_byte(descriptor):
            if not wait:
                return False
            time.sleep(_POLL_S)
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    return True


def _lock_byte(descriptor: int) -> bool:
    place = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
    try:
        _msvcrt.locking(descriptor, _msvcrt.LK_NBLCK, 1)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EDEADLK):
            return False
        raise
    finally:
        os.lseek(descriptor, place, os.SEEK_SET)
    return True


def close(descriptor: int | None) -> None:
    """Close a descriptor, if there is one."""
    if descriptor is not None:
        os.close(descriptor)


def close_before_renaming(descriptor: int | None) -> int | None:
    """Return the descriptor, or None after closing it where an open file can be neither renamed nor removed."""
    if POSIX:
        return descriptor
    close(descriptor)
    return None


def cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # noqa: TID251


def end_at_once() -> None:
    """End this process as SIGKILL does, where there is no such signal, too: nothing is cleaned up."""
    with contextlib.suppress(AttributeError):
        os.kill(os.getpid(), signal.SIGKILL)  # noqa: TID251
    os._exit(137)
