"""Where trials of searches are kept: Optuna's storages, a journal file on one machine or PostgreSQL for many workers.

A trial is found again by its identity, which stands with its record in the trial's attributes; there is no second
place. The file may be written by several processes of one machine: its lock is the kernel's and ends with a process,
and a line that a kill cut off is taken away before the next is written.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.errors import DataError, OctavoError, PackageError, SettingError
from octavo.storage import system
from octavo.storage.reading import check_regular, end_of_lines, member, parse_json

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

NAME = "trials.jsonl"
"""The journal file in a study's folder."""
POSTGRESQL = "postgresql://"
# Fields of all records of Optuna's journal, and of each operation, as of version 3 and 4.
_FIELDS: dict[str, Any] = {"worker_id": str}
_OPERATIONS: dict[int, dict[str, Any]] = {
    0: {"study_name": str, "directions": list},
    1: {"study_id": int},
    2: {"study_id": int, "user_attr": dict},
    3: {"study_id": int, "system_attr": dict},
    4: {"study_id": int},
    5: {"trial_id": int, "param_name": str, "param_value_internal": (int, float), "distribution": str},
    6: {"trial_id": int, "state": int},
    7: {"trial_id": int, "step": int, "intermediate_value": (int, float, type(None))},
    8: {"trial_id": int, "user_attr": dict},
    9: {"trial_id": int, "system_attr": dict},
}
_ENDS, _STATES = 6, 5  # the operation that ends a trial, and the states that a trial may have
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
        file: Any = _TrialsFile(path)
        try:
            storage: BaseStorage = optuna.storages.JournalStorage(file)
        except OctavoError:
            raise
        except Exception as error:  # Optuna's own replay: a record of another kind fails in many ways
            raise file.damaged(file.line, f"{type(error).__name__}: {error}") from None
        return storage


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


class _TrialsFile:
    """Optuna's journal of trials in a file: a line of JSON for each change, which storages replay.

    The lock is one of the kernel, beside the file. Optuna's own is a file that a killed worker leaves behind, and that
    others wait 30 s for. ``line``: the number of the line that was read last.
    """

    def __init__(self, path: Path) -> None:
        """Make the file where it is missing; refuse what is no regular file."""
        self.path, self.line = path, 0
        self._lock = path.with_name(f"{path.name}.lock")
        self._read = (0, 0)  # lines that were read, and where the next one begins
        with path.open("ab"):
            check_regular(path, DataError)

    def damaged(self, line: int, why: str) -> DataError:
        """Return the error of a line that is no record of Optuna."""
        return DataError(
            f"{self.path}: line {line} is no record of Optuna's journal ({why}); move the file away, or remove the line"
        )

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Yield the records after so many, up to a last line that is blank or has no end: another may be writing it.

        Raises DataError with the line for one that is no record.
        """
        number, place = self._read if self._read[0] <= log_number_from else (0, 0)
        with self.path.open("rb") as file:
            end = end_of_lines(file)
            file.seek(place)
            while place < end:
                line = file.readline()
                number, place = number + 1, place + len(line)
                if number > log_number_from:
                    self.line = number
                    record = self._record(number, line)
                    self._read = (number, place)
                    yield record

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Write records, whole and on the disk before this returns."""
        content = b"".join(json.dumps(log, separators=(",", ":")).encode() + b"\n" for log in logs)
        with self._locked(), self.path.open("ab") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def _record(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            record = parse_json(line.decode(), "record", finite=False, error=DataError)
            operation = member(record, "op_code", int, "record", error=DataError)
            for key, kind in (_FIELDS | _OPERATIONS.get(operation, {})).items():
                member(record, key, kind, "record", error=DataError)
        except (DataError, UnicodeDecodeError) as error:
            raise self.damaged(number, str(error)) from None
        if operation == _ENDS and record["state"] not in range(_STATES):
            raise self.damaged(number, f"state is {record['state']}")
        return dict(record)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock; a last line that was cut off is taken away first."""
        descriptor = os.open(self._lock, system.flags("RDWR", "CREAT"), 0o666)
        try:
            system.lock(descriptor, wait=True)
            _repair(self.path)
            yield
        finally:
            os.close(descriptor)


def _repair(path: Path) -> None:
    """Take away what a kill or a full disk left at the end: a line without an end, or blank ones."""
    with path.open("a+b") as file:
        whole = end_of_lines(file)
        if whole < file.seek(0, os.SEEK_END):
            file.truncate(whole)
