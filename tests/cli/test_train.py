"""Training and its speed from the command line, with runs that last seconds."""

import json

import pytest
from octavo.models.polynomials import recipe, run

TINY = ("--steps", "4", "--batch", "8", "--accumulation", "1", "--precision", "fp32", "--device", "cpu")


@pytest.fixture
def few_lines(monkeypatch):
    """Hold out few lines: the tests are about the command, not about the model."""
    for module in (recipe, run):
        monkeypatch.setattr(module, "TEST", 20)
        monkeypatch.setattr(module, "VALIDATION", 20)
    monkeypatch.setattr(run, "CALIBRATION", 16)


@pytest.mark.parametrize("arch", ["hybrid", "lstm", "transformer"])
def test_a_run_leaves_a_model_a_report_and_metrics(octavo, tmp_path, few_lines, arch):
    out = tmp_path / "run"
    report = json.loads(octavo("train", "polynomials", "--arch", arch, *TINY, "-o", out, "--json").stdout)
    assert report["steps"] == 4 and report["reason"] == "finished"
    assert report["test"]["lines"] == 20
    assert json.loads((out / "report.json").read_text()) == report
    assert json.loads((out / "model" / "config.json").read_text())["architecture"] == arch
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == 4


def test_a_finished_run_is_not_trained_again(octavo, tmp_path, few_lines):
    """The same command on a finished run tests and exports what is there, bit for bit."""
    args = ("train", "polynomials", *TINY, "-o", tmp_path / "run")
    octavo(*args)
    weights = (tmp_path / "run" / "model" / "model.safetensors").read_bytes()
    metrics = (tmp_path / "run" / "metrics.jsonl").read_text()
    octavo(*args)
    assert (tmp_path / "run" / "model" / "model.safetensors").read_bytes() == weights
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == metrics


def test_what_is_refused_writes_nothing(octavo, tmp_path):
    out = ("-o", tmp_path / "run")
    assert "unknown architecture 'gru'" in octavo("train", "polynomials", "--arch", "gru", *out, code=2).output
    assert "steps is 0" in octavo("train", "polynomials", "--steps", "0", *out, code=2).output
    assert "did you mean" in octavo("train", "polynomials", "--format", "mxintb8", *out, code=2).output
    assert "--ddp is 0" in octavo("train", "polynomials", "--ddp", "0", *out, code=2).output
    assert "unknown architecture" in octavo("bench", "polynomials", "--arch", "gru", *out, code=2).output
    assert "processes is 0" in octavo("bench", "polynomials", "--processes", "0", *out, code=2).output
    assert "precision is 'int8'" in octavo("bench", "polynomials", "--precision", "int8", *out, code=2).output
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_one_command_gives_the_whole_speed_table(octavo, tmp_path):
    """Four configurations in processes of their own: baseline, DDP, cache, both."""
    args = ("--arch", "lstm", "--batch", "4", "--steps", "1", "--val-steps", "1", "-o", tmp_path / "speed")
    report = json.loads(octavo("bench", "polynomials", *args, "--json").stdout)
    assert list(report["configurations"]) == ["baseline", "DDP", "KV cache", "DDP + KV cache"]
    assert report["configurations"]["baseline"]["speed_up"] == 1
    shown = (tmp_path / "speed" / "speed.md").read_text()
    for entry in report["configurations"].values():
        assert entry["train_steps_per_s"] > 0 and entry["val_tokens_per_s"] > 0
        assert entry["epoch_s"] == pytest.approx(
            250_000 / entry["train_steps_per_s"] + 5_000 / entry["val_steps_per_s"]
        )
    assert "not padding" in shown and "| DDP + KV cache | 2 | yes | yes |" in shown
