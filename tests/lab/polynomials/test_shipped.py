"""The model that comes with the package: what it reached, and that every way of running it gives the same."""

import json

import pytest
from octavo.lab.polynomials import Engine
from octavo.lab.polynomials.accuracy import expander, measure
from octavo.lab.polynomials.data import splits
from octavo.lab.polynomials.export import export_model, load_integer
from octavo.lab.polynomials.shipped import load_shipped, shipped_folder

# Points of accuracy on the 20,000 test lines.
LEAST_EXACT = 99.0
MOST_LOST_PACKED = 0.05  # mxint8 weights
MOST_LOST_INTEGER = 0.1  # static INT8


@pytest.fixture(scope="module")
def test_lines():
    return splits().test


def test_the_shipped_model_is_small_and_its_record_is_there():
    model, tokenizer = load_shipped()
    assert model.parameter_count < 5_000_000
    assert sum(file.stat().st_size for file in shipped_folder().iterdir()) < 2_000_000
    assert tokenizer.size == model.config.vocabulary
    record = json.loads((shipped_folder() / "accuracy.json").read_text())
    assert record["exact_share"] >= LEAST_EXACT / 100
    assert record["command"].startswith("octavo lab train polynomials")


def test_engine_and_pytorch_give_the_same_answers(test_lines):
    """Fused float kernels, candle and PyTorch differ in the last bits of float32, which decides no answer here."""
    lefts = [line.partition("=")[0] for line in test_lines[:300]]
    wanted = expander(*load_shipped())(lefts)
    assert Engine.load(route="fused").expand(lefts) == wanted
    assert Engine.load(route="general").expand(lefts[:60]) == wanted[:60]


def test_most_of_a_sample_is_right_on_every_precision(test_lines):
    for precision in ("float", "integer"):
        assert measure(Engine.load(precision=precision).expand, test_lines[:2000]).share > 0.98


def test_the_integer_engine_follows_its_reference(test_lines):
    lefts = [line.partition("=")[0] for line in test_lines[:2000]]
    assert Engine.load(precision="integer").expand(lefts) == expander(*load_integer(shipped_folder()))(lefts)


@pytest.mark.slow
def test_the_accuracies_on_all_test_lines(test_lines, tmp_path):
    """The figures of the README: `pytest -m slow tests/lab/polynomials/test_shipped.py -s` prints them."""
    model, tokenizer = load_shipped()
    reference = measure(expander(model, tokenizer), test_lines, symbolic=True)
    packed = Engine.load(export_model(model, tokenizer, tmp_path / "packed", format="mxint8"))
    found = {
        "fp32": reference.share,
        "mxint8": measure(packed.expand, test_lines).share,
        "int8": measure(Engine.load(precision="integer").expand, test_lines).share,
    }
    print(found, reference.equivalent, reference.by_kind)
    assert found["fp32"] >= LEAST_EXACT / 100
    assert found["mxint8"] >= found["fp32"] - MOST_LOST_PACKED / 100
    assert found["int8"] >= found["fp32"] - MOST_LOST_INTEGER / 100
