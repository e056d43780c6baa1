"""Text classifiers: padding changes nothing, folders come back, runs resume, batches are a function of their number."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from octavo.data.labelled import Sentences, Split
from octavo.data.words import WordTokenizer
from octavo.errors import ContainerError, DataError, SettingError, ShapeError
from octavo.lab.classifiers import Classifier, ClassifierConfig
from octavo.lab.classifiers.kinds import FORMER_VOCABULARY, INFO, VOCABULARY, build, load
from octavo.lab.classifiers.texts import WINDOW, ClassifierTask, Texts, scores
from octavo.lab.classifiers.training_run import train_classifier, train_config
from octavo.lab.polynomials.data import signs
from octavo.model_folder.weight_files import PACKED_NAME
from octavo.tensors import container
from octavo.train import seed_all

SUM_ORDER = 1e-5  # padded rows are summed in another order

SMALL = dict(vocabulary=20, width=16, layers=1, heads=2, feed_forward=32, positions=64)


def texts(lengths, classes=2):
    generator = torch.Generator().manual_seed(sum(lengths))
    ids = [tuple(torch.randint(1, 20, (length,), generator=generator).tolist()) for length in lengths]
    return Texts(tuple(ids), torch.tensor([number % classes for number in range(len(ids))]))


@pytest.fixture(scope="module")
def model():
    seed_all(0)
    return Classifier(ClassifierConfig(**SMALL)).eval()


@given(lengths=st.lists(st.integers(1, 64), min_size=1, max_size=9))
def test_scores_do_not_depend_on_what_else_is_in_the_batch(model, lengths):
    """Padding is masked, and every text gets its own row back whatever order batches have."""
    given = texts(lengths)
    together = scores(model, given)
    for row in range(len(given)):
        assert torch.allclose(together[row], scores(model, given.pick([row]))[0], atol=SUM_ORDER)


def test_measuring_leaves_the_mode_as_it_is(model):
    for training in (True, False):
        model.train(training)
        scores(model, texts([3]))
        assert model.training is training


@given(count=st.integers(8, 90), batch=st.integers(2, 8), epoch=st.integers(0, 3))
def test_an_epoch_takes_every_text_once_but_for_the_rest(count, batch, epoch):
    given = texts([1 + number % 13 for number in range(count)])
    given = Texts(tuple((*ids, number + 100) for number, ids in enumerate(given.ids)), given.labels)
    task = ClassifierTask(given, given, batch, seed=3)
    seen = []
    for update in range(task.updates_per_epoch):
        step = epoch * task.updates_per_epoch + update
        whole = task.batch(step, 0, 0, batch)
        halves = [task.batch(step, 0, 0, batch // 2), task.batch(step, 0, batch // 2, batch - batch // 2)]
        assert torch.equal(whole["labels"], torch.cat([half["labels"] for half in halves]))
        seen += whole["input_ids"].amax(1).tolist()
    assert len(seen) == len(set(seen)) == count // batch * batch


def test_batches_hold_texts_of_like_length():
    given = texts([1 + number * 7919 % 61 for number in range(16 * WINDOW)])
    task = ClassifierTask(given, given, 16)
    masks = [task.batch(step, 0, 0, 16)["attention_mask"] for step in range(WINDOW)]
    padded = sum(mask.numel() - int(mask.sum()) for mask in masks)
    assert padded < 0.2 * sum(int(mask.sum()) for mask in masks)


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"vocabulary": 1}, "vocabulary is 1"),
        ({"width": 15}, "heads is 2; accepted are divisors of the width, 15"),
        ({"layers": 0}, "layers is 0"),
        ({"heads": True}, "heads is True"),
        ({"dropout": 1.0}, "dropout is 1.0"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(changes, told):
    with pytest.raises(SettingError, match=told):
        ClassifierConfig(**{**SMALL, **changes})


def test_texts_longer_than_the_positions_are_refused(model):
    with pytest.raises(ShapeError, match=r"\(1, 65\); accepted is \[B, T\], T up to 64"):
        model(torch.ones(1, 65, dtype=torch.int64))


@pytest.fixture(scope="module")
def words():
    lines = [("good film", 1), ("bad film", 0), ("very good", 1), ("very bad", 0)] * 8
    part = Sentences(*zip(*lines, strict=True))
    return Split(part, part.pick(range(4)), part.pick(range(4)))


@pytest.mark.parametrize("kind", ["words", "characters"])
def test_a_folder_comes_back_as_it_was(tmp_path, words, kind):
    split = words if kind == "words" else signs.load(64, validation=8, test=8)
    made = build("tiny", split)
    made.save(tmp_path / "model", {"data": split.digest()})
    found, info = load(tmp_path / "model")
    assert info["data"] == split.digest() and found.kind == "tiny"
    assert found.texts(split.test).ids == made.texts(split.test).ids
    assert torch.equal(scores(found.model, found.texts(split.test)), scores(made.model, made.texts(split.test)))


@pytest.mark.parametrize("kind", ["words", "characters"])
def test_folders_of_0_1_are_read(tmp_path, words, kind):
    split = words if kind == "words" else signs.load(64, validation=8, test=8)
    made = build("tiny", split)
    made.save(tmp_path / "new", {"data": "x"})
    former(tmp_path / "new", tmp_path / "old")
    found, info = load(tmp_path / "old")
    assert info["data"] == "x" and found.texts(split.test).ids == made.texts(split.test).ids
    assert torch.equal(scores(found.model, found.texts(split.test)), scores(made.model, made.texts(split.test)))
    found.save(tmp_path / "old", {})  # in its place
    assert {file.name for file in (tmp_path / "old").iterdir()} == {"config.json", INFO, PACKED_NAME, VOCABULARY}


def former(new, old):
    """The same classifier as 0.1 wrote it."""
    old.mkdir()
    tokens, shape = (json.loads((new / name).read_text()) for name in (VOCABULARY, "config.json"))
    kept = {name: value for name, value in tokens.items() if name in ("words", "characters")}
    (old / FORMER_VOCABULARY).write_text(json.dumps(kept))
    sizes = {name: value for name, value in shape.items() if name not in ("octavo", "kind")}
    (old / "shape.json").write_text(json.dumps(sizes))
    (old / INFO).write_bytes((new / INFO).read_bytes())
    container.save(container.load(new / PACKED_NAME), old / "model.safetensors", metadata={"format": "pt"})


def test_folders_that_are_none_are_refused(tmp_path, words):
    with pytest.raises(FileNotFoundError):
        load(tmp_path)
    made = build("tiny", words)
    made.save(tmp_path / "model", {})
    config = tmp_path / "model" / "config.json"
    shape = json.loads(config.read_text())
    config.write_text(json.dumps({**shape, "layers": 3}))
    with pytest.raises(ContainerError, match=rf"{PACKED_NAME}: encoder\.2\..* is missing"):
        load(tmp_path / "model")
    config.write_text(json.dumps({**shape, "depth": 3}))
    with pytest.raises(ContainerError, match="depth is no field"):
        load(tmp_path / "model")
    config.write_text(json.dumps({**shape, "vocabulary": shape["vocabulary"] + 1}))
    with pytest.raises(ContainerError, match="has shape"):
        load(tmp_path / "model")
    config.write_text(json.dumps(shape))
    WordTokenizer(["one"]).save(tmp_path / "model" / VOCABULARY)
    with pytest.raises(ContainerError, match="3 ids; the model has"):
        load(tmp_path / "model")
    (tmp_path / "model" / VOCABULARY).write_text('{"type": "word", "version": 2, "words": []}')
    with pytest.raises(DataError, match="version 2; accepted are 'word' and 1"):
        load(tmp_path / "model")
    (tmp_path / "model" / INFO).write_text('{"octavo": 1, "kind": "huge"}')
    with pytest.raises(DataError, match="kind 'huge'"):
        load(tmp_path / "model")
    (tmp_path / "model" / INFO).write_text("no json")
    with pytest.raises(DataError, match="not JSON"):
        load(tmp_path / "model")


def test_an_unknown_kind_is_refused(words):
    with pytest.raises(SettingError, match="unknown model 'bert'; accepted are tiny, minilm"):
        build("bert", words)


def test_a_run_learns_and_is_not_trained_twice(tmp_path, words):
    """Four sentences by heart; the same call measures the finished run again, to the same bits."""
    changes = {"batch_size": 8, "learning_rate": 3e-3, "device": "cpu"}
    report = train_classifier("tiny", words, tmp_path, epochs=15, changes=changes, progress=False)
    assert report.test == (4, 4) and report.result.reason == "finished"
    weights = (tmp_path / "model" / PACKED_NAME).read_bytes()
    again = train_classifier("tiny", words, tmp_path, epochs=15, changes=changes, progress=False)
    assert again.as_dict() == report.as_dict()
    assert (tmp_path / "model" / PACKED_NAME).read_bytes() == weights


def test_the_recipe_counts_passes_over_the_data():
    config = train_config("minilm", 3200, epochs=2)
    assert (config.steps, config.batch_size, config.warmup) == (200, 32, 12)
    assert train_config("tiny", 64, steps=7).steps == 7
