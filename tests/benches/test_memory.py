"""Memory of a packed encoder: what its tensors take, and what its process grows by."""

import json
import subprocess
import sys
from pathlib import Path

import octavo
import pytest
import torch
from octavo.cli import app
from typer.testing import CliRunner

transformers = pytest.importorskip("transformers")
BENCH = Path(__file__).resolve().parents[2] / "benches" / "memory.py"
MOST_SHARE = 0.30  # of float32: mxint8 takes 8.25 bits, norms and biases stay


def bert(folder, **sizes):
    """A BERT with random weights and a tokenizer of a few words."""
    folder.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(chr, range(97, 123))]
    (folder / "vocab.txt").write_text("\n".join(words))
    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig(num_attention_heads=4, **sizes)).save_pretrained(folder)
    transformers.BertTokenizer(str(folder / "vocab.txt"), model_max_length=64).save_pretrained(folder)
    return folder


def nbytes(model):
    return sum({id(t): t.nbytes for t in [*model.parameters(), *model.buffers()]}.values())


def test_tensors_of_a_loaded_folder_take_what_the_file_does(tmp_path):
    sizes = {"vocab_size": 500, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128}
    folder = bert(tmp_path / "m", **sizes)
    result = CliRunner().invoke(app, ["pack", str(folder), "-o", str(tmp_path / "x")])
    assert result.exit_code == 0, result.output
    before, after = octavo.load_model(folder), octavo.load_model(tmp_path / "x")
    assert nbytes(after) <= MOST_SHARE * nbytes(before)
    ids = torch.arange(16)[None]
    simulated = octavo.quantize_model(before, "mxint8", progress=False)
    with torch.inference_mode():
        assert torch.allclose(after(ids)[0], simulated(ids)[0], atol=1e-5)  # sums in another order


@pytest.mark.slow
def test_a_process_grows_by_the_packed_bytes(tmp_path):
    sizes = {"vocab_size": 20_000, "hidden_size": 384, "num_hidden_layers": 4, "intermediate_size": 1536}
    folder = bert(tmp_path / "m", **sizes)
    given = [sys.executable, str(BENCH), "--model", str(folder), "--force", "--json", str(tmp_path / "report.json")]
    done = subprocess.run(given, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["share"] <= MOST_SHARE
    assert report["largest_difference_from_simulated"] <= 1e-6 < report["largest_difference_from_float32"]
