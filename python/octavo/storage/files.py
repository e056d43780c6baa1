"""Files that are written whole or not at all: beside their place, flushed to the disk, then renamed.

Every file that Octavo writes from Python goes through :func:`whole`; whole folders through
:mod:`octavo.storage.folders`. The next write into a folder removes what killed processes left in it,
``.NAME.PID-RANDOM.octavo.tmp`` (:func:`sweep`).
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import secrets
import shutil
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Literal

from octavo.errors import ContainerError, DTypeError
from octavo.storage import locks, system

if TYPE_CHECKING:
    from typing_extensions import Buffer
TEMPORARY, ASIDE = ".octavo.tmp", ".octavo.old"
"""How names end: of a file or folder that is being written; of a folder that was put aside for its successor."""

_OURS = re.compile(r"\.(?P<name>.+)\.\d+-[0-9a-f]{8}\.octavo\.(?P<kind>tmp|old)", re.DOTALL)
_STREAMS = re.compile(r"/dev/(stdin|stdout|stderr|fd/.*)|/proc/.*")
_NATIVE = re.compile(r"\(os error (\d+)\)(?: at path \".*\")?$", re.DOTALL)
_LONGEST = 200  # bytes of a name that a temporary one repeats; file systems allow 255 in all


def path_text(path: str | os.PathLike[str]) -> str:
    """Return a path as text. Raises ContainerError for NUL and half of a surrogate pair, which no name in a folder
    holds, and DTypeError for what is no path.
    """
    if not isinstance(path, str | os.PathLike):
        raise DTypeError(f"path is a {type(path).__name__}; accepted is a text or a path")
    text = os.fspath(path)
    if "\0" in text:
        raise ContainerError(f"path {text!a}: a path holds no NUL")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise ContainerError(
            f"{text!a}: half of a surrogate pair, which no name of a file or folder holds; write the character"
        ) from None
    return text


@contextmanager
def whole(path: str | os.PathLike[str], mode: Literal["wb", "w"] = "wb") -> Iterator[IO[Any]]:
    """Give a new file that takes the name ``path`` at the end of the ``with``, and is removed after an error.

    ``mode``: ``wb``, or ``w`` for text in UTF-8. A file that is there keeps its content until then, and its mode and
    owner; others get those of the umask. Symbolic links are followed: their target is replaced. A device, pipe or
    standard stream (``/dev/stdout``) is written directly.

    Raises OSErrors that name ``path``, of the disk, too: a write that did not fit is never left to a reader.
    """
    if mode not in ("wb", "w"):
        raise ValueError(f"mode is {mode!r}; accepted are 'wb' and 'w'")
    path = path_text(path)
    try:
        old = os.stat(path)
    except OSError:
        old = None
    if old is not None and stat.S_ISDIR(old.st_mode):
        raise IsADirectoryError(21, "Is a directory", path)
    if _STREAMS.fullmatch(os.path.abspath(path)) or (old is not None and not stat.S_ISREG(old.st_mode)):
        with _opened(os.open(path, system.flags("WRONLY", "CREAT", "TRUNC"), 0o666), path, mode) as file:
            yield file
        return
    target = os.path.realpath(path)
    sweep(os.path.dirname(target))
    tried: list[str] = []
    descriptor = None
    try:
        with _named(path):
            descriptor = _create(target, tried)
        stage = tried[-1]
        # The lock lasts until the file has its name: closing comes first, since a network disk may refuse only then.
        with _opened(os.dup(descriptor), path, mode) as file:
            yield file
        with _named(path):
            if old is not None and system.POSIX:
                _keep_owner(descriptor, old)
            os.fsync(descriptor)
            descriptor = system.close_before_renaming(descriptor)
            os.replace(stage, target)
    except BaseException:
        descriptor = system.close_before_renaming(descriptor)
        for name in tried:
            with contextlib.suppress(OSError):
                os.unlink(name)
        raise
    finally:
        system.close(descriptor)
    sync(os.path.dirname(target))


def write(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file whole or not at all, text in UTF-8. Raises as :func:`whole`."""
    with whole(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def appended(path: str | os.PathLike[str], mode: Literal["wb", "w"] = "wb") -> IO[Any]:
    """Open a file for more at its end, made if it is missing. Its OSErrors name ``path``, those of a full disk, too."""
    path = path_text(path)
    return _opened(os.open(path, system.flags("WRONLY", "APPEND", "CREAT"), 0o666), path, mode)


@contextmanager
def native(path: str | os.PathLike[str]) -> Iterator[None]:
    """Give OSErrors of the core, which have a text alone, their number and the name of the file."""
    try:
        yield
    except OSError as error:
        match = _NATIVE.search(str(error))
        if error.errno is not None or match is None:
            raise
        number = int(match[1])
        if not system.POSIX:  # a number of Windows, which Python translates, and the text that came with it
            raise OSError(None, str(error)[: match.start()].strip(), os.fspath(path), number) from None
        raise OSError(number, os.strerror(number), os.fspath(path)) from None


def sync(folder: str | os.PathLike[str]) -> None:
    """Flush a folder to the disk, so that a rename in it outlives a power failure, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = system.open_folder(folder)
        try:
            if descriptor is not None:
                os.fsync(descriptor)
        finally:
            system.close(descriptor)


# --- what killed processes leave --------------------------------------------------------------------------------------


def temporary(target: str | os.PathLike[str], ending: str = TEMPORARY) -> str:
    """Return a new path beside ``target`` by which :func:`sweep` knows what it is."""
    folder, name = os.path.split(os.fspath(target))
    short = os.fsencode(name)[:_LONGEST].decode("utf-8", "ignore") or "x"
    return os.path.join(folder, f".{short}.{os.getpid()}-{secrets.token_hex(4)}{ending}")


def sweep(folder: str | os.PathLike[str]) -> None:
    """Remove temporary files and folders that dead processes left in ``folder``; those of living ones are locked.

    A folder put aside whose successor never came gets its name back. What cannot be removed is left.
    """
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name.startswith(".") and (match := _OURS.fullmatch(name)):
                path = os.path.join(folder, name)
                back = os.path.join(folder, match["name"]) if match["kind"] == "old" else None
                _remove_if_dead(path, back)


def sweep_native(path: str | os.PathLike[str]) -> None:
    """Remove what killed processes left of the container at ``path``, which the native writer locks by no name.

    A lease on a file is granted only where no process has it open, as its writer has from the first moment.
    """
    folder, name = os.path.split(os.path.realpath(path))
    ours = re.compile(rf"\.{re.escape(name[:32])}\.[0-9A-Za-z]{{6}}\.tmp")
    with contextlib.suppress(OSError):
        for entry in os.listdir(folder):
            if entry.startswith(".") and ours.fullmatch(entry):
                _unlink_unless_open(os.path.join(folder, entry))


def _remove_if_dead(path: str, back: str | None) -> None:
    with contextlib.suppress(OSError):
        descriptor: int | None = os.open(path, system.READ_ITSELF)
        try:
            assert descriptor is not None
            if locks.take(descriptor) is not True or not locks.is_at(path, descriptor):
                return
            if back is not None and not os.path.lexists(back):
                os.rename(path, back)
            elif stat.S_ISDIR(os.fstat(descriptor).st_mode):
                shutil.rmtree(path, ignore_errors=True)
            else:
                descriptor = system.close_before_renaming(descriptor)
                os.unlink(path)
        finally:
            system.close(descriptor)


def _unlink_unless_open(path: str) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, system.READ_ITSELF)
        try:
            fcntl = system.fcntl
            if stat.S_ISREG(os.fstat(descriptor).st_mode) and hasattr(fcntl, "F_SETLEASE"):  # Linux
                # Who opens it meanwhile makes the kernel send a signal; SIGIO, the usual one, would end this process.
                fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
                fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
                os.unlink(path)
        finally:
            os.close(descriptor)


# --- one file ---------------------------------------------------------------------------------------------------------


class _Raw(io.FileIO):
    """A file whose errors name the path that its user gave."""

    path = ""

    def write(self, data: Buffer, /) -> int:
        with _named(self.path):
            return super().write(data)

    def flush(self) -> None:
        with _named(self.path):
            super().flush()

    def close(self) -> None:
        with _named(self.path):
            super().close()


def _opened(descriptor: int, path: str, mode: str) -> IO[Any]:
    raw = _Raw(descriptor, "wb")
    raw.path = path
    binary = io.BufferedWriter(raw, 1 << 16)
    return binary if mode == "wb" else io.TextIOWrapper(binary, encoding="utf-8", newline="\n")


def _create(target: str, tried: list[str]) -> int:
    """Make and lock a file beside ``target``, the last of ``tried``; another one where somebody swept it before.

    A name is in ``tried`` before the file is there: an interrupt at any moment leaves none that nobody removes.
    """
    while True:
        tried.append(temporary(target))
        descriptor = os.open(tried[-1], system.flags("RDWR", "CREAT", "EXCL"), 0o666)
        if locks.take(descriptor) is not False and locks.is_at(tried[-1], descriptor):
            return descriptor
        os.close(descriptor)


def _keep_owner(descriptor: int, old: os.stat_result) -> None:
    now = os.fstat(descriptor)
    if (now.st_uid, now.st_gid) != (old.st_uid, old.st_gid):
        with contextlib.suppress(OSError):  # only root may
            os.fchown(descriptor, old.st_uid, old.st_gid)  # noqa: TID251
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))  # noqa: TID251


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Make OSErrors name the path that was given, not a temporary one or none."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename == path:
            raise
        raise OSError(error.errno, error.strerror, path) from None  # Python picks the class by the number
