import json

import numpy as np
import pytest
import torch
from octavo import encode
from octavo.tensors import container

FLOAT64 = 1e-9  # sums of float64 in another order
WEIGHTS = ("embeddings.word.weight", "layer.0.query.weight", "layer.1.query.weight")


def test_figures_are_those_of_all_weights_together(octavo, model):
    rows = json.loads(octavo("compare", model, "--formats", "mxint8,int4:g32,nf4", "--json").stdout)
    tensors = container.load(model)
    for row in rows:
        packed = [encode(tensors[name], row["format"]) for name in WEIGHTS]
        x = np.concatenate([tensors[name].double().numpy().ravel() for name in WEIGHTS])
        q = np.concatenate([entry.decode(torch.float32).double().numpy().ravel() for entry in packed])
        assert row["elements"] == x.size
        assert row["bytes"] == sum(entry.nbytes for entry in packed)
        assert row["sqnr_db"] == pytest.approx(10 * np.log10((x**2).sum() / ((x - q) ** 2).sum()), abs=FLOAT64)
        assert row["cosine"] == pytest.approx(x @ q / np.sqrt((x @ x) * (q @ q)), abs=FLOAT64)
        assert row["largest_error"] == np.abs(x - q).max()
    assert [row["format"] for row in rows] == ["mxint8", "int4:g32", "nf4"]


def test_the_table_has_a_row_a_format(octavo, model):
    output = octavo("compare", model, "--formats", "fp32,fixed8:channel,mse,mxfp4").output
    starts = [line.split()[0] for line in output.splitlines() if line]
    assert starts[-3:] == ["fp32", "fixed8:channel,mse", "mxfp4"]
    assert "exact" in output  # float32 loses nothing
    assert max(map(len, output.splitlines()[1:])) <= 100  # the first line holds the path


def test_a_glob_selects_tensors(octavo, model):
    [row] = json.loads(octavo("compare", model, "--formats", "mxint8", "--tensor", "layer.**", "--json").stdout)
    assert row["elements"] == 2 * 64 * 64


def test_the_mse_rule_loses_least(octavo, model):
    args = ("compare", model, "--formats", "mxfp4", "--json")
    floor, mse = (json.loads(octavo(*args, "--scale", rule).stdout)[0]["sqnr_db"] for rule in ("floor", "mse"))
    assert mse > floor


def test_a_model_folder_is_read_through_its_index(octavo, folder):
    [row] = json.loads(octavo("compare", folder, "--formats", "mxint8", "--json").stdout)
    assert row["elements"] == 96 * 64 + 2 * 64 * 64


def test_bad_input_is_refused(octavo, model, tmp_path):
    (tmp_path / "text.txt").write_text("this is not a safetensors file")
    (tmp_path / "empty").mkdir()
    assert "did you mean" in octavo("compare", model, "--formats", "mxinta8", code=2).output
    assert "no such file" in octavo("compare", tmp_path / "nothing", code=2).output
    assert "text.txt" in octavo("compare", tmp_path / "text.txt", code=2).output
    assert "no model.safetensors" in octavo("compare", tmp_path / "empty", code=2).output
    assert "'decoder*' matches no tensor" in octavo("compare", model, "--tensor", "decoder*", code=2).output
    assert "unknown scale rule" in octavo("compare", model, "--scale", "round", code=2).output
    assert "unknown model" in octavo("compare", "--model", "gpt5", code=2).output
    octavo("compare", code=2)
    octavo("compare", model, "--model", "minilm", code=2)


def test_the_default_selection_is_all_weights_or_none(octavo, model, tmp_path):
    """Of a file that is packed in part, the rest is compared only where it is named."""
    octavo("pack", model, "-o", tmp_path / "part.safetensors", "--recipe", "layer.0.**=int8")
    told = octavo("compare", tmp_path / "part.safetensors", code=2).output
    assert "layer.0.query.weight: already packed as 'int8'" in " ".join(told.split())
    octavo("compare", tmp_path / "part.safetensors", "--tensor", "layer.1.*")


def test_what_is_packed_is_refused_without_a_rule_that_nobody_wrote(octavo, model, tmp_path):
    octavo("pack", model, "-o", tmp_path / "packed.safetensors", "--recipe", "int8")
    for tensor in ((), ("--tensor", "**")):
        told = octavo("compare", tmp_path / "packed.safetensors", *tensor, code=2).output
        assert "already packed as 'int8'" in " ".join(told.split()) and "rule" not in told
