"""Reading a user's own lines and dividing them into training, validation and test."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import cast

from octavo.errors import DataError
from octavo.lab.polynomials.data.pair_files import Line, read
from octavo.lab.polynomials.data.passes import FITS
from octavo.lab.polynomials.data.splits import Splits, split_lines

Held = int | str | os.PathLike[str] | None

# Lines held out where no number is given: one of so many, and no more than.
_SHARE, _ENOUGH = 20, 2000


def own_lines(
    path: str | os.PathLike[str], *, validation: Held = None, test: Held = None, seed: int = 0
) -> Splits[list[str]]:
    """Read the lines of a file, as :func:`read` does, and divide them into three parts without a line in common.

    ``validation`` and ``test``: how many lines to hold out, as :func:`split_lines` chooses them; or a file of their
    own, whose lines are left out of training, those of the test out of validation, too; None is every twentieth line,
    2,000 at most. ``test`` may be 0. Sides have up to 32 and 31 characters.

    Raises DataError naming file and line for lines that are bad or contradict each other, and if no line is left to
    train on or to validate with; OSErrors.
    """
    lines = list(_read(path))
    tested = {} if test is None or isinstance(test, int) else _answers(test, _read(test))
    watched = {} if validation is None or isinstance(validation, int) else _answers(validation, _read(validation))
    kept = []
    for line in lines:
        for name, held in ((validation, watched), (test, tested)):
            if held.get(line.left, line.right) != line.right:
                other = os.fsdecode(cast("str | os.PathLike[str]", name))  # numbers and None hold no lines
                given = f"{line.left!r} is {line.right!r} here and {held[line.left]!r} in {other}"
                raise DataError(f"{os.fsdecode(path)}: line {line.number}: {given}")
        if line.left not in watched and line.left not in tested:
            kept.append(line)
    default = min(_ENOUGH, max(1, len({line.left for line in kept}) // _SHARE))
    numbers = [default if part is None else part if isinstance(part, int) else 0 for part in (validation, test)]
    try:
        made = split_lines(kept, validation=numbers[0], test=numbers[1], seed=seed)
    except DataError as error:
        raise DataError(f"{os.fsdecode(path)}: {error}") from error
    found = Splits(
        made.train,
        made.validation or [f"{left}={right}" for left, right in watched.items() if left not in tested],
        made.test or [f"{left}={right}" for left, right in tested.items()],
    )
    for name, part in (("train on", found.train), ("validate with", found.validation)):
        if not part:
            raise DataError(f"{os.fsdecode(path)}: no line is left to {name}: {found}")
    return found


def _read(path: str | os.PathLike[str]) -> Iterable[Line]:
    for line in read(path, max_length=max(FITS)):
        if len(line.right) > FITS[1]:
            given = f"the right side has {len(line.right)} characters; accepted are 1 to {FITS[1]}"
            raise DataError(f"{os.fsdecode(path)}: line {line.number}: {given}")
        yield line


def _answers(path: str | os.PathLike[str], lines: Iterable[Line]) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, left, right in lines:
        if found.setdefault(left, right) != right:
            raise DataError(
                f"{os.fsdecode(path)}: line {number}: {left!r} is {found[left]!r} before and {right!r} here"
            )
    return found
