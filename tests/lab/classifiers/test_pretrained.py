"""Folders of transformers as classifiers: any family, scored as transformers scores them, trained and loaded again."""

import json

import pytest
import torch
from helpers.text_folders import FAMILIES, labelled_file, labelled_rows, text_folder
from octavo.compress.readers import EMOTIONS
from octavo.data.labelled import Sentences
from octavo.errors import DataError, SettingError
from octavo.lab.classifiers import kinds
from octavo.lab.classifiers.corpora import open_corpus
from octavo.lab.classifiers.pretrained import named_classes, pretrained
from octavo.lab.classifiers.text_classifier import INFO
from octavo.lab.classifiers.texts import scores
from octavo.lab.classifiers.training_run import train_classifier

SUM_ORDER = 1e-5  # padded rows are summed in another order


def sentences(count):
    rows = labelled_rows(count)
    return Sentences(tuple(text for text, _ in rows), tuple(int(name == "pos") for _, name in rows))


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_have_the_scores_that_transformers_gives_them(tmp_path, family):
    folder = text_folder(tmp_path, family, "ForSequenceClassification", num_labels=3)
    made, fresh = pretrained("transformers", folder, None)
    assert fresh == () and made.model.get_submodule(made.head).out_features == 3
    import transformers

    other = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(folder)
    texts = made.texts(sentences(7))
    for row, text in enumerate(sentences(7).texts):
        with torch.no_grad():
            expected = other(**tokens(text, return_tensors="pt")).logits[0]
        assert torch.allclose(scores(made.model.eval(), texts)[row], expected, atol=SUM_ORDER)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_is_trained_and_loaded_again(tmp_path, family):
    folder, data = text_folder(tmp_path / "folder", family), labelled_file(tmp_path / "data.tsv", 90)
    split = open_corpus(data)
    report = train_classifier(
        str(folder), split, tmp_path / "run", changes={"steps": 2, "batch_size": 16, "device": "cpu"}, progress=False
    )
    loaded, info = kinds.load(tmp_path / "run" / "model")
    assert (loaded.kind, info["kind"]) == ("transformers", "transformers")
    assert report.length == (38 if family == "Roberta" else 40)  # its table has two rows more
    right = scores(loaded.model, loaded.texts(split.test)).argmax(-1) == loaded.texts(split.test).labels
    assert int(right.sum()) == report.test[0]
    assert named_classes(tmp_path / "run" / "model") == {"neg": 0, "pos": 1}
    with pytest.raises(SettingError, match="give --model transformers --trained"):
        kinds.check_model(str(tmp_path / "run" / "model"))


def test_a_head_of_other_classes_is_left_behind_and_one_of_as_many_is_kept(tmp_path):
    folder = text_folder(tmp_path, "Bert", "ForSequenceClassification", num_labels=3)
    kept, fresh = pretrained("transformers", folder, 16, classes=3)
    assert not fresh
    other, fresh = pretrained("transformers", folder, 16, classes=5)
    assert set(fresh) == {"classifier.weight", "classifier.bias"}
    words = "bert.embeddings.word_embeddings.weight"
    assert torch.equal(other.model.get_parameter(words), kept.model.get_parameter(words))
    assert other.model.get_submodule(other.head).out_features == 5


def test_more_tokens_than_positions_are_refused(tmp_path):
    with pytest.raises(SettingError, match=r"length is 64; .* 1 to 40 tokens"):
        pretrained("transformers", text_folder(tmp_path), 64)


@pytest.mark.parametrize("name", ["nowhere", "minilm2"])
def test_what_is_no_folder_is_refused(tmp_path, name):
    with pytest.raises(SettingError, match="accepted are tiny, minilm and the folder of a model of transformers"):
        kinds.check_model(str(tmp_path / name))


# --- texts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["tsv", "jsonl"])
def test_a_file_is_cut_into_three_parts_or_has_its_test_beside_it(tmp_path, suffix):
    data = labelled_file(tmp_path / f"data.{suffix}", 100)
    test = labelled_file(tmp_path / f"test.{suffix}", 20, start=500)
    cut = open_corpus(data)
    assert [len(part) for part in (cut.train, cut.validation, cut.test)] == [80, 10, 10] and cut.held_out
    assert not set(cut.test.texts) & set(cut.train.texts) and cut.names == ("neg", "pos")
    beside = open_corpus(data, test=test)
    assert [len(part) for part in (beside.train, beside.validation, beside.test)] == [90, 10, 20]
    assert not beside.held_out and len(open_corpus(data, held_out=30).test) == 30


def test_classes_have_the_numbers_of_the_model_and_of_the_training_file(tmp_path):
    """A test file that lacks a class must not shift the numbers of the others."""
    data = labelled_file(tmp_path / "data.tsv", 90, ("a", "b", "c"))
    test = labelled_file(tmp_path / "test.tsv", 6, ("c", "b"), start=500)
    assert set(open_corpus(data, test=test).test.labels) == {1, 2}
    turned = open_corpus(data, test=test, classes={"C": 0, "B": 1, "A": 2})
    assert set(turned.test.labels) == {0, 1} and turned.names == ("C", "B", "A")


@pytest.mark.parametrize("naming", [("train.txt", "test.txt"), ("emotion_train.jsonl", "emotion_test.jsonl")])
def test_emotion_has_six_classes_in_the_order_of_its_labels(tmp_path, naming):
    for name, count in zip(naming, (2100, 12), strict=True):
        rows = labelled_rows(count, EMOTIONS, 5000 * (count == 12))
        is_json = name.endswith(".jsonl")
        lines = (json.dumps({"text": text, "label": label}) if is_json else f"{text};{label}" for text, label in rows)
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    split = open_corpus(tmp_path, corpus="emotion")
    assert split.names == EMOTIONS and set(split.test.labels) == set(range(6))
    assert [EMOTIONS[label] for label in split.test.labels] == [name for _, name in labelled_rows(12, EMOTIONS, 5000)]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"corpus": "imdb"}, SettingError, "leave --corpus out"),
        ({"test": "data.tsv", "held_out": 3}, SettingError, "give one of them"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path, options, error, message):
    data = labelled_file(tmp_path / "data.tsv", 100)
    if "test" in options:
        options = options | {"test": tmp_path / options["test"]}
    with pytest.raises(error, match=message):
        open_corpus(data, **options)
    with pytest.raises(SettingError, match="--test goes with --data FILE"):
        open_corpus(tmp_path, test=data)


def test_texts_without_classes_are_refused(tmp_path):
    with pytest.raises(DataError, match="one class alone"):
        open_corpus(labelled_file(tmp_path / "one.tsv", 50, ("pos",)))
    rows = "\n".join(f"neg\tthe film number {row}" for row in range(50))  # the label is in the first column
    (tmp_path / "turned.tsv").write_text(rows)
    with pytest.raises(DataError, match=r"50 classes in 50 texts.*header line"):
        open_corpus(tmp_path / "turned.tsv")
    more = "\n".join(f"pos\tthe film number {row}" for row in range(50, 100))
    (tmp_path / "turned.tsv").write_text(f"label\ttext\n{rows}\n{more}")  # what the message advises
    assert open_corpus(tmp_path / "turned.tsv").names == ("neg", "pos")
    (tmp_path / "gap.tsv").write_text("\n".join(f"{2 * (row % 2)}\ttext {row}" for row in range(50)))
    with pytest.raises(DataError, match="no text has the label 1"):
        open_corpus(tmp_path / "gap.tsv")


def test_the_folder_of_a_classifier_says_what_it_is(tmp_path):
    folder = text_folder(tmp_path / "folder", "Bert", "ForSequenceClassification", num_labels=2)
    made, _ = pretrained("transformers", folder, None)
    made.save(tmp_path / "saved", {})
    assert json.loads((tmp_path / "saved" / INFO).read_text())["kind"] == "transformers"
    made.save(tmp_path / "saved", {})  # replaces its own
