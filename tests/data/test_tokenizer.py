"""The character tokenizer: what is encoded is decoded, and what is broken says where."""

import json
import os
import pickle
import stat

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from octavo import DataError, DTypeError, InternalError, ShapeError, _core
from octavo.data import CharTokenizer
from octavo.lab.polynomials import data as polynomials

texts = st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=30), max_size=20)


@given(texts, st.booleans(), st.booleans(), st.sampled_from([np.uint8, np.int64]), st.integers(0, 3))
def test_decode_inverts_encode(lines, start, end, dtype, room):
    assume(0 < len(set("".join(lines))) <= 253)
    tokenizer = CharTokenizer.from_lines(lines)
    assert tokenizer.characters == "".join(sorted(set("".join(lines))))
    longest = max(len(line) for line in lines) + start + end
    ids, lengths = tokenizer.encode(lines, start=start, end=end, dtype=dtype)
    assert ids.shape == (len(lines), longest) and ids.dtype == dtype and lengths.dtype == np.int64
    assert lengths.tolist() == [len(line) + start + end for line in lines]
    assert tokenizer.decode(ids) == lines
    for row, line in zip(ids.tolist(), lines, strict=True):
        wanted = [1] * start + [3 + tokenizer.characters.index(character) for character in line] + [2] * end
        assert row == wanted + [0] * (longest - len(wanted))
    padded, _ = tokenizer.encode(lines, longest + room, start=start, end=end)
    assert np.array_equal(padded, np.pad(ids, ((0, 0), (0, room))))
    of_bytes, _ = tokenizer.encode("\n".join([*lines, ""]).encode(), start=start, end=end)
    assert np.array_equal(of_bytes, ids)


def test_the_vocabulary_of_polynomials_is_that_of_their_lines():
    tokenizer = CharTokenizer.polynomials()
    lines = polynomials.generate(5000)
    sides = [side for line in lines for side in line.split("=")]
    assert tokenizer == CharTokenizer.from_lines(sides) == CharTokenizer.from_lines("\n".join(sides).encode())
    assert tokenizer.characters == "()*+-0123456789achijknostxyz" == polynomials.CHARACTERS
    assert (tokenizer.size, tokenizer.pad, tokenizer.start, tokenizer.end) == (31, 0, 1, 2)
    with pytest.raises(DataError, match="line 1, column 5: character '=' is not in the vocabulary"):
        tokenizer.encode(["x**2=x**2"])


def test_results_do_not_depend_on_the_number_of_threads():
    tokenizer = CharTokenizer("abcdefghijklmnopqrstuvwxyzäöü ")
    rng = np.random.default_rng(0)
    lines = ["".join(rng.choice(list(tokenizer.characters), n)) for n in rng.integers(0, 40, 20_000)]
    before = _core.num_threads()
    try:
        found = []
        for threads in (1, 2, 5):
            _core.set_num_threads(threads)
            ids, lengths = tokenizer.encode(lines)
            assert tokenizer.decode(ids) == lines
            found.append((ids.tobytes(), lengths.tobytes()))
            for broken in (7, 19_990):
                wrong = [*lines[:broken], "a?", *lines[broken:-100], "?"]
                with pytest.raises(DataError, match=rf"^line {broken + 1}, column 2: character '\?'"):
                    tokenizer.encode(wrong)
        assert found[0] == found[1] == found[2]
    finally:
        _core.set_num_threads(before)


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (["ab", "aXb"], {}, "line 2, column 2: character 'X' is not in the vocabulary; allowed are \"abc\""),
        (["ab", "cäb"], {}, "line 2, column 2: character 'ä'"),
        (["ab", "abcabc"], {"max_length": 6}, "line 2: 7 tokens, 1 of them special; the limit is 6"),
        (["ab", "abcabc"], {"max_length": 5, "end": False}, "line 2: 6 tokens; the limit is 5"),
        ([""], {"max_length": 1, "start": True}, "line 1: 2 tokens, 2 of them special; the limit is 1"),
        (["ab", "a\nb"], {}, "line 2, column 2: a line feed"),
        (["ab", "\n"], {}, "line 2, column 1: a line feed"),
        (["ab", "ab\ud800"], {}, "line 2, column 3: half of a surrogate pair"),
        (["\udfff"], {}, "line 1, column 1: half of a surrogate pair"),
        (b"ab\nb\xffa", {}, "line 2, column 2: broken UTF-8 at byte 0xff"),
        (b"ab\r\n", {}, r"line 1, column 3: character '\r'"),
    ],
)
def test_broken_lines_say_where_and_why(lines, options, message):
    with pytest.raises(DataError) as raised:
        CharTokenizer("abc").encode(lines, **options)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("lines", "options", "error"),
    [
        ("abc", {}, DTypeError),
        (5, {}, DTypeError),
        (None, {}, DTypeError),
        (["a", 5], {}, DTypeError),
        ([b"a"], {}, DTypeError),
        (memoryview(np.ones((4, 4))), {}, DTypeError),
        (memoryview(b"abab")[::2], {}, DTypeError),
        (["a"], {"dtype": np.int32}, DTypeError),
        (["a"], {"dtype": np.float32}, DTypeError),
        (["a"], {"max_length": -1}, DataError),
        (["a"], {"max_length": 1.5}, DTypeError),
    ],
)
def test_other_kinds_of_lines_are_refused(lines, options, error):
    with pytest.raises(error) as raised:
        CharTokenizer("abc").encode(lines, **options)
    assert str(raised.value)[0].islower()


def test_lines_may_be_bytes_of_any_kind():
    tokenizer = CharTokenizer("abc")
    wanted, _ = tokenizer.encode(["ab", "", "c"])
    for data in (b"ab\n\nc", b"ab\n\nc\n", bytearray(b"ab\n\nc"), memoryview(b"ab\n\nc\n"), iter(["ab", "", "c"])):
        assert np.array_equal(tokenizer.encode(data)[0], wanted)
    for nothing in ([], b"", (), iter([])):
        ids, lengths = tokenizer.encode(nothing)
        assert ids.shape == (0, 1) and lengths.shape == (0,) and tokenizer.decode(ids) == []
    assert tokenizer.encode([""])[0].tolist() == [[2]]
    assert tokenizer.encode(["", ""], end=False)[0].shape == (2, 0)
    assert tokenizer.decode(np.empty((2, 0), np.uint8)) == ["", ""]


@pytest.mark.parametrize(
    "kind",
    [
        np.uint8,
        np.int8,
        np.int16,
        np.int32,
        np.int64,
        np.uint16,
        np.uint32,
        torch.uint8,
        torch.int32,
        torch.int64,
        list,
    ],
)
def test_ids_of_every_integer_dtype_are_decoded(kind):
    rows = [[1, 3, 4, 0, 5, 2, 99], [2, 99, 99, 99, 99, 99, 99], [0, 0, 0, 0, 0, 0, 0], [3, 3, 3, 3, 3, 3, 3]]
    wanted = ["abc", "", "", "aaaaaaa"]
    if kind is list:
        ids = rows
    elif isinstance(kind, torch.dtype):
        ids = torch.tensor(rows, dtype=kind)
    else:
        ids = np.array(rows, kind)
    assert CharTokenizer("abc").decode(ids) == wanted
    if kind is not list:
        assert CharTokenizer("abc").decode(ids[:, :5]) == ["abc", "", "", "aaaaa"]
        assert CharTokenizer("abc").decode(ids[::2]) == wanted[::2]


def test_what_is_no_id_is_refused():
    tokenizer = CharTokenizer("abc")
    for wrong in (6, 255, -1, 2**63 - 1, -(2**63)):
        with pytest.raises(DataError, match=rf"^row 2, column 3: id {wrong}; accepted are 0 to 5$"):
            tokenizer.decode(np.array([[3, 3, 3], [3, 3, wrong]]))
    for shape in ((), (3,), (1, 2, 3)):
        with pytest.raises(ShapeError, match="rows of ids"):
            tokenizer.decode(np.zeros(shape, np.uint8))
    for dtype in (np.float32, bool, np.uint64, object, "U1"):
        with pytest.raises(DTypeError, match="accepted are integers"):
            tokenizer.decode(np.zeros((1, 1), dtype))


# --- vocabularies and files -------------------------------------------------------------------------------------------


def test_vocabularies_have_limits():
    many = "".join(map(chr, range(0x4E00, 0x4E00 + 254)))
    for make in (CharTokenizer, lambda text: CharTokenizer.from_lines([text])):
        with pytest.raises(DataError, match="a vocabulary of 254 characters; accepted are 1 to 253"):
            make(many)
        with pytest.raises(DataError, match="a vocabulary of 0 characters"):
            make("")
        with pytest.raises(DataError, match="line feed"):
            make("a\n")
        with pytest.raises(DataError, match="surrogate"):
            make("\ud800")
        full = make(many[1:])
        assert full.size == 256 and full.decode(full.encode([many[1:]])[0]) == [many[1:]]
    with pytest.raises(DTypeError):
        CharTokenizer(5)


def test_equal_vocabularies_are_equal():
    one, other = CharTokenizer("cab"), CharTokenizer("aabbcc")
    assert one == other and hash(one) == hash(other) and one != CharTokenizer("ab") and one != "abc"
    assert repr(one) == "CharTokenizer('abc')"
    assert pickle.loads(pickle.dumps(one)) == one


@given(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), min_size=1, max_size=60))
def test_files_are_read_back(tmp_path_factory, characters):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer = CharTokenizer(characters)
    tokenizer.save(path)
    assert CharTokenizer.load(path) == tokenizer
    assert json.loads(path.read_bytes()) == {
        "type": "char",
        "version": 1,
        "special": {"pad": 0, "start": 1, "end": 2},
        "characters": tokenizer.characters,
    }
    assert os.listdir(path.parent) == ["tokenizer.json"]


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path):
    path = tmp_path / "tokenizer.json"
    CharTokenizer("a").save(path)
    path.chmod(0o640)
    CharTokenizer("b").save(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o640 and CharTokenizer.load(path).characters == "b"
    with pytest.raises(OSError):
        CharTokenizer("a").save(tmp_path)
    with pytest.raises(FileNotFoundError):
        CharTokenizer("a").save(tmp_path / "none" / "tokenizer.json")
    with pytest.raises(FileNotFoundError):
        CharTokenizer.load(tmp_path / "none")


GOOD = '{"type":"char","version":1,"special":{"pad":0,"start":1,"end":2},"characters":"ab"}'


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "EOF"),
        ("{}", "missing field"),
        ("[]", "invalid"),
        ("null", "invalid type"),
        (GOOD[:-1], "EOF"),
        (GOOD + "x", "trailing"),
        (GOOD.replace("ab", "ba"), "'a' at position 1 is out of order"),
        (GOOD.replace("ab", "aa"), "'a' at position 1 stands twice"),
        (GOOD.replace("ab", ""), "0 characters"),
        (GOOD.replace("ab", r"\nab"), "line feed"),
        (GOOD.replace("ab", r"\udc00"), "surrogate"),
        (GOOD.replace("ab", "".join(map(chr, range(0x4E00, 0x4F00)))), "more than 253"),
        (GOOD.replace("ab", "a" * 70_000), "at most 65536"),
        (GOOD.replace('"ab"', "5"), "invalid type"),
        (GOOD.replace('"char"', '"bpe"'), 'type "bpe", version 1; accepted is "char", version 1'),
        (GOOD.replace('version":1', 'version":2'), "version 2"),
        (GOOD.replace('version":1', 'version":1.0'), "invalid type"),
        (GOOD.replace('version":1', 'version":1,"version":1'), "duplicate field"),
        (GOOD.replace('version":1', 'version":1,"comment":1'), "unknown field `comment`"),
        (GOOD.replace('"pad":0', '"pad":3'), "special tokens pad 3"),
        (GOOD.replace('"pad":0', '"pad":0,"mask":3'), "unknown field `mask`"),
        (GOOD.replace('"pad":0,', ""), "missing field `pad`"),
        ("[" * 60_000, "invalid"),
        (" " * 100_000 + GOOD, "at most 65536"),
        ("\ufeff" + GOOD, "expected value"),
    ],
)
def test_hostile_files_are_refused(tmp_path, content, reason):
    path = tmp_path / "tokenizer.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError) as raised:
        CharTokenizer.load(path)
    assert str(raised.value).startswith(f"{path}: ") and reason in str(raised.value)
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize(
    "data", [b"\xff\xfe", b"\0" * 100, GOOD.encode("utf-16"), GOOD.encode().replace(b"ab", b"a\xff")]
)
def test_files_that_are_no_text_are_refused(tmp_path, data):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(data)
    with pytest.raises(DataError):
        CharTokenizer.load(path)


def test_garbage_to_the_raw_tokenizer_raises_an_exception(tmp_path, monkeypatch):
    """Null addresses and nonsense in every position: an Exception, and no address is read."""
    monkeypatch.chdir(tmp_path)  # where "x" is a path to save to
    core = _core._CharTokenizer.polynomials()
    garbage = [None, -1, 2**64, 1.5, "x", b"x", (), (1,), (0, 2**63), (2**64, 1), object()]
    calls = {
        core.encode: ((0, 4), 2, 3, (False, True), False, 0, 0),
        core.decode: (0, 2, 3, True),
        core.measure: ((0, 4),),
        core.from_lines: ((0, 4),),
        core.from_characters: ("a",),
        core.save: ("/nowhere/at/all",),
        core.load: ("/nowhere/at/all",),
    }
    for call, good in calls.items():
        for position in range(len(good)):
            for wrong in garbage:
                try:
                    call(*good[:position], wrong, *good[position + 1 :])
                except BaseException as error:
                    assert isinstance(error, Exception) and not isinstance(error, InternalError), (call, wrong, error)
