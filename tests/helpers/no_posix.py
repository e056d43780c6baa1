"""A system without POSIX, inside one process: what Windows lacks or refuses is lacking or refused for modules of Octavo.

``install()`` goes first in a fresh interpreter. Modules of ``octavo`` then import an ``os``, ``select`` and ``signal``
without the names below and neither ``fcntl`` nor ``resource``; ``msvcrt`` locks a byte. Open files can be neither renamed
nor removed, folders not opened, and only writable files flushed. Other packages see the system as it is.
"""

import builtins
import errno
import fcntl
import importlib
import os
import select
import signal
import struct
import sys
import types

MODULES = ("fcntl", "resource", "termios", "pwd", "grp")
LACKING = {
    "os": "O_NONBLOCK O_CLOEXEC O_NOFOLLOW O_DIRECTORY fork register_at_fork fchmod fchown pread pwrite uname getloadavg "
    "sched_getaffinity sched_setaffinity killpg get_blocking set_blocking getuid geteuid getpgid setsid mkfifo sysconf "
    "statvfs posix_fadvise getrusage wait4 WNOHANG",
    "select": "poll POLLIN POLLOUT epoll",
    "signal": "SIGKILL SIGHUP SIGURG SIGUSR1 SIGALRM alarm pthread_sigmask",
}
_OFD_SETLK = 37  # a lock of the open file, as on Windows, not of the process


def install() -> None:
    """Take POSIX from the modules of Octavo that are imported from now on."""
    found = {module.__name__: _without(module, LACKING[module.__name__].split()) for module in (os, select, signal)}
    for function in ("open", "replace", "rename", "unlink", "fsync", "kill"):
        setattr(found["os"], function, globals()[f"_{function}"])
    msvcrt = types.ModuleType("msvcrt")
    msvcrt.LK_NBLCK, msvcrt.locking = 2, _locking
    plain, by_name = builtins.__import__, importlib.import_module

    def importing(name, globals=None, *arguments, **options):
        if str((globals or {}).get("__name__", "")).startswith("octavo"):
            if name in MODULES:
                raise ImportError(f"No module named {name!r}", name=name)
            if name in found:
                return found[name]
        return plain(name, globals, *arguments, **options)

    def named(name, package=None):
        if sys._getframe(1).f_globals["__name__"].startswith("octavo"):
            if name in MODULES:
                raise ImportError(f"No module named {name!r}", name=name)
            if name == "msvcrt":  # for nobody else: by it the standard library knows Windows
                return msvcrt
        return by_name(name, package)

    builtins.__import__, importlib.import_module = importing, named


def _without(module, names):
    class Lacking(types.ModuleType):
        def __getattr__(self, name):
            if name in names:
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            return getattr(module, name)

        def __dir__(self):
            return [name for name in dir(module) if name not in names]

    return Lacking(module.__name__)


def _refuse_open(path):
    """Raise as Windows does where this process has the file open, or one in the folder."""
    place = os.path.realpath(path)
    for number in os.listdir("/proc/self/fd"):
        try:
            opened = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if opened == place or opened.startswith(f"{place}/"):
            raise PermissionError(errno.EACCES, "The file is used by this process", os.fspath(path))


def _open(path, flags, mode=0o777, **options):
    if os.path.isdir(path):
        raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
    return os.open(path, flags, mode, **options)


def _replace(source, place):
    _refuse_open(source)
    _refuse_open(place)
    os.replace(source, place)


def _rename(source, place):
    _refuse_open(source)
    if os.path.lexists(place):
        raise FileExistsError(errno.EEXIST, "File exists", os.fspath(place))
    os.rename(source, place)


def _unlink(path):
    _refuse_open(path)
    os.unlink(path)


def _fsync(descriptor):
    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, "Bad file descriptor")
    os.fsync(descriptor)


def _kill(process, number):
    raise AssertionError(f"os.kill({process}, {number}) ends a process on Windows, whatever the number")


def _locking(descriptor, mode, count):
    place = os.lseek(descriptor, 0, os.SEEK_CUR)
    # Linux locks what is read only for readers, which a writer's lock refuses as well.
    is_read = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    lock = struct.pack("hhqqi4x", fcntl.F_RDLCK if is_read else fcntl.F_WRLCK, os.SEEK_SET, place, count, 0)
    try:
        fcntl.fcntl(descriptor, _OFD_SETLK, lock)
    except BlockingIOError:
        raise PermissionError(errno.EACCES, "Permission denied") from None
