"""Locks that die with their process: the system gives them back however a process ends (flock; a byte on Windows).

:class:`FolderLock` keeps a second run out of a folder; :func:`take` is the lock of one open file, by which
:mod:`octavo.storage.files` and :mod:`octavo.storage.folders` tell what a dead process left from what a living one is
writing.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import warnings
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from octavo.errors import LockedError, OctavoError
from octavo.storage import system
from octavo.storage.reading import parse_json

NAME = ".octavo.lock"
# Seconds that the processes of a run that was killed have to be gone, before the next one is refused.
_PATIENCE, _POLL = 1.0, 0.05
_held: dict[int, tuple[str, int]] = {}
"""Folder and thread by descriptor. A forked child closes its copies, or the lock would outlive its owner."""


def take(descriptor: int, *, wait: bool = False) -> bool | None:
    """Lock an open file or folder. True: held now; False: another holds it; None: this file system has no locks."""
    return system.lock(descriptor, wait=wait)


def is_at(path: str | os.PathLike[str], descriptor: int) -> bool:
    """Whether an open file is still the one of that path: it may have been removed before it was locked."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def check(folder: Path | str, **names: str) -> None:
    """Raise LockedError if another process works in ``folder``; nothing is made. ``names``: as :class:`FolderLock`."""
    if (Path(folder) / NAME).exists():
        with FolderLock(folder, **names):
            pass


def hold(folder: Path | str, **names: str) -> AbstractContextManager[object]:
    """Return a lock of the folder; one that does nothing where the caller's own thread has it already."""
    mine = (os.path.realpath(folder), threading.get_ident())
    return nullcontext() if mine in _held.values() else FolderLock(folder, **names)


class FolderLock:
    """A folder that one process works in: ``with FolderLock(folder)``; made if it is missing.

    The file ``.octavo.lock`` in it names process, host and time, and is removed at the end. One that a killed process
    left is no obstacle: the lock itself is the kernel's. Processes that only read take no lock.
    """

    def __init__(self, folder: Path | str, *, label: str = "run", option: str = "folder") -> None:
        """Name the folder; nothing is locked yet. ``label`` works there; ``option`` names another folder."""
        self.folder = Path(folder)
        self._label, self._option = label, option
        self._descriptor: int | None = None
        self._owner = 0

    def __enter__(self) -> FolderLock:
        """Take the lock. Raises LockedError within a second if another process has it; OSErrors of the folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path, begin = self.folder / NAME, time.monotonic()
        while self._descriptor is None:
            descriptor = os.open(path, system.flags("RDWR", "CREAT"), 0o666)
            try:
                is_taken = take(descriptor)
                if is_taken is False:
                    if time.monotonic() - begin > _PATIENCE:
                        raise LockedError(self._refusal(descriptor))
                    time.sleep(_POLL)
                    continue
                if is_taken is None:
                    message = f"{self.folder}: this file system has no locks; a second {self._label} is not refused"
                    warnings.warn(message, stacklevel=2)
                if is_at(path, descriptor):  # else its last owner has just removed it
                    _describe(descriptor)
                    self._descriptor, self._owner = descriptor, os.getpid()
                    _held[descriptor] = (os.path.realpath(self.folder), threading.get_ident())
            finally:
                if self._descriptor is None:
                    os.close(descriptor)
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the file and give the lock back; in a forked child nothing, for the lock is its parent's."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None or self._owner != os.getpid():
            return
        _held.pop(descriptor, None)
        descriptor = system.close_before_renaming(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(self.folder / NAME)
        system.close(descriptor)

    def _refusal(self, descriptor: int) -> str:
        try:
            record = parse_json(_text(descriptor), NAME)
            who = f"process {record['pid']} on {record['host']}, since {record['since']}"
        except (OSError, OctavoError, KeyError):
            who = "it has not said which"
        return (
            f"{self.folder}: another process is at work on this {self._label} ({who}); wait for it, end it, or give "
            f"another {self._option}"
        )


def _describe(descriptor: int) -> None:
    """Write who holds the lock: a record for people, whose loss is no reason to stop."""
    record = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, (json.dumps(record) + "\n").encode())


def _text(descriptor: int) -> str:
    os.lseek(descriptor, 0, os.SEEK_SET)
    return os.read(descriptor, 4096).decode(errors="replace")


def _close_in_child() -> None:
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)  # noqa: TID251
