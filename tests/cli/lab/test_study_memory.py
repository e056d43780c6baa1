"""``octavo lab study memory --device cuda``: the parts of the peak, on a CPU whose tensors are followed."""

import json
from types import SimpleNamespace

import pytest
import torch
from helpers.followed_cpu import FollowedCpu


def test_a_folder_on_a_gpu_is_told_in_parts(octavo, tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=61, num_labels=6, max_position_embeddings=32, **sizes)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "bert")
    chosen = SimpleNamespace(type="cuda")
    monkeypatch.setattr("octavo.lab.studies.stopwatch.device_of", lambda name: chosen)
    monkeypatch.setattr("octavo.lab.studies.stopwatch.chosen_device", lambda name: torch.device("cpu"))
    with FollowedCpu() as meter:
        monkeypatch.setattr("octavo.lab.studies.device_memory.CudaMeter", lambda device: meter)
        out = tmp_path / "study"
        command = ("study", "memory", "--device", "cuda", "--model", tmp_path / "bert", "--texts", 12, "-o", out)
        shown = octavo(*command).stdout
        assert "same top three" in shown and "type:Linear mxint8: the model is -" in " ".join(shown.split())
        lines = (out / "study.jsonl").read_text()
        assert octavo(*command).stdout == shown and (out / "study.jsonl").read_text() == lines
    rows = json.loads((out / "results.json").read_text())["rows"]
    assert [row["texts"] for row in rows] == [12] * 3
    sizes = [row["weights"] + row["scales"] + row["float"] for row in rows]
    assert sizes == sorted(sizes, reverse=True)
