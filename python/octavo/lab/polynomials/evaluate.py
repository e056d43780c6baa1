"""Counts the lines of a file that an engine answers exactly: streamed, in bounded memory, without torch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from octavo.errors import DataError
from octavo.lab.polynomials.data import Line, read
from octavo.lab.polynomials.native_engine import Engine
from octavo.lab.polynomials.tally import Tally

# Lines that are answered together.
_BLOCK = 1 << 14
# Characters of a side that is read: no model takes more.
_LONGEST = 4096


class Mistake(NamedTuple):
    """A line that was not answered exactly: ``given`` is the answer, None if there was none, for ``reason``."""

    line: int
    left: str
    right: str
    given: str | None
    reason: str | None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {name: value for name, value in self._asdict().items() if value is not None}


@dataclass(frozen=True)
class Evaluation:
    """Answers to ``lines`` lines: ``exact`` are right to the last character, ``failed`` lines had none.

    ``by_kind``: (exact, lines) of each kind of line. ``seconds``: reading and answering.
    """

    lines: int
    exact: int
    failed: int
    by_kind: dict[str, tuple[int, int]]
    seconds: float

    @property
    def share(self) -> float:
        """Exact answers over lines."""
        return self.exact / self.lines

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "lines": self.lines,
            "exact": self.exact,
            "exact_share": self.share,
            "failed": self.failed,
            "by_kind": {name: {"exact": exact, "lines": lines} for name, (exact, lines) in self.by_kind.items()},
            "seconds": round(self.seconds, 3),
            "lines_per_s": round(self.lines / self.seconds, 1),
        }

    def results(self) -> list[tuple[str, str]]:
        """Return labels and texts for the terminal."""
        rows = [("exact match", f"{self.share:.3%}: {self.exact:,} of {self.lines:,} lines")]
        rows += [(f"  {name}", f"{exact / lines:.3%} of {lines:,}") for name, (exact, lines) in self.by_kind.items()]
        if self.failed:
            rows.append(("no answer", f"{self.failed:,} lines, counted as wrong"))
        return [*rows, ("time", f"{self.seconds:.1f} s, {self.lines / self.seconds:,.0f} lines/s")]


def evaluate(
    engine: Engine,
    path: str | os.PathLike[str],
    *,
    beam: int = 1,
    mistaken: Callable[[Mistake], object] = lambda mistake: None,
    progress: Callable[[int, int], object] = lambda lines, nbytes: None,
) -> Evaluation:
    """Let ``engine`` answer the left sides of a file of ``left=right`` lines, and compare with the right sides.

    ``path``: as :func:`octavo.lab.polynomials.data.read` takes it, of any size. ``mistaken``: called with every
    line that is not answered exactly, in order. ``progress``: called with the lines answered and the
    bytes of the file read.

    Raises DataError naming file and line for a line that is bad, and for a file without lines; SettingError for a beam
    that the engine does not take; OSErrors.
    """
    begin, nbytes = time.perf_counter(), 0

    def consumed(position: int) -> None:
        nonlocal nbytes
        nbytes = position

    tally, failed = Tally(), 0
    for block in _blocks(read(path, max_length=_LONGEST, progress=consumed)):
        answers = engine.expand([line.left for line in block], beam=beam, errors="return")
        for (number, left, right), answer in zip(block, answers, strict=True):
            given, reason = (None, str(answer)) if isinstance(answer, DataError) else (answer, None)
            failed += given is None
            if not tally.add(left, right, given):
                mistaken(Mistake(number, left, right, given, reason))
        progress(tally.lines, nbytes)
    if not tally.lines:
        raise DataError(f"{os.fsdecode(path)}: there are no lines; accepted are 'left=right' lines")
    return Evaluation(tally.lines, tally.exact, failed, tally.by_kind, time.perf_counter() - begin)


def _blocks(lines: Iterator[Line]) -> Iterator[list[Line]]:
    while block := list(islice(lines, _BLOCK)):
        yield block
