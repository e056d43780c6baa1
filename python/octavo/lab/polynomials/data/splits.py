"""Training, validation and test lines that have none in common."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Generic, TypeVar

from octavo.data._arguments import check_text, whole
from octavo.errors import DataError
from octavo.lab.polynomials.data.lines import Stream
from octavo.lab.polynomials.data.pair_files import Line

Train = TypeVar("Train", Stream, list[str])

#: Most validation and test lines: a tenth of all lines that exist, about, so that drawing them and leaving them out
#: stays quick.
_MOST = 3_000_000


@dataclass(frozen=True)
class Splits(Generic[Train]):
    """Three parts of the lines: no line is in two of them, and no line is twice in ``validation`` or ``test``."""

    train: Train
    validation: list[str]
    test: list[str]

    def __repr__(self) -> str:
        """The sizes."""
        train = self.train if isinstance(self.train, Stream) else f"{len(self.train):,} lines"
        return f"Splits(train={train}, validation={len(self.validation):,} lines, test={len(self.test):,} lines)"


def splits(seed: int = 0, validation: int = 20_000, test: int = 20_000) -> Splits[Stream]:
    """Draw validation and test lines by the law, and a training stream that never yields one of them.

    The ``validation + test`` lines are distinct: what is drawn again is left out. Which of the two a line belongs to is
    a function of the seed and the line, so that both have the same distribution.

    Raises DataError for negative numbers, and for more lines than can be drawn and still leave some to train on.
    """
    seed, wanted = whole("seed", seed), whole("validation", validation) + whole("test", test)
    if wanted > _MOST:
        raise DataError(f"{wanted:,} lines of validation and test; accepted are up to {_MOST:,}")
    # A seed of its own: the training stream must not begin with the lines that it then has to leave out.
    source = Stream(int.from_bytes(blake2b(b"held out %d" % seed, digest_size=8).digest()))
    held_out: dict[str, None] = {}
    start = 0
    while len(held_out) < wanted:
        count = (wanted - len(held_out)) * 5 // 4 + 16
        held_out.update(dict.fromkeys(source.lines(start, count)))
        start += count
    kept = list(held_out)[:wanted]
    tested = _lowest(kept, test, seed)
    validated = [line for line in kept if line not in tested]
    return Splits(Stream(seed, kept), validated, [line for line in kept if line in tested])


def split_lines(lines: Iterable[str | Line], *, validation: int, test: int, seed: int = 0) -> Splits[list[str]]:
    """Divide a user's own lines, without their repetitions, into three parts.

    ``lines``: strings ``left=right``, or what :func:`octavo.lab.polynomials.data.read` yields.

    Which part a line goes to is a function of the seed and the line, not of its place: the ``test`` lines with the
    lowest keyed hashes are the test lines, the next ``validation`` ones those of validation, the rest trains. Each part
    keeps the order of the input.

    Raises DataError if two lines have the same left side and different right sides, and for more validation and test
    lines than there are distinct lines.
    """
    seed, wanted = whole("seed", seed), whole("validation", validation) + whole("test", test)
    answers: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if isinstance(line, Line):
            number, left, right = line
            check_text(f"line {number}", f"{left}={right}")
        else:
            check_text(f"line {number}", line)
            left, _, right = line.partition("=")
            if line.count("=") != 1:
                raise DataError(f"line {number}: {line.count('=')} '=' in {line[:80]!r}; a line has one")
        if answers.setdefault(left, right) != right:
            raise DataError(f"line {number}: {left[:80]!r} is {answers[left][:80]!r} before and {right[:80]!r} here")
    distinct = [f"{left}={right}" for left, right in answers.items()]
    if wanted > len(distinct):
        raise DataError(f"{wanted:,} lines of validation and test; there are {len(distinct):,} distinct lines")
    tested = _lowest(distinct, test, seed)
    held_out = _lowest(distinct, wanted, seed)
    return Splits(
        [line for line in distinct if line not in held_out],
        [line for line in distinct if line in held_out and line not in tested],
        [line for line in distinct if line in tested],
    )


def million_lines(seed: int = 42, *, train: int = 800_000, validation: int = 200_000) -> Splits[list[str]]:
    """Draw ``train + validation`` distinct lines by the law, and divide them; there are no test lines.

    Raises DataError for more lines than can be drawn.
    """
    return split_lines(splits(seed, train + validation, 0).validation, validation=validation, test=0, seed=seed)


def _lowest(lines: list[str], count: int, seed: int) -> set[str]:
    """The ``count`` lines with the lowest hashes under a key made of the seed."""
    key = b"split %d" % seed
    return set(sorted(lines, key=lambda line: blake2b(line.encode(), digest_size=8, key=key).digest())[:count])
