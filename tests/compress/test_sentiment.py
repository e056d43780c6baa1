"""Labelled sentences: what is read, what is refused, and a split that cannot leak."""

import lzma

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.compress import readers, sentiment
from octavo.data.words import WordTokenizer
from octavo.errors import DataError
from octavo.lab.polynomials.data import expand, signs

HEADER = "label\tsentence\n"
TRAIN, TEST = readers.CORPORA["sst2"].files.values()


def write(folder, name, lines, compressed=False):
    content = (HEADER + "".join(f"{label}\t{text}\n" for label, text in lines)).encode()
    path = folder / (f"{name}.xz" if compressed else name)
    path.write_bytes(lzma.compress(content) if compressed else content)
    return path


@pytest.fixture
def folder(tmp_path):
    """Forty training sentences, two of them test sentences as well."""
    train = [(number % 2, f"sentence number {number}") for number in range(40)]
    write(tmp_path, TRAIN, train, compressed=True)
    write(tmp_path, TEST, [*train[3:5], (1, "only tested")])
    return tmp_path


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_is_read_as_written(tmp_path, compressed):
    path = write(
        tmp_path, "some.tsv", [(0, "dull , dull"), (1, "a\tTAB is part of a sentence"), (1, "café")], compressed
    )
    read = readers.read_tsv(path)
    assert read.texts == ("dull , dull", "a\tTAB is part of a sentence", "café")
    assert read.labels == (0, 1, 1)


@pytest.mark.parametrize(
    "content, told",
    [
        (b"", "line 1 is the header"),
        (b"0\tno header\n", "line 1 is the header 'label<TAB>sentence', got '0\\\\tno header'"),
        (b"label\tsentence\n", "no sentence behind the header"),
        (b"label\tsentence\n1\tgood\n1 no tab\n", "line 3 is '1 no tab'"),
        (b"label\tsentence\n1\t \n", "line 2 is"),
        (b"label\tsentence\n-1\tbad\n", "line 2 has the label '-1'; accepted are 0 to 9"),
        (b"label\tsentence\n1.0\tbad\n", "label '1.0'"),
        ("label\tsentence\n²\tbad\n".encode(), "label '²'"),
        (b"label\tsentence\n1\tgood\n1\t\xff\n", "line 3 is not UTF-8"),
    ],
)
def test_bad_files_are_refused_with_their_line(tmp_path, content, told):
    path = tmp_path / "bad.tsv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"bad\.tsv") as error:
        readers.read_tsv(path)
    assert told.replace("\\\\", "\\") in str(error.value)


def test_what_is_no_xz_file_is_refused(tmp_path):
    path = tmp_path / "bad.tsv.xz"
    path.write_bytes(b"label\tsentence\n1\tgood\n")
    with pytest.raises(DataError, match="not an xz file"):
        readers.read_tsv(path)


def test_bytes_behind_the_last_stream_are_refused(tmp_path):
    path = tmp_path / "bad.tsv.xz"
    for rest in (b"x", b"1\tgood\n", lzma.compress(b"1\tmore\n")[:-4]):
        path.write_bytes(lzma.compress(b"label\tsentence\n1\tgood\n") + rest)
        with pytest.raises(DataError, match="compressed data is damaged or cut off"):
            readers.read_tsv(path)


def test_a_mark_of_utf8_and_unusual_ends_of_lines_tear_no_sentence(tmp_path):
    path = tmp_path / "file.tsv"
    path.write_bytes("\ufefflabel\tsentence\r\n1\tgood\u2028very\r\n0\tbad\u0085\r\n".encode())
    assert readers.read_tsv(path).texts == ("good\u2028very", "bad")


def test_a_folder_without_the_files_says_what_it_looked_for(tmp_path):
    with pytest.raises(DataError, match=r"neither sst2_train\.tsv nor sst2_train\.tsv\.xz"):
        sentiment.load(tmp_path)


def test_no_text_is_in_two_parts(folder):
    """Validation sentences are not trained on, nor is a test sentence that occurs in the training file."""
    split = sentiment.load(folder, validation=10)
    train, validation, test = (set(part.texts) for part in (split.train, split.validation, split.test))
    assert len(validation) == 10 and len(test) == 3
    assert not train & validation and not train & test
    assert len(train) + len(validation | test) == 41


def test_the_split_is_decided_by_the_seed_alone(folder):
    assert sentiment.load(folder, validation=10) == sentiment.load(folder, validation=10)
    assert sentiment.load(folder, validation=10).digest() == sentiment.load(folder, validation=10).digest()
    assert sentiment.load(folder, validation=10, seed=1).digest() != sentiment.load(folder, validation=10).digest()


@pytest.mark.parametrize("validation", [0, 40, 41])
def test_a_split_leaves_something_to_train_on(folder, validation):
    with pytest.raises(DataError, match="accepted are 1 to 39"):
        sentiment.load(folder, validation=validation)


def test_the_real_files_are_those_of_the_source(shared):
    """SST-2 as it is distributed: 67,349 and 872 sentences, of which no test sentence is trained on."""
    if not (shared / "data" / "sst2_dev.tsv.xz").exists():
        pytest.skip("SST-2 is absent")
    split = sentiment.load(shared / "data")
    assert len(split.test) == 872 and sum(split.test.labels) == 444
    assert len(split.validation) == 2000
    assert not set(split.train.texts) & (set(split.test.texts) | set(split.validation.texts))


@given(st.lists(st.text(min_size=1), min_size=1))
def test_every_text_has_an_id_at_least_and_all_are_in_range(texts):
    tokenizer = WordTokenizer.of(texts, least=1)
    for text in texts:
        ids = tokenizer.encode(text)
        assert ids and all(0 < number < len(tokenizer) for number in ids)
        assert (tokenizer.unknown in ids) == (not text.split())
    assert set(WordTokenizer(["good"]).encode("what word")) == {WordTokenizer.unknown}


def test_rare_words_are_unknown_and_frequent_ones_come_first():
    tokenizer = WordTokenizer.of(["b a", "A b", "b once"])
    assert tokenizer.words == ("b", "a")
    assert tokenizer.encode("a once b") == [3, 1, 2]


@pytest.mark.parametrize("words", [["a", ""], ["a b"], ["a", "a"], [3]])
def test_a_vocabulary_of_no_words_is_refused(words):
    with pytest.raises(DataError, match="the word"):
        WordTokenizer(words)


@pytest.mark.parametrize(
    "left, label",
    [
        ("(7-3*z)*(2*z+5)", 0),
        ("(x-2)*(x+1)", 0),
        ("(x-1)*(x+2)", 2),
        ("(x-1)*(x+1)", 1),
        ("9*s**2", 1),
        ("-4*c*(c-11)", 2),
    ],
)
def test_signs_are_those_of_the_linear_term(left, label):
    assert signs.sign(expand(left)) == label


def test_signs_agree_with_sympy():
    sympy = pytest.importorskip("sympy")
    for left, label in zip(
        *(lambda s: (s.texts[:60], s.labels[:60]))(signs.load(60, validation=8, test=8).train), strict=True
    ):
        letter = sympy.Symbol("q")
        symbol = left.replace("sin", "").replace("cos", "").replace("tan", "")
        name = next(c for c in symbol if c.isalpha())
        text = (
            left.replace(f"sin({name})", "q")
            .replace(f"cos({name})", "q")
            .replace(f"tan({name})", "q")
            .replace(name, "q")
        )
        linear = sympy.Poly(sympy.sympify(text), letter).coeff_monomial(letter)
        assert label == 1 + sympy.sign(linear)


def test_generated_texts_do_not_leak_either():
    split = signs.load(2000, validation=100, test=200)
    assert (len(split.train), len(split.validation), len(split.test)) == (2000, 100, 200)
    assert not set(split.train.texts) & (set(split.validation.texts) | set(split.test.texts))
    assert not set(split.validation.texts) & set(split.test.texts)
    assert split == signs.load(2000, validation=100, test=200)
