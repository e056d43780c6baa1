"""The main job on a polynomial model, whose weights are random: the command, not the model, is tested."""

import json

import pytest
import torch
from octavo.data import CharTokenizer
from octavo.models.seq2seq import Seq2SeqConfig, build
from octavo.systems.polynomials.export import export_model

SMALL = {"embedding": 8, "encoder": 8, "hidden": 16, "heads": 2, "layers": 1, "feedforward": 16}


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(3)
    return export_model(build(Seq2SeqConfig(**SMALL)), CharTokenizer.polynomials(), tmp_path / "model", format=None)


def test_a_budget_becomes_a_packed_model_and_a_report(octavo, folder, tmp_path):
    args = ("--formats", "mxint8,mxint4", "--budget", "5", "--lines", "10", "-o", tmp_path / "small")
    output = octavo("compress", "--model", folder, *args).output
    report = json.loads((tmp_path / "small" / "report.json").read_text())
    assert report["chosen"] == "mxint4"
    assert report["before"]["lines"] == report["after"]["lines"] == 10
    assert "exact" in report["candidates"][1] and "exact" not in report["candidates"][0]  # mxint8 is over the budget
    assert "exact match" in output and "lines/s" in output
    assert "mxint4" in (tmp_path / "small" / "report.md").read_text()
    assert octavo("expand", "--model", tmp_path / "small", "(x+1)*(x-2)").exit_code == 0


def test_what_is_refused_writes_nothing(octavo, folder, tmp_path):
    out = ("-o", tmp_path / "out")
    before = set(tmp_path.rglob("*"))
    assert "no format fits" in octavo("compress", "--model", folder, "--budget", "2", *out, code=2).output
    assert "test lines" in octavo("compress", "--model", folder, "--lines", "0", *out, code=2).output
    assert "in the input" in octavo("compress", "--model", folder, "-o", folder / "x", code=2).output
    assert set(tmp_path.rglob("*")) == before


def test_an_output_is_replaced_only_by_force(octavo, folder, tmp_path):
    args = ("compress", "--model", folder, "--formats", "nf4", "--lines", "4", "-o", tmp_path / "out")
    octavo(*args)
    assert "--force" in octavo(*args, code=2).output
    octavo(*args, "--force")
