"""Solutions beside a journal: what comes back is what was solved, and a broken file is no solution."""

import pytest
import torch
from octavo.quant import gptq, hqq
from octavo.search.journal import Journal
from octavo.search.kept_solutions import KeptSolutions
from octavo.tensors.formats import Format


@pytest.fixture
def journal(tmp_path):
    with Journal(tmp_path) as opened:
        yield opened


@pytest.mark.parametrize("fmt", ["int4:g32", "uint3:g16", "nf4", "mxfp4", "nvfp4", "int8:channel", "fixed6", "e4m3"])
def test_a_solution_comes_back_with_the_same_bits(journal, fmt):
    torch.manual_seed(0)
    weight, x = torch.randn(48, 64), torch.randn(128, 64)
    solution = gptq(weight, x.T @ x, fmt, scale="mse")
    store = KeptSolutions(journal, {"recipe": fmt})
    assert store.find("a.b") is None
    store.add("a.b", solution, Format.parse(fmt), "a word")
    again, note = KeptSolutions(journal, {"recipe": fmt}).find("a.b")
    assert note == "a word"
    for one, other in zip(solution, again, strict=True):
        assert (one is None and other is None) or torch.equal(one, other)
    assert store.find("a.c") is None and KeptSolutions(journal, {"recipe": "other"}).find("a.b") is None


def test_a_broken_file_is_no_solution(journal):
    store = KeptSolutions(journal, {})
    store.add("layer", hqq(torch.randn(8, 32), "int4:g32"), Format.parse("int4:g32"), "")
    (file,) = journal.path.parent.glob("solved-*/*")
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    assert store.find("layer") is None
    file.write_bytes(content[:40])
    assert store.find("layer") is None


def test_corrected_biases_come_back(journal):
    store = KeptSolutions(journal, {})
    assert store.biases() is None
    store.add_biases({"a": torch.randn(4), "b.c": torch.randn(2)})
    assert set(store.biases()) == {"a", "b.c"}
