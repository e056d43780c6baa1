"""Every study takes a device, and refuses one that is not there before it makes a folder."""

import pytest
import torch
from octavo.lab.polynomials import speed


@pytest.mark.parametrize(
    "command",
    [
        ("study", "ptq-qat"), ("study", "formats"), ("study", "prune"), ("study", "sensitivity"), ("study", "combined"),
        ("study", "nas"), ("study", "mixed"), ("study", "lora"), ("bench", "polynomials"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_gpu_that_is_not_there_is_refused_before_work(octavo, tmp_path, monkeypatch, command):
    if command[1] in ("nas", "mixed"):
        pytest.importorskip("optuna")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    shown = octavo(*command, "--device", "cuda", "-o", tmp_path / "out", code=2).output
    assert "finds no GPU" in shown and not (tmp_path / "out").exists()
    assert "accepted are" in octavo(*command, "--device", "tpu", "-o", tmp_path / "out", code=2).output


def test_a_process_without_a_gpu_of_its_own_is_refused(octavo, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    command = ("bench", "polynomials", "--processes", "2", "-o", tmp_path / "speed")
    assert "give --processes 1, or --device cpu" in octavo(*command, code=2).output
    speed.check_device("cuda", 1)
    speed.check_device("cpu", 2)
