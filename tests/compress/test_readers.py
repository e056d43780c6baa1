"""Corpora on disk: IMDb in both of its forms, beside SST-2, cut, held out, and read at any length."""

import json
import lzma

import pytest
from hypothesis import given
from hypothesis import strategies as st
from octavo.compress import readers, sentiment
from octavo.data.labelled import Sentences, Split
from octavo.errors import DataError, SettingError
from octavo.lab.classifiers import kinds
from octavo.lab.classifiers.kinds import INFO, LONGEST, build, load
from octavo.lab.classifiers.training_run import held_out_of, train_classifier

REVIEWS = [
    (number % 2, f"Review no. {number}:<br /><br />a {'good' if number % 2 else 'bad'} film.") for number in range(60)
]


def write_lines(folder, name, reviews):
    lines = [json.dumps({"id": 1, "label": label, "rating": 10, "text": text}) for label, text in reviews]
    (folder / f"{name}.xz").write_bytes(lzma.compress("\n".join(lines).encode()))


@pytest.fixture
def imdb(tmp_path):
    write_lines(tmp_path, "imdb_train.jsonl", REVIEWS)
    write_lines(tmp_path, "imdb_test.jsonl", [*REVIEWS[:2], (1, "only tested")])
    return tmp_path


def test_reviews_are_words_and_signs(imdb):
    split = sentiment.load(imdb, "imdb", validation=10)
    assert (len(split.validation), len(split.test), split.held_out) == (10, 3, False)
    assert split.test.texts == ("Review no . 0 : a bad film .", "Review no . 1 : a good film .", "only tested")
    assert not set(split.train.texts) & {*split.validation.texts, *split.test.texts}


def test_folders_of_files_are_read_as_lines_are(imdb, tmp_path):
    tree = tmp_path / "tree"
    for part, reviews in (("train", REVIEWS), ("test", REVIEWS[:2])):
        for label, name in enumerate(readers.TREES):
            (tree / part / name).mkdir(parents=True)
            for number, (own, text) in enumerate(reviews):
                if own == label:
                    (tree / part / name / f"{number}_10.txt").write_text(text)
    found, lines = readers.CORPORA["imdb"].part(tree, "train"), readers.CORPORA["imdb"].part(imdb, "train")
    assert sorted(zip(found.texts, found.labels, strict=True)) == sorted(zip(lines.texts, lines.labels, strict=True))
    (tree / "train" / "pos" / "1_10.txt").write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"1_10\.txt: not UTF-8"):
        readers.CORPORA["imdb"].part(tree, "train")


@given(st.text())
def test_words_and_signs_stay_as_they_are(text):
    once = readers.words_and_signs(text)
    assert readers.words_and_signs(once) == once
    assert "".join(once.split()) == "".join(readers._BREAK.sub(" ", text).split())


def test_the_tokenizer_of_minilm_sees_the_same_tokens():
    transformers = pytest.importorskip("transformers")
    try:
        folder = kinds.find("minilm")
    except Exception:
        pytest.skip("MiniLM is not installed")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for text in ("It's a well-made film, isn't it?! 10/10 (sic)...", 'café_au lait -- $5.00 "quoted"'):
        assert tokenizer(text)["input_ids"] == tokenizer(readers.words_and_signs(text))["input_ids"]


@pytest.mark.parametrize(
    "line, told",
    [
        ("no json", "line 2"),
        ('{"label": 1}', "text is missing"),
        ('{"label": true, "text": "a"}', "line 2"),
        ('{"label": 10, "text": "a"}', "line 2 has the label 10; accepted are 0 to 9"),
        ('{"label": 1, "text": " <br /> "}', "line 2 has an empty text"),
        ("[1]", "line 2"),
    ],
)
def test_bad_lines_are_refused_by_their_number(tmp_path, line, told):
    path = tmp_path / "imdb_train.jsonl"
    path.write_text('{"label": 1, "text": "good"}\n' + line)
    with pytest.raises(DataError, match=r"imdb_train\.jsonl") as error:
        readers.read_jsonl(path)
    assert told in str(error.value)
    path.write_text("\n")
    with pytest.raises(DataError, match="no text"):
        readers.read_jsonl(path)


def test_what_is_not_there_says_what_is(imdb, tmp_path):
    with pytest.raises(DataError, match=r"neither sst2_train\.tsv .*corpus 'imdb' is there: give --corpus imdb"):
        sentiment.load(imdb)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="nor the folders train/neg and train/pos; they hold objects"):
        sentiment.load(tmp_path / "empty", "imdb")
    with pytest.raises(SettingError, match="unknown corpus 'yelp'; accepted are sst2, imdb"):
        sentiment.load(imdb, "yelp")


@given(validation=st.integers(1, 20), held_out=st.integers(1, 30), seed=st.integers(0, 9))
def test_texts_held_out_are_never_trained_on(validation, held_out, seed, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "held"
    if not folder.exists():
        folder.mkdir()
        write_lines(folder, "imdb_train.jsonl", REVIEWS)
        write_lines(folder, "imdb_test.jsonl", [*REVIEWS[:2], (1, "only tested")])
    own = sentiment.load(folder, "imdb", validation=validation, seed=seed)
    split = sentiment.load(folder, "imdb", validation=validation, held_out=held_out, seed=seed)
    train, chosen, test = (set(part.texts) for part in (split.train, split.validation, split.test))
    assert split.held_out and (len(chosen), len(test)) == (validation, held_out)
    assert not train & chosen and not train & test and not chosen & test
    assert not train & set(own.test.texts)  # nor is the test file
    assert split.validation == own.validation and train <= set(own.train.texts)


@pytest.mark.parametrize("held_out", [0, 58, 60])
def test_holding_out_leaves_something_to_train_on(imdb, held_out):
    with pytest.raises(DataError, match=f"2 validation texts and {held_out} held out; accepted are 1 to 59"):
        sentiment.load(imdb, "imdb", validation=2, held_out=held_out)


def test_a_model_reads_as_many_tokens_as_it_was_trained_on(tmp_path):
    part = Sentences(("word " * 700, "another text"), (0, 1))
    split = Split(part, part, part, held_out=True)
    made = build("tiny", split, 512)
    assert [len(ids) for ids in made.texts(part).ids] == [512, 2]
    made.save(tmp_path / "model", {})
    again, info = load(tmp_path / "model")
    assert (again.length, info["length"]) == (512, 512) and again.texts(part).ids == made.texts(part).ids
    for length in (0, 513, True):
        with pytest.raises(SettingError, match="accepted are 1 to 512 tokens"):
            build("tiny", split, length)
    info.update(length=900)
    (tmp_path / "model" / INFO).write_text(json.dumps(info))
    with pytest.raises(DataError, match=rf"{INFO}: length is 900"):
        load(tmp_path / "model")


def test_a_run_goes_on_with_what_it_held_out_alone(tmp_path):
    """The folder says how many texts were held out; another split or length is another run."""
    texts = Sentences(tuple(f"film {number} {'good' if number % 2 else 'bad'}" for number in range(32)), (0, 1) * 16)
    split = Split(texts.pick(range(16)), texts.pick(range(16, 24)), texts.pick(range(24, 32)), held_out=True)
    given = dict(changes={"batch_size": 8, "steps": 2, "device": "cpu"}, progress=False)
    report = train_classifier("tiny", split, tmp_path, **given)
    assert report.as_dict()["held_out"] and report.as_dict()["length"] == LONGEST
    assert "of 8 texts held out of training" in dict(report.results())["test"]
    assert held_out_of(tmp_path) == 8
    assert train_classifier("tiny", split, tmp_path, **given).as_dict() == report.as_dict()
    other = Split(split.train, split.validation, split.test)
    with pytest.raises(Exception, match="of a run on other data"):
        train_classifier("tiny", other, tmp_path, **given)
