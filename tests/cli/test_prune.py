"""octavo prune: a folder in, a folder out, with exactly the zeros that were asked for."""

import json

import octavo as package
import pytest
import torch
from helpers.models import transformer
from octavo.model_folder.weight_files import PACKED_NAME
from octavo.tensors import container

transformers = pytest.importorskip("transformers")


@pytest.fixture
def bert(tmp_path):
    transformer("BertModel", heads=4, inner=48, vocab_size=30).save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


def test_a_pruned_folder_has_the_zeros_runs_and_packs(octavo, bert, tmp_path):
    told = json.loads(octavo("prune", bert, "-o", tmp_path / "half", "--sparsity", "0.5", "--json").stdout)
    tensors = container.load(tmp_path / "half" / PACKED_NAME)
    assert not any("masks" in name for name in tensors) and len(told["tensors"]) == 13
    for tensor in told["tensors"]:
        assert int((tensors[tensor["name"]] == 0).sum()) == tensor["pruned"] == round(0.5 * tensor["elements"])
    model = package.load_model(tmp_path / "half")
    ids = torch.arange(8)[None]
    assert model(ids)[0].isfinite().all()
    octavo("pack", tmp_path / "half", "-o", tmp_path / "small", "--recipe", "type:Linear int8:channel")
    packed = package.load_model(tmp_path / "small")
    layer = packed.encoder.layer[0].intermediate.dense
    assert bool((layer.packed_weight.decode()[tensors["encoder.layer.0.intermediate.dense.weight"] == 0] == 0).all())


def test_a_pruned_folder_is_packed_sparse(octavo, bert, tmp_path):
    """The joint of prune and pack: fewer bytes, the same numbers, and every report says so."""
    octavo("prune", bert, "-o", tmp_path / "pruned", "--sparsity", "0.75")
    dry = octavo("pack", tmp_path / "pruned", "-o", tmp_path / "small", "--recipe", "int8:g32", "--sparse", "--dry-run")
    assert "sizes are those of dense codes" in dry.output and not (tmp_path / "small").exists()
    out = octavo("pack", tmp_path / "pruned", "-o", tmp_path / "small", "--recipe", "int8:g32", "--sparse").output
    assert "zeros" in out and "dense bytes" in out and "75.0%" in out
    octavo("pack", tmp_path / "pruned", "-o", tmp_path / "dense", "--recipe", "int8:g32")
    sparse, dense = (package.load_model(tmp_path / name) for name in ("small", "dense"))
    layer, other = (model.encoder.layer[1].output.dense for model in (sparse, dense))
    assert layer.is_sparse and not other.is_sparse and layer.packed_weight == other.packed_weight
    assert not sparse.embeddings.word_embeddings.is_sparse
    sizes = [(tmp_path / name / "model.octavo.safetensors").stat().st_size for name in ("small", "dense")]
    assert sizes[0] < sizes[1]
    listed = json.loads(octavo("inspect", tmp_path / "small", "--json").stdout)["tensors"]
    entry = next(entry for entry in listed if entry["name"] == "encoder.layer.1.output.dense.weight")
    assert entry["zeros"] == 0.75 and entry["dense_bytes"] == other.packed_weight.nbytes > entry["bytes"]
    assert "zeros" in octavo("inspect", tmp_path / "small").output
    octavo("unpack", tmp_path / "small", "-o", tmp_path / "again")
    octavo("unpack", tmp_path / "dense", "-o", tmp_path / "once")
    plain = [container.load(tmp_path / name / "model.safetensors") for name in ("again", "once")]
    assert plain[0].keys() == plain[1].keys() and all(torch.equal(plain[0][name], plain[1][name]) for name in plain[0])
    ids = torch.arange(8)[None]
    with torch.no_grad():
        difference = (sparse(ids)[0] - dense(ids)[0]).abs().max()
    assert difference < 1e-5


def test_a_pruned_file_is_packed_sparse(octavo, bert, tmp_path):
    octavo("prune", bert, "-o", tmp_path / "pruned", "--sparsity", "0.6")
    source = tmp_path / "pruned" / PACKED_NAME
    octavo("pack", source, "-o", tmp_path / "x.safetensors", "--recipe", "mxint8", "--sparse")
    octavo("pack", source, "-o", tmp_path / "y.safetensors", "--recipe", "mxint8")
    sparse, dense = (container.load(tmp_path / name) for name in ("x.safetensors", "y.safetensors"))
    name = "encoder.layer.0.intermediate.dense.weight"
    assert sparse[name].is_sparse and sparse[name] == dense[name] and sparse[name].nbytes < dense[name].nbytes


def test_structures_and_masks_are_written_on_request(octavo, bert, tmp_path):
    out = octavo("prune", bert, "-o", tmp_path / "heads", "--sparsity", "0.5", "--granularity", "head", "--keep-masks")
    assert "attention.self.query.weight" in out.output and "on disk" in out.output
    model = package.load_model(tmp_path / "heads")
    assert package.prune.report(model).tensors
    before = model.encoder.layer[0].attention.self.query
    assert int((~before.masks.keep(before, "weight")).sum()) % (8 * 32) == 0
    octavo("unpack", tmp_path / "heads", "-o", tmp_path / "plain")
    plain = container.load(tmp_path / "plain" / "model.safetensors")
    assert not any("masks" in name for name in plain)
    assert torch.equal(plain["encoder.layer.0.attention.self.query.weight"], before.weight)


def test_what_goes_whole_is_taken_out_on_request(octavo, bert, tmp_path):
    options = ["--sparsity", "0.5", "--granularity", "head"]
    octavo("prune", bert, "-o", tmp_path / "zeros", *options)
    told = json.loads(octavo("prune", bert, "-o", tmp_path / "less", *options, "--compact", "--json").stdout)
    assert told["parameters"][1] < told["parameters"][0]
    assert sum(row["after"] for row in told["compacted"] if row["kind"] == "head") == 4
    with_zeros, less = (package.load_model(tmp_path / name) for name in ("zeros", "less"))
    assert sum(parameter.numel() for parameter in less.parameters()) == told["parameters"][1]
    ids = torch.arange(8)[None]
    assert torch.allclose(with_zeros(ids)[0], less(ids)[0], atol=1e-5)
    octavo("pack", tmp_path / "less", "-o", tmp_path / "small", "--recipe", "type:Linear int8:channel")
    assert "compacted: " in octavo("inspect", tmp_path / "small").output
    assert package.load_model(tmp_path / "small")(ids)[0].isfinite().all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--sparsity", "1.5"], "sparsity is 1.5"),
        (["--sparsity", "0.5", "--compact", "--keep-masks"], "give one of them"),
        (["--criterion", "wanda", "--sparsity", "0.5"], "--criterion is 'wanda'"),
        (["--sparsity", "0.5", "--target", "nothing.*"], "matches no layer"),
    ],
)
def test_what_does_not_fit_is_one_line_and_nothing_is_written(octavo, bert, tmp_path, options, words):
    result = octavo("prune", bert, "-o", tmp_path / "out", *options, code=2)
    assert words in result.output and not (tmp_path / "out").exists()


def test_files_and_packed_folders_are_refused(octavo, bert, model, tmp_path):
    assert "give its folder" in octavo("prune", model, "-o", tmp_path / "o", "--sparsity", "0.5", code=2).output
    octavo("pack", bert, "-o", tmp_path / "small")
    result = octavo("prune", tmp_path / "small", "-o", tmp_path / "o", "--sparsity", "0.5", code=2)
    assert "is packed" in result.output
