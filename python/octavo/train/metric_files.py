"""The log of a run: ``metrics.jsonl``, one line per ``log_every`` steps and per evaluation, and ``run.json``.

The object ``clock`` in a line has seconds and rates. All other fields are functions of the configuration, the task and
the machine's arithmetic. So two runs are equal if their lines without ``clock`` are equal.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

from octavo.cuda.machine import computer, versions
from octavo.errors import CheckpointError, OctavoError, PackageError
from octavo.storage import files
from octavo.storage.arguments import checks_arguments
from octavo.storage.reading import RECORD_BYTES, check_own, member, parse_json, read_bytes, read_json
from octavo.train.distributed import Processes
from octavo.train.train_config import TrainConfig

METRICS = "metrics.jsonl"
RUN = "run.json"


class Metrics:
    """The lines of one run. Only the first process writes; in the others every call does nothing."""

    def __init__(self, folder: Path, *, upto: int, write: bool, tensorboard: bool) -> None:
        """Open the file for appending, and drop lines of steps after ``upto``, which the continuation writes again.

        Raises PackageError if ``tensorboard`` is True and not installed.
        """
        self._file = self._board = None
        if not write:
            return
        path = folder / METRICS
        check_own(path, CheckpointError)
        if path.exists():
            files.write(path, "".join(line + "\n" for line in _lines_upto(path, upto)))
        self._file = files.appended(path, "w")
        if tensorboard:
            self._board = board_writer()(str(folder / "tensorboard"), purge_step=upto + 1)

    def write(self, line: dict[str, Any]) -> None:
        """Append one line, which has at least ``kind`` and ``step``; NaN and infinity are written as null."""
        if self._file is None:
            return
        self._file.write(json.dumps(_finite(line), allow_nan=False) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in _flat(line):
                self._board.add_scalar(name, value, line["step"])

    def sync(self) -> None:
        """Flush the lines to the disk; called before a checkpoint is written."""
        if self._file is not None:
            os.fsync(self._file.fileno())

    def __enter__(self) -> Metrics:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files."""
        for file in (self._file, self._board):
            if file is not None:
                file.close()
        self._file = self._board = None


@checks_arguments
def read_metrics(folder: Path | str) -> list[dict[str, Any]]:
    """Return the lines of a run's ``metrics.jsonl``, without an incomplete last line of a killed process.

    Args:
        folder: of the run.

    Returns:
        The lines, as dictionaries.
    """
    path = Path(folder) / METRICS
    return [parse_json(line, f"{path}: line {number}") for number, line in enumerate(_complete(path), 1)]


@checks_arguments
def strip_timings(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return lines of :func:`read_metrics` without seconds and rates: the part that is equal in every run.

    Args:
        lines: of :func:`read_metrics`; they are not changed.

    Returns:
        New lines.
    """
    return [{name: value for name, value in line.items() if name != "clock"} for line in lines]


def write_run(folder: Path, config: TrainConfig, processes: Processes, facts: dict[str, Any], *, step: int) -> None:
    """Write ``run.json``: configuration, ``facts`` of model and task, and one entry for every start of the run."""
    path = folder / RUN
    check_own(path, CheckpointError)
    try:
        starts = member(read_json(path), "starts", list, str(path)) if step else []
    except (OSError, OctavoError):
        starts = []  # run.json is a record for people: a damaged one does not stop the run
    starts.append(
        {
            "step": step,
            "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "command": sys.argv,
            "processes": processes.world,
            "versions": versions(),
            "machine": computer(processes.device),
        }
    )
    record = {"config": config.as_dict(), "fingerprint": config.fingerprint(), **facts, "starts": starts}
    files.write(path, json.dumps(record, indent=2) + "\n")


def _complete(path: Path) -> list[str]:
    text = read_bytes(path, RECORD_BYTES).decode(errors="replace")
    return text.split("\n")[:-1]  # the text after the last newline is an incomplete line


def _lines_upto(path: Path, upto: int) -> list[str]:
    """Return the lines of steps up to ``upto``; broken lines, such as those after a power failure, are dropped."""
    lines = []
    for line in _complete(path):
        try:
            if parse_json(line, str(path))["step"] <= upto:
                lines.append(line)
        except (OctavoError, KeyError, TypeError):
            continue
    return lines


def _finite(item: Any) -> Any:
    if isinstance(item, float) and not math.isfinite(item):
        return None
    if isinstance(item, dict):
        return {name: _finite(value) for name, value in item.items()}
    return item


def _flat(line: dict[str, Any]) -> list[tuple[str, float]]:
    """Return the numbers of a line with names such as ``train/loss`` and ``train/clock/train_s``."""
    named = []
    for name, value in line.items():
        if isinstance(value, dict):
            named += [(f"{line['kind']}/{name}/{inner}", number) for inner, number in value.items()]
        elif name not in ("kind", "step"):
            named.append((f"{line['kind']}/{name}", value))
    return [(name, value) for name, value in named if isinstance(value, int | float)]


def board_writer() -> Any:
    """Return torch's class of writers for TensorBoard. Raises PackageError where the package is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise PackageError("tensorboard=True needs the package tensorboard: pip install tensorboard") from None
    return SummaryWriter
