"""Folders that are written whole or not at all: filled beside their place, then exchanged with what is there.

At no moment does the folder hold files of two models: ``renameat2(RENAME_EXCHANGE)`` swaps both in one step. Where a
file system cannot, the old folder is put aside first, and gets its name back if its successor never comes.

Files that the user keeps in the folder stay: they are linked into the new one before the exchange. Names that belong to
what is written (``owned``) go with the old folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from octavo.storage import files, locks, system

_AT_FDCWD, _EXCHANGE = -100, 2
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM)
_WEIGHTS = ".safetensors"


@contextmanager
def whole(path: str | os.PathLike[str], *, owned: Collection[str] = (), overwrite: bool = True) -> Iterator[Path]:
    """Give a new folder that takes the place of ``path`` at the end of the ``with``, and is removed after an error.

    Of a folder that is there, files of the same name are replaced, those named in ``owned`` are removed, and all others
    kept, with its mode. ``overwrite=False`` refuses one that is not empty. A symbolic link is followed to its target.

    A mount point, the working directory, and a folder whose parent may not be written cannot be exchanged: the new
    folder is then made inside, the old weights go first and the new ones come last, so that what a kill leaves has no
    weights rather than another model's.

    Raises FileExistsError, NotADirectoryError and other OSErrors; what was there is then as it was.
    """
    target = os.path.realpath(files.path_text(path))
    parent = os.path.dirname(target)
    if os.path.lexists(target) and not os.path.isdir(target):
        raise NotADirectoryError(20, "Not a directory", os.fspath(path))
    _refuse_full(target, path, overwrite)
    try:
        os.makedirs(parent, exist_ok=True)
    except FileExistsError:  # a file is where the parent would be
        raise NotADirectoryError(20, "Not a directory", parent) from None
    inside = os.path.isdir(target) and _is_fixed(target, parent)
    place = os.path.join(target, os.path.basename(target)) if inside else target
    files.sweep(os.path.dirname(place))
    tried: list[str] = []
    descriptor = None
    try:
        descriptor = _create(place, tried)
        stage = tried[-1]
        yield Path(stage)
        for folder, _, names in os.walk(stage, topdown=False):
            for name in names:
                _sync_file(os.path.join(folder, name))
            files.sync(folder)
        _refuse_full(target, path, overwrite)
        if inside:
            _move_in(stage, target, owned)
        else:
            _replace(stage, target, owned, overwrite=overwrite)
    finally:
        _remove(tried, descriptor)
    files.sync(parent)


@contextmanager
def scratch() -> Iterator[Path]:
    """Give an empty folder among temporary files, which is removed at the end.

    One that a killed process left is removed by the next that is made, which :mod:`tempfile` does not do.
    """
    files.sweep(tempfile.gettempdir())
    tried: list[str] = []
    descriptor = None
    try:
        descriptor = _create(os.path.join(tempfile.gettempdir(), "scratch"), tried)
        os.chmod(tried[-1], stat.S_IRWXU)  # others may write there
        yield Path(tried[-1])
    finally:
        _remove(tried, descriptor)


def _refuse_full(target: str, path: str | os.PathLike[str], overwrite: bool) -> None:
    if not overwrite and os.path.isdir(target) and _others(target):
        raise FileExistsError(17, "File exists; overwrite=True replaces it", os.fspath(path))


def _others(folder: str) -> list[str]:
    """Return what a folder holds, without temporary names."""
    return [name for name in os.listdir(folder) if not name.endswith((files.TEMPORARY, files.ASIDE))]


def _is_fixed(target: str, parent: str) -> bool:
    """Whether a folder cannot be renamed, or should not be, since a shell stands in it."""
    with contextlib.suppress(OSError):
        if f"{os.getcwd()}{os.sep}".startswith(f"{target}{os.sep}"):
            return True
    return os.path.ismount(target) or not os.access(parent, os.W_OK | os.X_OK)


def _create(target: str, tried: list[str]) -> int | None:
    """Make and lock a folder beside ``target``, the last of ``tried``; another one where somebody swept it before.

    None: folders cannot be locked here, and nobody sweeps them.

    A name is in ``tried`` before the folder is there: an interrupt at any moment leaves none that nobody removes.
    """
    while True:
        tried.append(files.temporary(target))
        os.mkdir(tried[-1])  # not mkdtemp, whose folders only their owner may read
        with contextlib.suppress(FileNotFoundError):
            descriptor = system.open_folder(tried[-1])
            if descriptor is None:
                return None
            if locks.take(descriptor) is not False and locks.is_at(tried[-1], descriptor):
                return descriptor
            os.close(descriptor)


def _remove(tried: list[str], descriptor: int | None) -> None:
    """Remove the folder that was made last, unless it has taken the place of another by now; and those before it."""
    for name in tried:
        # An interrupted one has no descriptor yet, and nothing in it. Where folders have none, no exchange took place.
        if descriptor is None or name != tried[-1] or locks.is_at(name, descriptor):
            shutil.rmtree(name, ignore_errors=True)
    system.close(descriptor)


def _sync_file(path: str) -> None:
    if os.path.islink(path):
        return
    # Windows flushes only what may be written.
    descriptor = os.open(path, system.READ_ITSELF if system.POSIX else system.flags("RDWR"))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- beside -----------------------------------------------------------------------------------------------------------


def _replace(stage: str, target: str, owned: Collection[str], *, overwrite: bool) -> None:
    """Put ``stage`` where ``target`` is, or is not; what nobody replaced moves along."""
    while True:
        with contextlib.suppress(FileNotFoundError):
            os.chmod(stage, stat.S_IMODE(os.stat(target).st_mode))
        try:
            os.rename(stage, target)  # in one step where nothing or an empty folder is
            return
        except OSError as error:
            full = error.errno in (errno.ENOTEMPTY, errno.EEXIST)
            if not full or not overwrite:
                raise OSError(errno.EEXIST if full else error.errno, error.strerror, target) from None
        descriptor = system.open_folder(target)
        try:
            # Two writers of one folder take turns; and whoever sweeps sees that the old folder is still in use.
            if descriptor is not None:
                locks.take(descriptor, wait=True)
                if not locks.is_at(target, descriptor):
                    continue
            _carry(target, stage, owned)
            old = stage if _exchange(stage, target) else _put_aside(stage, target)
            _move_late(old, target, owned)
            shutil.rmtree(old, ignore_errors=True)
            return
        finally:
            system.close(descriptor)


def _put_aside(stage: str, target: str) -> str:
    """Rename the old folder, then the new one; :func:`octavo.storage.files.sweep` undoes the first alone."""
    old = files.temporary(target, files.ASIDE)
    os.rename(target, old)
    try:
        os.rename(stage, target)
    except BaseException:
        os.rename(old, target)
        raise
    return old


def _exchange(first: str, second: str) -> bool:
    """Swap two paths in one step. False where this system cannot; raises other OSErrors."""
    rename = _renameat2()
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), second)


@functools.cache
def _renameat2() -> ctypes._NamedFuncPointer | None:
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):  # TypeError: Windows has no library without a name
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return function


def _carry(old: str, new: str, owned: Collection[str]) -> None:
    """Link what ``old`` holds and ``new`` does not into ``new``: the same files, under both for a moment."""
    for name in _others(old):
        if name in owned:
            continue
        source, place = os.path.join(old, name), os.path.join(new, name)
        if os.path.lexists(place):
            _refuse_other_kind(source, place)
            if _is_folder(source):
                _carry(source, place, ())
        elif _is_folder(source):
            os.mkdir(place)
            _carry(source, place, ())
            shutil.copystat(source, place)
        else:
            _link(source, place)


def _refuse_other_kind(source: str, place: str) -> None:
    """Raise where one of an old path and a new one is a folder, and the other a file."""
    if _is_folder(source) != _is_folder(place):
        number = errno.EISDIR if _is_folder(source) else errno.ENOTDIR
        raise OSError(number, os.strerror(number), source)


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _link(source: str, place: str) -> None:
    try:
        os.link(source, place, follow_symlinks=False)
    except OSError:  # a file system without links, or a file of somebody else
        shutil.copy2(source, place, follow_symlinks=False)


def _move_late(old: str, new: str, owned: Collection[str]) -> None:
    """Move what came into ``old`` after it was carried over."""
    for name in _others(old):
        source, place = os.path.join(old, name), os.path.join(new, name)
        if name in owned:
            continue
        if not os.path.lexists(place):
            os.rename(source, place)
        elif _is_folder(source):
            _move_late(source, place, ())


# --- inside -----------------------------------------------------------------------------------------------------------


def _move_in(stage: str, target: str, owned: Collection[str]) -> None:
    """Move the files of ``stage`` into ``target``, which stays: old weights go before, new ones come last."""
    new_files = [
        os.path.relpath(os.path.join(folder, name), stage) for folder, _, names in os.walk(stage) for name in names
    ]
    for name in new_files:
        place = os.path.join(target, name)
        if os.path.lexists(place):
            _refuse_other_kind(place, os.path.join(stage, name))
    gone = [name for name in owned if name not in new_files] + [name for name in new_files if name.endswith(_WEIGHTS)]
    for name in sorted(gone, key=lambda name: not name.endswith(_WEIGHTS)):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(target, name))
    for name in sorted(new_files, key=lambda name: (name.endswith(_WEIGHTS), name)):
        place = os.path.join(target, name)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.replace(os.path.join(stage, name), place)
