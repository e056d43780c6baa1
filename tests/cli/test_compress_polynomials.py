"""The main job on a polynomial model, whose weights are random: the command, not the model, is tested."""

import pytest
import torch
from octavo.data import CharTokenizer
from octavo.lab.polynomials import compression, matrix_view
from octavo.lab.polynomials.export import export_model
from octavo.lab.polynomials.native_engine import Engine
from octavo.lab.polynomials.seq2seq import Seq2SeqConfig, build
from octavo.report.compression_report import read_report

SMALL = {"embedding": 8, "encoder": 8, "hidden": 16, "heads": 2, "layers": 1, "feedforward": 16}


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(3)
    return export_model(build(Seq2SeqConfig(**SMALL)), CharTokenizer.polynomials(), tmp_path / "model", format=None)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(compression, "TRIED", 20)
    monkeypatch.setattr(compression, "VALIDATION", 40)
    monkeypatch.setattr(compression, "CALIBRATED", 16)
    monkeypatch.setattr(compression, "TRAINED", 8)


@pytest.mark.parametrize("architecture", ["hybrid", "lstm", "transformer"])
def test_the_view_has_the_models_outputs_and_tensors(architecture):
    torch.manual_seed(0)
    model = build(Seq2SeqConfig(**SMALL, architecture=architecture)).eval()
    view = matrix_view.matrix_view(model)
    source, target = torch.randint(3, 20, (4, 9)), torch.randint(3, 20, (4, 7))
    assert torch.allclose(view(source, target), model(source, target), atol=1e-5)  # sums in another order
    tensors, state = matrix_view.view_tensors(view, model), model.state_dict()
    assert list(tensors) == list(state) and all(torch.equal(tensors[name], state[name]) for name in state)


def test_a_budget_becomes_a_packed_model_and_a_report(octavo, folder, tmp_path):
    out = tmp_path / "small"
    args = ("--formats", "mxint8,int4:g32,nf4", "--budget", "22", "--lines", "10", "-o", out)
    output = octavo("compress", "--model", folder, *args).output
    report = read_report(out)
    costs = {row["key"]: row["after"]["value"] for row in report["costs"] if "after" in row}
    assert costs["bits_all"] <= 22 and costs["file_bytes"] == (out / "model.octavo.safetensors").stat().st_size
    assert report["metrics"][0]["split"] == "test" and report["metrics"][0]["after"]["count"] == 10
    assert "exact match" in output and "lines a second" in output
    rows = {row["key"]: row for row in report["costs"]}
    for key in ("peak_bytes", "latency_1", "latency_32", "lines_per_s"):
        assert rows[key]["before"]["value"] > 0 and rows[key]["after"]["value"] > 0, key
    assert octavo("expand", "--model", out, "(x+1)*(x-2)").exit_code == 0
    assert Engine.load(out).expand(["(x+1)*(x-2)"], errors="return")
    assert not list(tmp_path.glob(".*"))  # the journal goes when the folder is there
    again = tmp_path / "again"
    octavo("compress", "--model", folder, "--recipe", out / "recipe.toml", "--lines", "10", "-o", again)
    name = "model.octavo.safetensors"
    assert (again / name).read_bytes() == (out / name).read_bytes()
    assert "front" in read_report(again)["missing"]


def test_the_packed_model_is_trained_on_lines_it_has_not_seen(octavo, folder, tmp_path):
    out = tmp_path / "small"
    args = ("--recipe", "int2:g32", "--train", "--train-steps", "3", "--lines", "10", "-o", out)
    octavo("compress", "--model", folder, *args)
    report = read_report(out)
    assert any("for 3 updates" in note and "not trained on" in note for note in report["notes"])
    assert "training" in {row["what"] for row in report["effort"]} and report["seeds"]["training"] == 0
    assert (
        "--train-steps without --train" in octavo("compress", "--train-steps", "3", "-o", out, "--force", code=2).output
    )


def test_what_is_refused_writes_nothing(octavo, folder, tmp_path):
    out = ("-o", tmp_path / "out")
    before = {path for path in tmp_path.rglob("*") if not path.name.startswith(".")}
    assert "no format fits" in octavo("compress", "--model", folder, "--budget", "1", *out, code=2).output
    assert "test lines" in octavo("compress", "--model", folder, "--lines", "0", *out, code=2).output
    assert "in the input" in octavo("compress", "--model", folder, "-o", folder / "x", code=2).output
    assert "its own lines" in octavo("compress", "--model", folder, "--data", __file__, *out, code=2).output
    assert "one goal" in octavo("compress", "--budget", "4", "--bytes", "9", *out, code=2).output
    assert {path for path in tmp_path.rglob("*") if not path.name.startswith(".")} >= before
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_an_output_is_replaced_only_by_force(octavo, folder, tmp_path):
    args = ("compress", "--model", folder, "--recipe", "nf4", "--lines", "4", "-o", tmp_path / "out")
    octavo(*args)
    assert "--force" in octavo(*args, code=2).output
    octavo(*args, "--force")
