"""The polynomial lines. SymPy is the oracle of both sides; the 200,000 lines of the exercise are that of the law."""

import contextlib
import gzip
import itertools
import lzma
import math
import os
import pickle
import re
import threading
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo import DataError, DTypeError, InternalError, _core
from octavo.data import CharTokenizer
from octavo.data.labelled import Sentences
from octavo.data.words import WordTokenizer
from octavo.lab.polynomials import data as polynomials
from octavo.lab.polynomials.data import BadLine, Line, Stream

TOKENIZER = CharTokenizer.polynomials()
LETTERS = "sincostanhijkxyz"
COEFFICIENTS = [a for a in range(-9, 9) if a]
#: Standard deviations that a frequency may be off. One bucket in 10 million is, if the law holds; some 200 are compared.
DEVIATIONS = 5.5


@pytest.fixture
def threads():
    """Number of threads as it was before."""
    before = _core.num_threads()
    yield _core.set_num_threads
    _core.set_num_threads(before)


@pytest.fixture(scope="session")
def exercise(shared):
    """The 200,000 lines of the public exercise."""
    path = shared / "data" / "polynomials_200k.txt.xz"
    if not path.is_file():
        pytest.skip(f"no recorded lines: {path} is absent")
    return list(polynomials.read(path))


# --- reading lines, apart from the code under test --------------------------------------------------------------------

FUNCTION = re.compile(r"(?:sin|cos|tan)\((.)\)")
SYMBOL = re.compile(r"(?:sin|cos|tan)\([a-z]\)|[a-z]")
#: b-aX or aX+b in brackets, X being a letter.
SUM = re.compile(r"\((?:(\d+)-(?:(\d+)\*)?[a-z]|(-?)(?:(\d+)\*)?[a-z]([+-]\d+))\)(\*\*2)?")


def factors(left):
    """(a, b) of the sums of a left side; those of a square twice."""
    for first, negative, sign, coefficient, constant, square in SUM.findall(FUNCTION.sub(r"\1", left)):
        if first:
            both = -int(negative or 1), int(first)
        else:
            both = int(coefficient or 1) * (-1 if sign else 1), int(constant)
        yield from [both] * (2 if square else 1)


# --- the oracle: SymPy ------------------------------------------------------------------------------------------------


def printed(expression):
    return str(expression).replace(" ", "")


def test_both_sides_are_what_sympy_prints():
    sympy = pytest.importorskip("sympy")
    lines = polynomials.generate(400, seed=11)
    lines += [line for line in polynomials.generate(20_000, seed=12) if FUNCTION.search(line)][:100]
    for line in lines:
        left, _, right = line.partition("=")
        assert printed(sympy.expand(sympy.sympify(left))) == right
        symbol = sympy.sympify(SYMBOL.search(left)[0])
        sums = [a * symbol + b for a, b in factors(left)]
        sign, digits = re.match(r"(-?)(\d*)", left).groups()  # of c*X**2 and c*X*(aX+b)
        monomial = int(sign + (digits or "1")) * symbol ** (2 - len(sums))
        assert printed(sympy.prod([monomial, *sums])) == left


numbers = st.tuples(st.sampled_from(COEFFICIENTS), st.one_of(st.just(0), st.integers(-32, 31)))


@given(numbers, numbers, st.sampled_from(sorted(set(LETTERS))), st.sampled_from(["", "sin", "cos", "tan"]))
def test_products_of_sympy_are_expanded_as_sympy_does(one, other, letter, function):
    sympy = pytest.importorskip("sympy")
    symbol = sympy.Symbol(letter)
    symbol = getattr(sympy, function)(symbol) if function else symbol
    product = (one[0] * symbol + one[1]) * (other[0] * symbol + other[1])
    left = printed(product)
    assert polynomials.expand(left) == printed(sympy.expand(product))
    forms = {
        (True, True): "monomial",
        (True, False): "monomial times sum",
        (False, True): "monomial times sum",
        (False, False): "square" if one == other else "product",
    }
    form = forms[one[1] == 0, other[1] == 0]
    assert polynomials.kind(left) == (f"{form} with function" if function else form)


def test_all_lines_of_the_exercise_are_reproduced(exercise):
    assert len(exercise) == 200_000
    for line in exercise:
        assert polynomials.expand(line.left) == line.right


# --- the law ----------------------------------------------------------------------------------------------------------


def assert_law(lefts):
    """Counts of everything that the law speaks of, of lines drawn with replacement."""

    def check(what, count, total, probability):
        spread = math.sqrt(total * probability * (1 - probability))
        assert abs(count - total * probability) < DEVIATIONS * spread + 1, (what, count, total * probability)

    total = len(lefts)
    symbols = [SYMBOL.search(left)[0] for left in lefts]
    letters = Counter(FUNCTION.sub(r"\1", symbol) for symbol in symbols)
    assert set(letters) == set(LETTERS)
    for letter in set(LETTERS):
        check(letter, letters[letter], total, LETTERS.count(letter) / 16)
    functions = Counter(symbol[:3] for symbol in symbols)
    for function in ("sin", "cos", "tan"):
        check(function, functions[function], total, 0.01)
    sums = Counter()
    a, b = Counter(), Counter()
    for left in lefts:
        both = list(factors(left))
        sums[len(both)] += 1
        a.update(one[0] for one in both)
        b.update(one[1] for one in both)
    for number, probability in ((0, 0.04), (1, 0.32), (2, 0.64)):
        check(f"{number} factors with a constant", sums[number], total, probability)
    pairs = sums[1] + 2 * sums[2]
    assert pairs == sum(a.values())
    assert sorted(a) == COEFFICIENTS and sorted(b) == [b for b in range(-32, 32) if b]
    for value, count in a.items():
        check(f"a = {value}", count, pairs, 0.8 / 17 + (0.2 if value == 1 else 0))
    for value, count in b.items():
        check(f"b = {value}", count, pairs, 1 / 63)


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_generated_lines_obey_the_law(seed):
    assert_law([line.partition("=")[0] for line in polynomials.generate(50_000, seed=seed)])


def test_the_lines_of_the_exercise_obey_the_law(exercise):
    assert_law([line.left for line in exercise])


def test_lines_repeat_as_often_as_those_of_the_exercise(exercise):
    """73 % of a million lines are distinct; of 200,000 lines, as many as in the file, to half a percent."""
    generated = len(set(polynomials.generate(200_000, seed=4)))
    recorded = len({line.left for line in exercise})
    assert abs(generated - recorded) < 0.005 * recorded
    assert abs(len(set(polynomials.generate(1_000_000, seed=5))) - 730_000) < 10_000


def test_kinds_are_as_frequent_as_in_the_exercise(exercise):
    of_file = Counter(polynomials.kind(line.left) for line in exercise)
    generated = Counter(polynomials.kind(line.partition("=")[0]) for line in polynomials.generate(200_000, seed=6))
    assert set(of_file) | set(generated) <= set(polynomials.KINDS)
    for kind in polynomials.KINDS:
        spread = math.sqrt(of_file[kind] + generated[kind] + 1)
        assert abs(of_file[kind] - generated[kind]) < DEVIATIONS * spread, kind


# --- streams ----------------------------------------------------------------------------------------------------------


def test_lines_are_the_recorded_ones():
    """A stream that changed would repeat or skip what a resumed run has seen, and move lines between splits."""
    assert polynomials.generate(2, seed=7, start=100) == [
        "(30-5*i)*(i+4)=-5*i**2+10*i+120",
        "(-6*y-17)*(y-13)=-6*y**2+61*y+221",
    ]
    parts = polynomials.splits(seed=1, validation=3, test=2)
    assert parts.validation == [
        "(-5*t-26)*(t-14)=-5*t**2+44*t+364",
        "(8-5*x)*(3*x-29)=-15*x**2+169*x-232",
        "(k+3)*(3*k-30)=3*k**2-21*k-90",
    ]
    assert parts.test == ["(s+10)*(5*s+11)=5*s**2+61*s+110", "(14-7*c)*(5*c-14)=-35*c**2+168*c-196"]
    assert parts.train.lines(5, 2) == ["(c-13)*(7*c-14)=7*c**2-105*c+182", "(k-5)*(k+3)=k**2-2*k-15"]


def test_lines_do_not_depend_on_threads_pieces_or_processes(threads):
    exclude = polynomials.generate(3000, seed=9)
    whole = Stream(9, exclude).lines(0, 30_000)
    for count in (1, 2, 3):
        threads(count)
        stream = Stream(9, exclude)
        assert stream.lines(0, 30_000) == whole
        assert stream.lines(12_345, 5000) == whole[12_345:17_345]
        source, target = stream.batch(0, 30_000, TOKENIZER)
        lines = zip(TOKENIZER.decode(source), TOKENIZER.decode(target), strict=True)
        assert [f"{left}={right}" for left, right in lines] == whole
    copy = pickle.loads(pickle.dumps(stream))
    assert (copy.seed, copy.excluded, copy.lines(7, 100)) == (9, stream.excluded, whole[7:107])
    assert repr(copy) == f"Stream(seed=9, excluded={stream.excluded})"


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**63), st.integers(0, 200), st.integers(0, 200))
def test_batches_side_by_side_are_one_batch(seed, start, one, other):
    stream = Stream(seed)
    lengths = (29, 30)
    both = stream.batch(start, one + other, TOKENIZER, pad_to=lengths)
    first, second = stream.batch(start, one, TOKENIZER), stream.batch(start + one, other, TOKENIZER)
    for whole, *parts, length in zip(both, first, second, lengths, strict=True):
        assert whole.dtype == np.uint8 and whole.flags.c_contiguous and whole.shape == (one + other, length)
        padded = [np.pad(part, ((0, 0), (0, length - part.shape[1]))) for part in parts]
        assert np.array_equal(np.concatenate(padded), whole)
        for part in parts:
            assert not part.size or part[:, -1].any()


def test_targets_alone_end():
    source, target = Stream(0).batch(0, 2000, TOKENIZER)
    assert not (source == TOKENIZER.end).any() and ((target == TOKENIZER.end).sum(1) == 1).all()
    after = np.cumsum(target == TOKENIZER.end, 1) > 0
    assert (target[after & (target != TOKENIZER.end)] == TOKENIZER.pad).all() and (target[~after] > TOKENIZER.end).all()


def test_the_longest_side_that_the_law_has_fits():
    """One right side in three million has 29 characters; the files that people measured show 28."""
    index = 7_189_175  # of seed 0, found by search
    (line,) = polynomials.generate(1, start=index)
    assert line == "(-2*sin(a)-32)*(8*sin(a)-32)=-16*sin(a)**2-192*sin(a)+1024"
    assert [len(side) for side in line.split("=")] == [28, 29]
    assert Stream(0).batch(index, 1, TOKENIZER)[1].shape == (1, 30)
    with pytest.raises(DataError, match=r"pad_to \(29, 29\).*\(28, 30\) tokens"):
        Stream(0).batch(index, 1, TOKENIZER, pad_to=(29, 29))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Stream(-1), "seed -1; accepted are 0 to"),
        (lambda: Stream(2**64), "seed 18446744073709551616"),
        (lambda: Stream(0).lines(-1, 1), "start -1"),
        (lambda: Stream(0).lines(0, -1), "count -1"),
        (lambda: Stream(0).lines(2**64 - 1, 2), "numbers of lines end at"),
        (lambda: Stream(0).batch(0, 2**40, TOKENIZER, pad_to=(0, 0)), "at once"),
        (lambda: Stream(0).batch(0, 9, TOKENIZER, pad_to=(5, 5)), r"pad_to \(5, 5\)"),
        (lambda: Stream(0).batch(0, 9, CharTokenizer("0123")), r"no character '\('"),
        (lambda: Stream(0, ["x**2", "x**2+1"]), "column 5"),
        (lambda: Stream(0, ["x**2\n2*x**2"]), r"column 5: unknown character '\\n'"),
        (lambda: Stream(0, [""]), "column 1"),
        (lambda: polynomials.expand("x**\ud800"), "column 4: half of a surrogate pair"),
        (lambda: polynomials.expand("(x+1)*(y+1)"), r"column 8: another symbol"),
        (lambda: polynomials.expand("(x+2)*(x+1)"), r"not as SymPy prints it, which is"),
        (lambda: polynomials.kind(""), "column 1"),
        (lambda: polynomials.expand("\x1b[31m" * 1000), r"unknown character '\\u\{1b\}'"),
    ],
)
def test_what_cannot_be_is_refused(call, message):
    with pytest.raises(DataError, match=message):
        call()


@pytest.mark.parametrize("wrong", [None, 1.5, "1", b"x", object()])
def test_other_kinds_of_objects_are_refused(wrong):
    stream = Stream(0)
    for call in (
        lambda: Stream(wrong),
        lambda: polynomials.generate(wrong),
        lambda: stream.lines(wrong, 1),
        lambda: stream.batch(0, wrong, TOKENIZER),
        lambda: stream.batch(0, 1, wrong),
        lambda: stream.batch(0, 1, TOKENIZER, pad_to=(29, object())),
        lambda: polynomials.splits(validation=wrong),
    ):
        with pytest.raises(DTypeError, match="accepted"):
            call()
    if not isinstance(wrong, str):
        for call in (polynomials.expand, polynomials.kind, lambda left: Stream(0, [left])):
            with pytest.raises(DTypeError, match="accepted are strings"):
                call(wrong)
    with pytest.raises(DTypeError, match="one for each line"):
        Stream(0, "x**2")


# --- splits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 5])
def test_splits_have_no_line_in_common(seed):
    parts = polynomials.splits(seed=seed, validation=3000, test=2000)
    validation, test = set(parts.validation), set(parts.test)
    assert (len(parts.validation), len(validation), len(parts.test), len(test)) == (3000, 3000, 2000, 2000)
    assert not validation & test
    assert parts.train.excluded == 5000
    train = set(parts.train.lines(0, 300_000))
    assert not train & (validation | test)
    assert set(polynomials.generate(300_000, seed=seed)) & (validation | test)  # the exclusion had work to do
    for line in parts.validation + parts.test:
        left, _, right = line.partition("=")
        assert polynomials.expand(left) == right


def test_validation_and_test_have_the_same_distribution():
    parts = polynomials.splits()
    assert repr(parts) == ("Splits(train=Stream(seed=0, excluded=40000), validation=20,000 lines, test=20,000 lines)")
    kinds = [
        Counter(polynomials.kind(line.partition("=")[0]) for line in part) for part in (parts.validation, parts.test)
    ]
    for kind in polynomials.KINDS:
        assert abs(kinds[0][kind] - kinds[1][kind]) < DEVIATIONS * math.sqrt(kinds[0][kind] + kinds[1][kind] + 1)


def test_splits_of_nothing_and_too_much():
    empty = polynomials.splits(validation=0, test=0)
    assert (empty.validation, empty.test, empty.train.lines(0, 9)) == ([], [], polynomials.generate(9))
    for wrong in ({"validation": -1}, {"test": 2**40}, {"seed": -1}):
        with pytest.raises(DataError):
            polynomials.splits(**wrong)


@pytest.mark.slow
def test_lines_of_a_file_are_split_by_content(exercise):
    parts = polynomials.split_lines(exercise, validation=1000, test=2000, seed=3)
    train, validation, test = (set(part) for part in (parts.train, parts.validation, parts.test))
    assert (len(parts.validation), len(parts.test)) == (len(validation), len(test)) == (1000, 2000)
    assert len(train) == len(parts.train) and not train & validation and not train & test and not validation & test
    assert train | validation | test == {f"{line.left}={line.right}" for line in exercise}
    backwards = polynomials.split_lines(reversed(exercise), validation=1000, test=2000, seed=3)
    assert set(backwards.test) == test and set(backwards.validation) == validation
    assert set(polynomials.split_lines(exercise, validation=1000, test=2000, seed=4).test) != test


def test_lines_that_contradict_each_other_are_not_split():
    with pytest.raises(DataError, match="line 3: 'a' is 'b' before and 'c' here"):
        polynomials.split_lines(["a=b", "b=b", "a=c"], validation=0, test=0)
    with pytest.raises(DataError, match="2 lines of validation and test; there are 1 distinct"):
        polynomials.split_lines(["a=b", "a=b"], validation=1, test=1)
    for wrong in ("ab", "a=b=c"):
        with pytest.raises(DataError, match=r"line 1: [02] '='"):
            polynomials.split_lines([wrong], validation=0, test=0)


# --- files ------------------------------------------------------------------------------------------------------------

PACKERS = {"txt": lambda data: data, "xz": lzma.compress, "gz": gzip.compress}


def write(tmp_path, data, kind="txt"):
    path = tmp_path / "lines"  # without a suffix: the content says what it is
    path.write_bytes(PACKERS[kind](data))
    return path


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_files_are_read_back(tmp_path, kind, ending):
    lines = polynomials.generate(5000, seed=8)
    wanted = [Line(at, *line.split("=")) for at, line in enumerate(lines, 1)]
    for last in ("", ending, ending * 2):
        path = write(tmp_path, (ending.join(lines) + last).encode(), kind)
        assert list(polynomials.read(path)) == wanted
    assert list(polynomials.read(str(write(tmp_path, b"", kind)))) == []


BAD = [
    (b"x**2", "0 '='; a line has one"),
    (b"x**2=x**2=x**2", "2 '='; a line has one"),
    (b"=x**2", "the left side has 0 characters; accepted are 1 to 29"),
    (b"x**2=", "the right side has 0 characters"),
    (b"x" * 30 + b"=x", "the left side has 30 characters; accepted are 1 to 29"),
    (b"x=" + b"x" * 30, "the right side has 30 characters"),
    (b"x**2 =x**2", "column 5: unknown character ' '; allowed are "),
    (b"x=B", "column 3: unknown character 'B'"),
    (b"x=\0", r"column 3: unknown character '\x00'"),
    (b"x=x\rx", r"column 4: unknown character '\r'"),
    ("\ufeffx=x".encode(), r"column 1: non-ASCII character '\ufeff'"),
    ("x=\u00b2".encode(), "column 3: non-ASCII character '\u00b2'"),
    (b"x=\xc3", "column 3: broken UTF-8 at byte 0xc3"),
    ("\u00b2".encode() + b"=\xff", "column 3: broken UTF-8 at byte 0xff"),
    (b"x" * 100_000, "more than 296 bytes"),
    (b"", "blank"),
    (b"\r", "blank"),
]


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize(("bad", "reason"), BAD)
def test_a_bad_line_is_reported_with_number_and_reason(tmp_path, bad, reason, kind):
    path = write(tmp_path, b"x**2=x**2\n" + bad + b"\n2*x**2=2*x**2\n", kind)
    with pytest.raises(DataError) as raised:
        list(polynomials.read(path))
    assert str(raised.value).startswith(f"{path}: line 2: {reason}")
    found = []
    lines = list(polynomials.read(path, on_error=found.append))
    assert lines == [Line(1, "x**2", "x**2"), Line(3, "2*x**2", "2*x**2")]
    ((name, number, why),) = found
    assert isinstance(found[0], BadLine) and (name, number) == (str(path), 2) and why.startswith(reason)


@given(st.lists(st.sampled_from([b"x=x", *(bad for bad, _ in BAD)]), min_size=1, max_size=12), st.booleans())
def test_every_line_is_yielded_or_reported(tmp_path_factory, lines, feed):
    path = write(tmp_path_factory.mktemp("files"), b"\n".join(lines) + b"\n" * feed)
    seen = []
    for line in polynomials.read(path, on_error=lambda bad: seen.append(bad.number)):
        seen.append(line.number)
        found = lines[line.number - 1]
        assert found == b"x=x" or (line.number == 1 and found == "\ufeffx=x".encode())
    rows = (b"\n".join(lines) + b"\n" * feed).split(b"\n")
    rows = rows[:-1] if not rows[-1] else rows  # a line feed ends a line
    rows = rows[:-1] if rows and not rows[-1].rstrip(b"\r") else rows  # and the last one may be blank
    assert seen == [*range(1, len(rows) + 1)]


def test_longer_sides_are_read_on_request(tmp_path):
    path = write(tmp_path, b"x" * 300 + b"=x\n")
    assert list(polynomials.read(path, max_length=300)) == [Line(1, "x" * 300, "x")]
    with pytest.raises(DataError, match="300 characters; accepted are 1 to 299"):
        list(polynomials.read(path, max_length=299))


@pytest.mark.parametrize("kind", ["xz", "gz"])
def test_damaged_compressed_files_are_refused(tmp_path, kind):
    data = PACKERS[kind]("\n".join(polynomials.generate(20_000)).encode())
    for broken in (data[:-20], data[: len(data) // 2], data[:1000] + b"damage" + data[1006:], data[:7]):
        path = tmp_path / "broken"
        path.write_bytes(broken)
        with pytest.raises(DataError, match=r"broken: after line \d+: compressed data is damaged or cut off"):
            list(polynomials.read(path, on_error=lambda bad: None))


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_mark_of_utf8_at_the_beginning_is_skipped(tmp_path, kind, ending):
    path = write(tmp_path, f"\ufeffx=x{ending}x=\ufeffx{ending}".encode(), kind)
    found = []
    assert list(polynomials.read(path, on_error=found.append)) == [Line(1, "x", "x")]
    assert found == [(str(path), 2, found[0].reason)] and found[0].reason.startswith("column 3: non-ASCII character")
    assert list(polynomials.read(write(tmp_path, b"\xef\xbb\xbf", kind))) == []


@pytest.mark.parametrize("kind", ["xz", "gz"])
def test_compressed_streams_may_follow_each_other_but_nothing_else(tmp_path, kind):
    one, two = (PACKERS[kind](part) for part in (b"x=x\n2*x=", b"2*x\n"))
    wanted = [Line(1, "x", "x"), Line(2, "2*x", "2*x")]
    path = tmp_path / "lines"
    for good in (
        one + two,
        one + bytes(4) + two,
        one + bytes(400_000) + two + bytes(8),
        PACKERS[kind](b"") + one + two,
    ):
        path.write_bytes(good)
        assert list(polynomials.read(path)) == wanted
    bad = [b"y", b"y=y\n", b"y" * 500_000, one[:5], one[:-1], one[: len(one) // 2], bytes(4) + b"y"]
    for rest in bad + [bytes(3), bytes(5), bytes(3) + two] * (kind == "xz"):
        path.write_bytes(one + two + rest)
        with pytest.raises(DataError, match=r"lines: after line \d: compressed data is damaged or cut off"):
            list(polynomials.read(path, on_error=lambda bad: None))


def test_no_damage_to_an_xz_file_goes_unnoticed(tmp_path):
    """Every bit, and every length: an error, or the same lines."""
    whole = lzma.compress(b"x=x\n2*x=") + bytes(4) + lzma.compress(b"2*x\n")
    path = tmp_path / "lines"
    path.write_bytes(whole)
    wanted = list(polynomials.read(path))
    flips = (whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :] for at in range(len(whole)) for bit in (0, 5))
    cuts = (whole[:length] for length in range(1, len(whole)))
    for data in itertools.chain(flips, cuts):
        path.write_bytes(data)
        with contextlib.suppress(DataError):
            assert list(polynomials.read(path)) == wanted


def test_errors_of_the_disk_name_the_file():
    with pytest.raises(OSError, match="/proc/self/mem"):
        list(polynomials.read("/proc/self/mem"))


@pytest.mark.parametrize("kind", PACKERS)
def test_pipes_are_read_like_files(tmp_path, kind):
    lines = polynomials.generate(5000, seed=8)
    data = PACKERS[kind]("\n".join(lines).encode())
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    def feed() -> None:
        with open(fifo, "wb", buffering=0) as pipe:
            for start in (0, 1, 3, 1000):  # the first bytes come one by one
                pipe.write(data[start : {0: 1, 1: 3, 3: 1000}.get(start)])
                time.sleep(0.02)

    thread = threading.Thread(target=feed)
    thread.start()
    told = []
    assert [f"{line.left}={line.right}" for line in polynomials.read(fifo, progress=told.append)] == lines
    thread.join(10)
    assert told == sorted(told) and 0 < told[-1] <= len(data)


@pytest.mark.parametrize(
    "call",
    [
        lambda bad: polynomials.expand(bad),
        lambda bad: polynomials.kind(bad),
        lambda bad: Stream(0, exclude=[bad]),
        lambda bad: polynomials.split_lines(["x=x", f"{bad}=x"], validation=0, test=0),
        lambda bad: polynomials.split_lines(["x=x", f"y={bad}"], validation=1, test=1),
        lambda bad: polynomials.split_lines([Line(2, bad, "x")], validation=0, test=0),
        lambda bad: polynomials.Passes(["x=x", f"{bad}=x"]),
        lambda bad: TOKENIZER.encode(["x", bad]),
        lambda bad: CharTokenizer(bad),
        lambda bad: CharTokenizer.from_lines(["x", bad]),
        lambda bad: WordTokenizer(["x", bad]),
        lambda bad: Sentences(("x", bad), (0, 1)),
    ],
)
def test_half_of_a_surrogate_pair_is_named_with_its_place(call):
    for bad in ("\ud800", "x\udfffx", "\udc80"):
        with pytest.raises(DataError, match="half of a surrogate pair, which is no character") as raised:
            call(bad)
        assert re.search(r"(column|position) \d", str(raised.value))


def test_missing_files_and_wrong_options_are_refused_at_once(tmp_path):
    with pytest.raises(FileNotFoundError):
        polynomials.read(tmp_path / "none")
    with pytest.raises(DTypeError, match="on_error 'skip'"):
        polynomials.read(write(tmp_path, b""), on_error="skip")
    with pytest.raises(DataError, match="max_length 0"):
        polynomials.read(write(tmp_path, b""), max_length=0)


def test_garbage_to_the_raw_stream_raises_an_exception():
    """Null addresses and nonsense, in all positions: an Exception, and no address is read."""
    stream, tokenizer = _core._PolynomialStream(0, []), _core._CharTokenizer.polynomials()
    good = (0, 5, tokenizer, (0, 200), (0, 200), None)
    garbage = [None, -1, 2**64, 2**63, 1.5, "x", b"x", (), (1,), (0, 2**63), (2**64, 1), object()]
    for position, wrong in itertools.product(range(len(good)), garbage):
        try:
            stream.batch(*good[:position], wrong, *good[position + 1 :])
        except BaseException as error:
            assert isinstance(error, Exception) and not isinstance(error, InternalError), (position, wrong, error)
    with pytest.raises(DataError, match="at once"):
        stream.text(0, 2**63)
