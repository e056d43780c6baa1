"""Child processes that end with their parent, however it ends: no ``kill -9`` leaves one computing on.

A child started by :func:`command` asks the kernel for a SIGKILL when its parent dies, and besides watches a pipe whose
other end only the parent has: the kernel's promise is about the thread that started the child, and some sandboxes have
none.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import runpy
import signal
import sys
import threading
from collections.abc import Sequence

from octavo.storage import system

_PR_SET_PDEATHSIG = 1


def command(arguments: Sequence[str], pipe: int | None = None) -> list[str]:
    """Return the command line of a child of this process that runs Python with ``arguments`` and ends with it.

    ``arguments``: a script or ``-m MODULE``, and what follows. ``pipe``: the reading end of a pipe, passed on to the
    child (``pass_fds``), whose other end is closed where this process ends; None: the kernel's signal has to do.
    """
    watched = "-" if pipe is None else str(pipe)
    return [sys.executable, "-m", "octavo.storage.children", str(os.getpid()), watched, *arguments]


def end_with_parent(parent: int | None = None, pipe: int | None = None) -> None:
    """Let this process be killed when its parent ends. ``parent``: its id, in case it has ended already."""
    with contextlib.suppress(OSError, AttributeError, TypeError):  # not Linux: the pipe does it
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # noqa: TID251
    if parent is not None and os.getppid() != parent:
        os._exit(1)
    if pipe is not None:
        threading.Thread(target=_watch, args=(pipe,), name="octavo-parent", daemon=True).start()


def _watch(pipe: int) -> None:
    while os.read(pipe, 1):
        pass
    system.end_at_once()


def _main() -> None:
    """Run ``PARENT PIPE (SCRIPT | -m MODULE) [ARGUMENT]...`` as Python would."""
    parent, pipe, *arguments = sys.argv[1:]
    end_with_parent(int(parent), None if pipe == "-" else int(pipe))
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    _main()
