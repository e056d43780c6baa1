"""Where trials of searches are kept: Optuna's storages, a journal file on one machine or PostgreSQL for many workers.

A trial is found again by its identity, which stands with its record in the trial's attributes; there is no second
place. The file may be written by several processes of one machine: its lock is the kernel's and ends with a process,
and a line that a kill cut off is taken away before the next is written.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.errors import DataError, PackageError, SettingError

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

NAME = "trials.jsonl"
"""The journal file in a study's folder."""
POSTGRESQL = "postgresql://"
_ATTEMPTS = 5  # to make the tables of a new database, which other workers make at the same time


def optuna_package() -> Any:
    """Return the package. Raises PackageError where it is not installed."""
    try:
        import optuna
    except ImportError:
        raise PackageError('searches need Optuna, which is not installed: pip install "octavo[search]"') from None
    return optuna


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Optuna from telling of every study and trial on stderr."""
    logging = optuna_package().logging
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def open_storage(where: str | Path | BaseStorage) -> BaseStorage:
    """Return Optuna's storage of a folder, of a file, or of ``postgresql://USER@HOST/DATABASE``; storages stay.

    A folder has its journal in ``trials.jsonl``. Raises SettingError for other URLs, DataError for a database that
    cannot be reached, PackageError where Optuna, or psycopg for PostgreSQL, is not installed.
    """
    optuna = optuna_package()
    if not isinstance(where, str | Path):
        return where
    with quiet():
        if "://" in str(where):
            return _database(str(where))
        path = Path(where)
        path = path / NAME if path.is_dir() or not path.suffix else path
        path.parent.mkdir(parents=True, exist_ok=True)
        lock: Any = _KernelLock(path)
        with lock:
            pass  # a line that was cut off is taken away before it is read
        try:
            return optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path), lock))
        except (ValueError, KeyError, AssertionError) as error:
            raise DataError(f"{path}: is no journal of Optuna ({error}); move the file away") from None


def _database(url: str) -> BaseStorage:
    if not url.startswith(POSTGRESQL):
        raise SettingError(f"storage {url!r}; accepted are a folder, a file, or {POSTGRESQL}USER@HOST/DATABASE")
    optuna = optuna_package()
    try:
        import psycopg
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError:
        raise PackageError(
            'PostgreSQL needs psycopg, which is not installed: pip install "octavo[postgresql]"'
        ) from None
    errors = (SQLAlchemyError, psycopg.Error, optuna.exceptions.StorageInternalError, RuntimeError)
    for attempt in range(_ATTEMPTS):
        try:
            # A server that was started again is met by a new connection.
            return optuna.storages.RDBStorage(
                url.replace(POSTGRESQL, "postgresql+psycopg://", 1), engine_kwargs={"pool_pre_ping": True}
            )
        except errors as error:
            if attempt == _ATTEMPTS - 1:
                told = str(error.__cause__ or error).strip().splitlines()[0]
                raise DataError(f"the database cannot be used: {told}; check the address and that it runs") from None
            time.sleep(0.2 * (attempt + 1))
    raise AssertionError("not reached")


class _KernelLock:
    """Optuna's lock of a journal file, as one of the kernel; it repairs the end of the file when it is taken.

    Optuna's own is a file that a killed worker leaves behind, and that others wait 30 s for.
    """

    def __init__(self, path: Path) -> None:
        self._journal, self._path = path, path.with_name(f"{path.name}.lock")
        self._held = threading.local()

    def acquire(self) -> bool:
        """Wait for the lock."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self._held.descriptor = descriptor
        _repair(self._journal)
        return True

    def release(self) -> None:
        """Give the lock back."""
        os.close(self._held.descriptor)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def _repair(path: Path) -> None:
    """Take away a last line without an end, which a kill or a full disk left."""
    try:
        file = path.open("r+b")
    except FileNotFoundError:
        return
    with file:
        end = file.seek(0, os.SEEK_END)
        if end == 0:
            return
        file.seek(end - 1)
        if file.read(1) == b"\n":
            return
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
