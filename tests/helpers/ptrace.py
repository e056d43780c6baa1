"""Kill a process at its n-th change of the file system, whoever asks the kernel for it: Python, Rust or torch.

The work runs in a forked child whose main thread is traced: the kernel stops it before every system call. ``SIGKILL`` at
the n-th one that changes files leaves exactly what the n - 1 before it did.
"""

import ctypes
import os
import platform
import signal
import sys
import traceback

import pytest

TRACEME, PEEKUSER, SYSCALL, SETOPTIONS = 0, 3, 24, 0x4200
OPTIONS = 1 | 1 << 20  # system calls are told from signals; the child dies with this process
# Registers of x86-64 in struct user, in bytes.
NUMBER, SECOND, THIRD = 15 * 8, 13 * 8, 12 * 8
OPENS = {2: SECOND, 257: THIRD}  # open, openat: where the flags are
CHANGES = {
    1, 18, 20, 296, 40, 326,  # write, pwrite64, writev, pwritev, sendfile, copy_file_range
    74, 75, 76, 77, 285,  # fsync, fdatasync, truncate, ftruncate, fallocate
    82, 264, 316, 86, 265, 88, 266,  # rename, renameat, renameat2, link, linkat, symlink, symlinkat
    83, 258, 84, 87, 263, 90, 91, 268,  # mkdir, mkdirat, rmdir, unlink, unlinkat, chmod, fchmod, fchmodat
}  # fmt: skip
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def available():
    """Whether this machine lets a process trace its child."""
    return platform.machine() == "x86_64" and sys.platform == "linux" and run(lambda: os._exit(0))[1] == 0


def run(work, kill_at=None):
    """Run ``work`` in a child; SIGKILL it before change ``kill_at``, from 1. Return the changes seen, and its status.

    The status is as ``waitstatus_to_exitcode`` has it: 0 where the work was done, -9 where it was killed.
    """
    child = os.fork()
    if child == 0:
        try:
            libc().ptrace(TRACEME, 0, None, None)
            os.kill(os.getpid(), signal.SIGSTOP)
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    os.waitpid(child, 0)
    libc().ptrace(SETOPTIONS, child, None, OPTIONS)
    seen, entering, passed = 0, True, 0
    while True:
        libc().ptrace(SYSCALL, child, None, passed)
        _, status = os.waitpid(child, 0)
        if not os.WIFSTOPPED(status):
            return seen, os.waitstatus_to_exitcode(status)
        passed = 0
        if os.WSTOPSIG(status) != signal.SIGTRAP | 0x80:
            passed = os.WSTOPSIG(status)
            continue
        if entering and changes(child):
            seen += 1
            if seen == kill_at:
                os.kill(child, signal.SIGKILL)
                return seen, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        entering = not entering


def sweep(work, check, *, prepare=lambda: None, most=None):
    """Kill ``work`` before every change, or ``most`` of them spread over all; after each kill call ``check``.

    ``prepare`` comes before each. Return how often it was killed.
    """
    prepare()
    count, status = run(work)
    assert status == 0 and count > 0
    killed, some = 0, min(most or count, count)
    for moment in sorted({1 + number * (count - 1) // max(1, some - 1) for number in range(some)}):
        prepare()
        _, status = run(work, moment)
        assert status in (0, -9), f"moment {moment} of {count}: status {status}"
        if status == -9:
            killed += 1
            check()
    return killed


def changes(child):
    """Whether the system call that the child is about to make changes files."""
    number = peek(child, NUMBER)
    return number in CHANGES or (number in OPENS and peek(child, OPENS[number]) & WRITING != 0)


def peek(child, offset):
    return libc().ptrace(PEEKUSER, child, offset, None)


def libc():
    library = ctypes.CDLL(None)
    library.ptrace.restype = ctypes.c_long
    library.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    return library


needed = pytest.mark.skipif(
    "not __import__('helpers.ptrace', fromlist=['available']).available()", reason="no process may be traced here"
)
