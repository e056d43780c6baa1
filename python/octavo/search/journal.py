"""The journal of a study: one line of JSON for each finished point, looked up by the digest of its settings.

A line is on the disk before the next point begins, so ``kill -9`` loses only the point that is being measured. An
incomplete or blank last line is dropped when the journal is opened again. Any other line that is no record is an error,
and the file is left unchanged.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from octavo.errors import DataError, OctavoError
from octavo.storage import files
from octavo.storage.arguments import checks_arguments, is_finite
from octavo.storage.locks import FolderLock
from octavo.storage.reading import RECORD_BYTES, check_regular, end_of_lines, member, parse_json, shown

NAME = "study.jsonl"
# Fields of records that studies read again, and their types.
_FACTS: dict[str, type | tuple[type, ...]] = {
    "result": dict, "row": dict, "rows": list, "distance": (int, float, type(None)), "costs": dict,
    "loss": (int, float, type(None)),
}  # fmt: skip


def identity(settings: Mapping[str, Any]) -> str:
    """Return the SHA-256, in hexadecimal, of settings as JSON with sorted keys. Equal settings are the same point.

    Raises DataError for settings that JSON cannot hold exactly, such as NaN.
    """
    try:
        text = json.dumps(settings, sort_keys=True, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise DataError(f"settings of a point are plain JSON values: {error}") from None
    return sha256(text.encode()).hexdigest()


class Journal:
    """The finished points of a folder, in the order in which they were finished.

    ``with Journal(folder) as journal``: one process at a time; a second one is refused.
    """

    @checks_arguments
    def __init__(self, folder: Path | str) -> None:
        """Name the folder; nothing is opened yet."""
        self.path = Path(folder) / NAME
        self._records: dict[str, dict[str, Any]] = {}
        self._file: Any = None
        self._open = ExitStack()

    def __enter__(self) -> Journal:
        """Open the journal, made if it is missing, and read what is there.

        Raises LockedError if another process works on this study, DataError for a line inside it that is no record.
        """
        with ExitStack() as stack:
            stack.enter_context(FolderLock(self.path.parent, label="study", option="--out"))
            if self.path.exists():
                check_regular(self.path, DataError)
            self._file = stack.enter_context(files.appended(self.path))
            self._read()
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Close the journal, which lets others open it."""
        self._open.close()

    def __len__(self) -> int:
        """Finished points."""
        return len(self._records)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Records in the order in which they were written."""
        return iter(self._records.values())

    def find(self, settings: Mapping[str, Any], *facts: str) -> dict[str, Any] | None:
        """Return the record of a point with these settings; None if it has not been finished.

        ``facts``: fields that the record must have. Raises DataError where one is missing or has another type than
        studies write; the id covers only the settings.
        """
        record = self._records.get(identity(settings))
        if record is None:
            return None
        for name in facts:
            value = member(record, name, _FACTS[name], str(self.path), error=DataError)
            if isinstance(value, int | float) and not is_finite(value):
                raise DataError(f"{self.path}: {name} is {shown(value)}; accepted are numbers that float64 holds")
            for number in value.values() if name == "result" else ():
                if type(number) is not int:
                    raise DataError(f"{self.path}: result is {shown(value)}; accepted are whole numbers by name")
        return record

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Turn errors over missing or mistyped parts of a record into a DataError that names the file."""
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            if isinstance(error, OctavoError):
                raise
            raise DataError(
                f"{self.path}: a record is not what its reader needs ({type(error).__name__}: {error}); move it away"
            ) from None

    def add(self, settings: Mapping[str, Any], **facts: Any) -> dict[str, Any]:
        """Write the record of a finished point and return it. Raises DataError for facts that are no JSON."""
        record = {"id": identity(settings), "settings": dict(settings), **facts}
        try:
            line = json.dumps(record, allow_nan=False, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise DataError(f"the record of a point is plain JSON: {error}") from None
        self._file.write(line.encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._records[record["id"]] = json.loads(line)
        return self._records[record["id"]]

    def _read(self) -> None:
        nbytes = os.fstat(self._file.fileno()).st_size
        if nbytes > RECORD_BYTES:
            raise DataError(f"{self.path}: {nbytes} bytes; accepted are up to {RECORD_BYTES}, move the file away")
        content = self.path.read_bytes()
        whole = end_of_lines(io.BytesIO(content))
        for number, line in enumerate(content[:whole].split(b"\n")[:-1], start=1):
            try:
                record = parse_json(line.decode(), str(self.path))
                settings = member(record, "settings", dict, str(self.path))
                if member(record, "id", str, str(self.path)) != identity(settings):
                    raise DataError("the id of other settings")
                self._records[record["id"]] = record
            except (OctavoError, UnicodeDecodeError):
                raise DataError(f"{self.path}: line {number} is no record of a study; move the file away") from None
        if whole < len(content):
            self._file.truncate(whole)
