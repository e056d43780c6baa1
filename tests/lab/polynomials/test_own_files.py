"""A user's own lines: passes that are a function of lines, seed and place, and three parts without a line in common."""

import lzma
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.polynomials.batch_lines import lines_of
from octavo import DataError, DTypeError
from octavo.data import CharTokenizer
from octavo.lab.polynomials import data as polynomials
from octavo.lab.polynomials.data import Passes, Stream, own_lines

TOKENIZER = CharTokenizer.polynomials()
LINES = list(dict.fromkeys(polynomials.generate(120, seed=4)))


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_every_pass_has_every_line_once_in_an_order_of_its_own(seed):
    passes, size = Passes(LINES, seed), len(LINES)
    rounds = [passes.lines(number * size, size) for number in range(4)]
    assert all(Counter(found) == Counter(LINES) for found in rounds)
    assert len({tuple(found) for found in rounds}) == 4
    assert passes.lines(0, 4 * size) == [line for found in rounds for line in found]
    assert Passes(LINES, seed ^ 1).lines(0, size) != rounds[0]


@given(st.integers(0, 2**63), st.integers(0, 400), st.integers(0, 400))
def test_any_part_can_be_read_at_any_time(start, one, other):
    passes = Passes(LINES, 7)
    together = passes.lines(start, one + other)
    assert Passes(LINES, 7).lines(start + one, other) == together[one:]
    assert passes.lines(start, one) == together[:one]


def test_orders_never_change():
    """Recorded: a run that was begun by another version, or beside another numpy, goes on alike."""
    passes = Passes([f"{number}=x" for number in range(10)], 5)
    assert "".join(line[0] for line in passes.lines(0, 30)) == "784356201976185420394796081523"


def test_batches_are_the_lines_as_the_stream_gives_them():
    passes = Passes(LINES, 3)
    source, target = passes.batch(100, 50, TOKENIZER)
    assert source.dtype == target.dtype == np.uint8
    assert lines_of((source, target)) == passes.lines(100, 50)
    assert (source != 0).any(0).all() and (target != 0).any(0).all()  # no wider than the longest line
    assert [ids.shape for ids in passes.batch(5, 2, TOKENIZER, pad_to=(29, 30))] == [(2, 29), (2, 30)]
    assert [ids.shape for ids in passes.batch(5, 0, TOKENIZER)] == [(0, 0), (0, 0)]
    stream = Stream(9)
    for mine, theirs in zip(
        Passes(stream.lines(0, 1)).batch(0, 1, TOKENIZER), stream.batch(0, 1, TOKENIZER), strict=True
    ):
        assert np.array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["x=x", "x"], "line 2: 0 '=' in 'x'"),
        (["x=x=x"], "line 1: 2 '='"),
        (["=x"], "line 1: the left side has 0 characters; accepted are 1 to 32"),
        (["x=x", "x=" + "x" * 32], "line 2: the right side has 32 characters; accepted are 1 to 31"),
        (["x=x", "q=x"], "left side of line 2, column 1"),
        (["x=x", "x=xB"], "right side of line 2, column 2"),
        ([], "no lines to train on"),
    ],
)
def test_lines_are_checked_before_anything_is_trained(lines, reason):
    with pytest.raises(DataError) as raised:
        Passes(lines)
    assert reason in str(raised.value)


def test_what_does_not_fit_is_refused():
    for wrong in ("x=x", [b"x=x"]):
        with pytest.raises(DTypeError):
            Passes(wrong)
    for start, count in ((-1, 1), (0, -1)):
        with pytest.raises(DataError):
            Passes(LINES).lines(start, count)
    with pytest.raises(DataError, match="pad_to is 2"):
        Passes(LINES).batch(0, 5, TOKENIZER, pad_to=(2, 2))
    with pytest.raises(DataError, match="are translated by"):
        Passes(LINES).batch(0, 5, CharTokenizer("x="))


def test_the_digest_is_of_lines_and_their_order():
    digests = {Passes(lines).digest for lines in (LINES, LINES[::-1], LINES[1:], [*LINES, LINES[0]])}
    assert len(digests) == 4 and Passes(LINES, 1).digest in digests


def write(path, lines, pack=bytes):
    path.write_bytes(pack("\n".join(lines).encode()))
    return path


@pytest.mark.parametrize("pack", [bytes, lzma.compress])
def test_parts_have_no_line_in_common(tmp_path, pack):
    file = write(tmp_path / "lines", [*LINES, *LINES[:9]], pack)
    for held in ((None, None), (7, 11), (1, 0)):
        data = own_lines(file, validation=held[0], test=held[1])
        assert sorted(data.train + data.validation + data.test) == sorted(LINES)
        wanted = [len(LINES) // 20 if part is None else part for part in held]
        assert [len(data.validation), len(data.test)] == wanted
        assert own_lines(file, validation=held[0], test=held[1]) == data


def test_files_of_their_own_are_left_out_of_training(tmp_path):
    file, watched, tested = (
        write(tmp_path / name, lines)
        for name, lines in (("train", LINES), ("watched", [*LINES[:5], "x=x"]), ("tested", [*LINES[3:8], "y=y"]))
    )
    data = own_lines(file, validation=watched, test=tested)
    assert (data.train, data.validation, data.test) == (LINES[8:], [*LINES[:3], "x=x"], [*LINES[3:8], "y=y"])
    data = own_lines(file, validation=4, test=tested)
    assert len(data.validation) == 4 and not set(data.validation) & set(data.test)
    assert sorted(data.train + data.validation) == sorted({*LINES} - {*LINES[3:8]})


@pytest.mark.parametrize(
    ("lines", "held", "reason"),
    [
        (["x=x", "x=y"], {}, "lines: line 2: 'x' is 'x' before and 'y' here"),
        (["x=x", "x"], {}, "lines: line 2: 0 '='"),
        (["x=x", "Q=x"], {}, "lines: line 2: column 1"),
        (["x=x", "x=" + 32 * "x"], {}, "lines: line 2: the right side has 32 characters; accepted are 1 to 31"),
        (["x=x"], {"test": None}, "lines: 2 lines of validation and test; there are 1 distinct"),
        (["x=x", "y=y"], {"test": 1}, "no line is left to train on"),
        (["x=x", "y=y"], {"validation": 0, "test": 0}, "no line is left to validate with"),
        (["x=x", "y=y"], {"validation": 3}, "there are 2 distinct lines"),
        (["x=x", "2*x=x"], {"test": ["x=x", "2*x=2*x"]}, "lines: line 2: '2*x' is 'x' here and '2*x' in "),
        (["x=x"], {"test": ["y=y", "y=x"]}, "held: line 2: 'y' is 'y' before and 'x' here"),
        (["x=x"], {"validation": ["x=x"]}, "no line is left to train on"),
        ([], {}, "there are 0 distinct"),
    ],
)
def test_lines_that_cannot_be_divided_are_named(tmp_path, lines, held, reason):
    given = {name: write(tmp_path / "held", part) if isinstance(part, list) else part for name, part in held.items()}
    with pytest.raises(DataError) as raised:
        own_lines(write(tmp_path / "lines", lines), **{"test": 0, **given})
    assert reason in str(raised.value)
