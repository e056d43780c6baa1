"""SIGKILL before every change of the file system: what is there is whole, and the next run leaves nothing behind.

The quick tests take some moments of each; ``pytest -m slow`` takes all of them.
"""

import json
import shutil
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace

import octavo
import pytest
import torch
from helpers.files import contents, entry_names
from helpers.ptrace import needed, sweep
from octavo.cli import app
from octavo.data import CharTokenizer
from octavo.lab.classifiers import Classifier, ClassifierConfig
from octavo.lab.classifiers.kinds import tiny_classifier, vocabulary_of
from octavo.lab.classifiers.training_run import Hyperparameters
from octavo.lab.polynomials import compression as polynomials
from octavo.lab.polynomials import export
from octavo.lab.polynomials.data import Splits, signs
from octavo.lab.polynomials.seq2seq import Seq2SeqConfig, build
from octavo.lab.studies import result_files as studies
from octavo.lab.studies.measured_points import Laboratory, Point, Training
from octavo.lab.studies.subject import ClassifierSubject
from octavo.search.journal import NAME, Journal
from octavo.storage import files, folders
from octavo.tensors import container
from octavo.train import checkpoint, read_metrics, seed_all, strip_timings
from torch import nn
from train.tiny import run as train
from typer.testing import CliRunner

pytestmark = [needed, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]
QUICK, LEAST = 12, 10  # some of the moments may come after the end


@pytest.fixture(params=[QUICK, pytest.param(None, marks=pytest.mark.slow)], ids=["quick", "all"])
def most(request):
    """How many moments are tried: some, or every one."""
    return request.param


def swept(tmp_path, most, name, write, old, new):
    """Sweep ``write``, by which the folder ``old`` made becomes what ``new`` makes, with a file of the user in it."""
    target = tmp_path / "work" / name
    states = []
    for make in (old, new):
        make()
        states.append({**contents(target), "mine/notes.txt": b"mine"})
        shutil.rmtree(target)

    def prepare():
        shutil.rmtree(target.parent)
        old()
        (target / "mine").mkdir()
        (target / "mine" / "notes.txt").write_bytes(b"mine")

    def check():
        assert contents(target) in states
        write()
        assert contents(target) == states[1]
        assert entry_names(target.parent) == [name]

    return sweep(write, check, prepare=prepare, most=most)


# --- files and folders ------------------------------------------------------------------------------------------------


def test_a_file_is_the_old_or_the_new_one(tmp_path):
    path = tmp_path / "file"

    def work():
        files.write(path, b"new" * 100_000)

    def check():
        assert path.read_bytes() in (b"old", b"new" * 100_000)
        work()
        assert entry_names(tmp_path) == ["file"]

    assert sweep(work, check, prepare=lambda: path.write_bytes(b"old")) >= 5


@pytest.mark.parametrize("there", [False, True])
def test_a_container_is_the_old_or_the_new_one(tmp_path, there):
    path = tmp_path / "a.safetensors"

    def work():
        container.save({"a": torch.ones(10_000), "b": torch.zeros(3)}, path)

    def prepare():
        path.unlink(missing_ok=True)
        if there:
            container.save({"a": torch.zeros(2)}, path)

    def check():
        if path.exists():
            assert len(octavo.load(path)) in ((1, 2) if there else (2,))
        work()
        assert entry_names(tmp_path) == ["a.safetensors"]

    assert sweep(work, check, prepare=prepare) >= 6


def fill(target, word):
    with folders.whole(target, owned=("config.json", "old.json", "model.safetensors")) as stage:
        for name in ("config.json", "model.safetensors", f"{word}.json"):
            files.write(stage / name, word * 1000)


@pytest.mark.parametrize("exchange", [True, False], ids=["swapped", "put aside"])
def test_a_folder_is_the_old_or_the_new_one(tmp_path, monkeypatch, exchange, most):
    target = tmp_path / "work" / "model"
    if exchange:
        killed = swept(
            tmp_path,
            most,
            "model",
            lambda: fill(target, "new"),
            lambda: fill(target, "old"),
            lambda: fill(target, "new"),
        )
        assert killed >= LEAST
        return
    monkeypatch.setattr(folders, "_exchange", lambda *_: False)

    def prepare():
        shutil.rmtree(target.parent, ignore_errors=True)
        fill(target, "old")

    def check():
        files.sweep(target.parent)
        assert entry_names(target.parent) == ["model"] and len(set(map(len, contents(target).values()))) == 1
        assert entry_names(target) in (
            ["config.json", "model.safetensors", "new.json"],
            ["config.json", "model.safetensors", "old.json"],
        )

    assert sweep(lambda: fill(target, "new"), check, prepare=prepare, most=most) >= LEAST


def test_a_folder_that_cannot_be_exchanged_has_one_model_or_no_weights(tmp_path, monkeypatch, most):
    monkeypatch.setattr(folders, "_is_fixed", lambda *_: True)
    target = tmp_path / "work" / "model"

    def prepare():
        shutil.rmtree(target.parent, ignore_errors=True)
        fill(target, "old")

    def check():
        found = {
            path.name: path.read_text()[:3] for path in target.iterdir() if path.suffix in (".json", ".safetensors")
        }
        weights = found.pop("model.safetensors", None)
        assert weights is None or set(found.values()) == {weights}
        fill(target, "new")
        assert entry_names(target) == ["config.json", "model.safetensors", "new.json"]

    assert sweep(lambda: fill(target, "new"), check, prepare=prepare, most=most) >= LEAST


# --- models -----------------------------------------------------------------------------------------------------------


class Config:
    """What a model of transformers has."""

    def __init__(self, size):
        self.size = size

    def save_pretrained(self, folder):
        Path(folder, "config.json").write_text(json.dumps({"size": self.size}))


def linear(size):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(size)
        model = octavo.pack_model(octavo.quantize_model(nn.Sequential(nn.Linear(size, 8)), "mxint8", progress=False))
    model.config = Config(size)
    return model


def test_a_saved_model_has_one_configuration_and_its_weights(tmp_path, most):
    old, new = linear(32), linear(64)
    target = tmp_path / "work" / "model"

    def write(model):
        octavo.save_model(model, target)

    assert swept(tmp_path, most, "model", lambda: write(new), lambda: write(old), lambda: write(new)) >= LEAST


@pytest.mark.slow
def test_a_packed_folder_has_the_companions_of_its_weights(tmp_path, most):
    for size in (32, 64):
        source = tmp_path / str(size)
        (source / "pooling").mkdir(parents=True)
        for name in ("config.json", "tokenizer.json", "pooling/config.json"):
            (source / name).write_text(f'"{size}"')
        container.save({"a.weight": torch.full((8, size), 1.5)}, source / "model.safetensors")

    def pack(size):
        args = [
            "pack",
            str(tmp_path / str(size)),
            "-o",
            str(tmp_path / "work" / "small"),
            "--recipe",
            "mxint8",
            "--force",
        ]
        assert CliRunner().invoke(app, args).exit_code == 0

    assert swept(tmp_path, most, "small", lambda: pack(64), lambda: pack(32), lambda: pack(64)) >= LEAST


def polynomial_model(seed):
    torch.manual_seed(seed)
    sizes = {"embedding": 8, "encoder": 8, "hidden": 16, "heads": 2, "layers": 1, "feedforward": 16}
    return build(Seq2SeqConfig(**sizes))


def test_an_exported_model_is_the_old_or_the_new_one(tmp_path, most):
    target, tokenizer = tmp_path / "work" / "model", CharTokenizer.polynomials()
    models = [polynomial_model(seed) for seed in (0, 1)]

    def write(number):
        facts = {"seed": number} if number == 0 else None
        export.export_model(models[number], tokenizer, target, metadata=facts, overwrite=True)

    assert swept(tmp_path, most, "model", lambda: write(1), lambda: write(0), lambda: write(1)) >= LEAST


LINES = ["(x-2)*(x+1)=x**2-x-2"] * 4
TRAIN = SimpleNamespace(lines=lambda first, count: (LINES * count)[:count])


@pytest.mark.slow
def test_a_compressed_model_has_its_own_report(tmp_path, monkeypatch, most):
    monkeypatch.setattr(polynomials, "splits", lambda *_: Splits(TRAIN, LINES, LINES))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    target = tmp_path / "work" / "small"
    source = export.export_model(polynomial_model(3), CharTokenizer.polynomials(), tmp_path / "source", format=None)

    def compress(fmt):
        args = [
            "--model",
            str(source),
            "--formats",
            fmt,
            "--budget",
            "9",
            "--fast",
            "--lines",
            "4",
            "-o",
            str(target),
            "--force",
        ]
        result = CliRunner().invoke(app, ["compress", *args])
        assert result.exit_code == 0, result.output

    killed = swept(
        tmp_path, most, "small", lambda: compress("nf4"), lambda: compress("mxint8"), lambda: compress("nf4")
    )
    assert killed >= LEAST and not any(name.endswith(files.TEMPORARY) for name in entry_names(tmp_path / "temporary"))


# --- runs -------------------------------------------------------------------------------------------------------------

SHORT = {"steps": 12, "checkpoint_every": 3, "evaluate_every": 5, "keep": 2}


def state_of(run):
    """What a run has come to, without clocks."""
    held = checkpoint.load(checkpoint.available(run)[0])
    held.pop("clock"), held["state"]["window"].pop("seconds")
    weights = {name: (run / name).read_bytes() for name in ("last.safetensors", "best.safetensors")}
    return checkpoint.digest(held), weights, strip_timings(read_metrics(run))


@pytest.mark.alone
def test_a_run_ends_with_the_same_bits_and_leaves_nothing_behind(tmp_path, most):
    train(tmp_path / "whole", **SHORT)
    expected, names = state_of(tmp_path / "whole"), sorted(contents(tmp_path / "whole"))
    run = tmp_path / "run"

    def check():
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a damaged checkpoint would be passed over with a warning
            train(run, **SHORT)
        assert state_of(run) == expected and sorted(contents(run)) == names

    killed = sweep(
        lambda: train(run, **SHORT), check, prepare=lambda: shutil.rmtree(run, ignore_errors=True), most=most
    )
    assert killed >= LEAST


@pytest.mark.slow
@pytest.mark.alone
def test_a_study_ends_with_the_same_results_and_leaves_nothing_behind(tmp_path, most):
    split = signs.load(64, validation=24, test=40)
    seed_all(0)
    vocabulary = vocabulary_of(split.train.texts)
    sizes = {"width": 16, "layers": 1, "heads": 2, "feed_forward": 32, "positions": 64}
    model = Classifier(ClassifierConfig(vocabulary=vocabulary.size, classes=3, **sizes))
    recipe = Hyperparameters(epochs=1, batch_size=8, learning_rate=1e-3, precision="fp32")
    subject = ClassifierSubject("tiny", tiny_classifier(vocabulary, model), split, recipe, steps=20, judged=8)
    points = [
        Point({"study": "test", "method": method}, method, "type:Linear weight=int8:channel", training=Training(most=3))
        for method in ("ptq", "qat")
    ]

    def work(folder):
        with Journal(folder) as journal:
            records = Laboratory(subject, journal, folder).measure_all(points)
        studies.save(folder, [record["result"] for record in records], {})

    def results(folder):
        records = [json.loads(line) for line in (folder / NAME).read_text().splitlines()]
        told = [(record["id"], record["result"]) for record in records]
        return told, (folder / studies.CSV).read_bytes(), sorted(contents(folder))

    work(tmp_path / "whole")
    expected, run = results(tmp_path / "whole"), tmp_path / "run"

    def check():
        work(run)
        assert results(run) == expected

    killed = sweep(lambda: work(run), check, prepare=lambda: shutil.rmtree(run, ignore_errors=True), most=most)
    assert killed >= LEAST
