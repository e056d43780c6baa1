"""Damaged JSON of every kind that Octavo writes and reads again, folders apart: a value, or an OctavoError.

Folders of models and runs, recipes and adapters have campaigns of their own (``tests/test_fuzz.py``).
"""

import json
import random
import warnings
from pathlib import Path

import octavo
import pytest
from arguments import models as m
from attacks import mutate
from octavo import graph, search, train
from octavo.report.compression_report import read_report
from octavo.search.journal import NAME
from report.samples import compression

MANY = 3_000


def sensitivity(text, at):
    held = search.Sensitivity.from_json(text)
    search.to_recipe(search.allocate(held)[0], held)
    str(held)


def pipeline(text, at):
    str(graph.Pipeline.from_json(text).to_toml())


def recipe(text, at):
    octavo.Recipe.from_json(text).to_toml()


def config(text, at):
    train.TrainConfig.from_dict(json.loads(text)).fingerprint()


def measurement(text, at):
    found = train.Measurement.restored(json.loads(text))
    found.difference(found)
    assert train.Measurement.restored(json.loads(json.dumps(found.stored()))) == found


def report(text, at):
    (at / "report.json").write_text(text)
    read_report(at)


def metrics(text, at):
    (at / "metrics.jsonl").write_text(text)
    train.strip_timings(train.read_metrics(at))


def verified(text, at):
    (at / NAME).write_text(text)
    search.verify(
        list(m.front())[:2], lambda point: point, lambda model: 0.5, journal=at, subject="a net", progress=False
    )


def measured(text, at):
    (at / NAME).write_text(text)
    search.measure_sensitivity(m.net(), m.batches(), ["int4"], divergence="mse", journal=at, progress=False)


def timed(text, at):
    (at / NAME).write_text(text)
    search.measure_latency(m.net(), m.x(), m.sensitivity(), table=at, progress=False)


def compressed(text, at):
    (at / NAME).write_text(text)
    octavo.compress_model(
        m.net(), 20.0, data=m.batches(), formats=("int8", "int4"), fast=True, journal=at, progress=False
    )


def journal_of(read):
    """What a function writes into a new journal."""

    def make(at):
        read("", at)
        return (at / NAME).read_text()

    return make


PASSES = {
    "passes": [{"pass": "remove_dropout"}, {"pass": "quantize", "recipe": "int8", "samples": 4}, {"pass": "pack"}]
}
RULES = octavo.Recipe.parse("int4:g32; type:Linear input=int8@quantile:0.999; last:Linear keep").as_dict()
CONFIG = train.TrainConfig(
    steps=2, batch_size=2, learning_rate=1e-3, stages=(train.Stage(steps=2, batch_size=2, context=8),)
)
LINES = '{"step": 1, "loss": 2.5, "clock": {"seconds": 1.5}}\n{"step": 2, "loss": null}\n'

# Reader, what writes a valid text, whether it is lines, and damages in a fast run.
READERS = {
    "sensitivity": (sensitivity, lambda at: m.sensitivity().to_json(), False, 400),
    "pipeline": (pipeline, lambda at: json.dumps(PASSES), False, 400),
    "recipe": (recipe, lambda at: json.dumps(RULES), False, 400),
    "config": (config, lambda at: json.dumps(CONFIG.as_dict()), False, 400),
    "measurement": (measurement, lambda at: json.dumps(m.measured().stored()), False, 400),
    "report": (report, lambda at: json.dumps(compression(blocks=1)), False, 60),
    "metrics": (metrics, lambda at: LINES, True, 200),
    "journal of verify": (verified, journal_of(verified), True, 60),
    "journal of measure_sensitivity": (measured, journal_of(measured), True, 60),
    "journal of measure_latency": (timed, journal_of(timed), True, 60),
    "journal of compress_model": (compressed, journal_of(compressed), True, 60),
}


def damaged(name, at: Path, count):
    """Return the damages that end in another error than an OctavoError."""
    read, make, lines, _ = READERS[name]
    (at / "whole").mkdir()
    data = make(at / "whole").encode()
    wrong = []
    for seed in range(count):
        rng = random.Random(seed)
        text = (mutate.mutate_lines if lines else mutate.mutate_json)(rng, data).decode(errors="replace")
        folder = at / str(seed)
        folder.mkdir()
        try:
            read(text, folder)
        except octavo.OctavoError as error:
            assert not isinstance(error, octavo.InternalError), (seed, text)
        except (json.JSONDecodeError, RecursionError):
            assert read in (config, measurement), (seed, text)  # which take what json.loads made
        except Exception as error:
            wrong.append((seed, repr(error)[:200], text[:300] if len(text) < 3000 else ""))
    return wrong


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("name", READERS)
def test_whole_texts_are_read(name, tmp_path):
    read, make, _, _ = READERS[name]
    (tmp_path / "one").mkdir()
    text = make(tmp_path / "one")
    (tmp_path / "two").mkdir()
    read(text, tmp_path / "two")


@pytest.mark.parametrize("name", READERS)
def test_damaged_texts_are_refused(name, tmp_path):
    assert damaged(name, tmp_path, READERS[name][3]) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, row in READERS.items() if row[3] >= 60])
def test_many_damaged_texts_are_refused(name, tmp_path):
    assert damaged(name, tmp_path, MANY) == []


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 2}', "[" * 100_000, "1" * 5000, "NaN", "\ud800", "", "[]", "null", '{"groups": NaN}', "\0"]
)
@pytest.mark.parametrize("read", [sensitivity, pipeline, recipe])
def test_texts_that_are_no_such_json_are_refused(read, text, tmp_path):
    with pytest.raises(octavo.OctavoError):
        read(text, tmp_path)
