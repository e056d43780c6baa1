"""octavo convert: lists every tensor with its type, says what is exact, and routes model folders to octavo pack."""

import json
import re

import octavo as package
import pytest
import torch
from helpers.models import transformer
from octavo.interchange.gguf import GgufFile

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("convert") / "tiny"
    transformer(
        "LlamaForCausalLM", width=64, heads=4, inner=96, num_key_value_heads=2, tie_word_embeddings=True
    ).save_pretrained(path)
    return path


def test_every_tensor_is_listed(octavo, folder, tmp_path):
    shown = octavo(
        "convert", folder, tmp_path / "x.gguf", "--to", "gguf", "--recipe", "int8:g32; **.v_proj=mxfp4"
    ).stdout
    rows = {line.split()[0]: line.split() for line in shown.splitlines() if line.startswith("blk.")}
    assert rows["blk.0.attn_v.weight"][1:3] == ["mxfp4", "MXFP4"] and rows["blk.0.attn_v.weight"][-1] == "yes"
    assert rows["blk.0.attn_norm.weight"][1:3] == ["float32", "F32"]
    assert "20 of 20 tensors are exact" in shown and "no tokenizer: the folder has no tokenizer.json" in shown
    result = octavo("convert", folder, tmp_path / "x.gguf", "--to", "gguf", "--recipe", "int8:g32", "--force", "--json")
    report = json.loads(result.stdout)
    assert report["path"] == str(folder) and report["bytes"] == (tmp_path / "x.gguf").stat().st_size
    assert report["exact"] == len(report["tensors"]) == 20
    assert {(one["from"], one["type"]) for one in report["tensors"]} == {("int8:g32", "Q8_0"), ("float32", "F32")}


def test_a_model_folder_is_written_by_octavo_pack(octavo, folder, tmp_path):
    octavo("convert", folder, tmp_path / "x.gguf", "--to", "gguf", "--recipe", "int8:g32")
    for given, recipe in ((folder, ["--recipe", "int8:g32"]), (tmp_path / "x.gguf", [])):
        octavo("convert", given, tmp_path / "a", "--to", "octavo", *recipe, "--json", "--force")
        octavo("pack", given, "-o", tmp_path / "b", *recipe, "--force")
        mine, theirs = (package.load(tmp_path / name / "model.octavo.safetensors") for name in "ab")
        assert mine.keys() == theirs.keys()
        assert all(mine[name] == theirs[name] if isinstance(mine[name], package.PackedTensor) else torch.equal(mine[name], theirs[name]) for name in mine)  # fmt: skip
    assert (
        "octavo unpack decodes"
        in octavo("convert", folder, tmp_path / "c", "--to", "octavo", "--decode", code=2).output
    )


def test_what_cannot_be_written_is_one_line(octavo, folder, tmp_path):
    assert (
        "unknown kind 'ggml'; accepted are gguf, compressed-tensors, onnx-matmulnbits, octavo"
        in octavo("convert", folder, tmp_path / "x", "--to", "ggml", code=2).output
    )
    octavo("convert", folder, tmp_path / "x.gguf", "--to", "gguf")
    told = octavo("convert", folder, tmp_path / "x.gguf", "--to", "gguf", code=2).output
    assert re.search(r"x.gguf exists; give --force", " ".join(told.split()))
    octavo("convert", folder, tmp_path / "x.gguf", "--to", "gguf", "--force")


def test_the_advice_for_formats_without_a_type_is_true(octavo, folder, tmp_path):
    told = octavo("convert", folder, tmp_path / "x.gguf", "--to", "gguf", "--recipe", "nf4", code=2).output
    advice = re.findall(r"--decode|--recipe \S+", " ".join(told.split()))
    assert advice == ["--decode", "--recipe int8:g32"]
    octavo("convert", folder, tmp_path / "x.gguf", "--to", "gguf", "--recipe", "nf4", advice[0])
    assert {one.type.name for one in GgufFile(tmp_path / "x.gguf").tensors.values()} == {"F32"}
    octavo("convert", folder, tmp_path / "y.gguf", "--to", "gguf", *advice[1].split())
    assert "Q8_0" in {one.type.name for one in GgufFile(tmp_path / "y.gguf").tensors.values()}


def test_a_folder_of_compressed_tensors_is_written_and_read(octavo, folder, tmp_path):
    result = octavo(
        "convert", folder, tmp_path / "ct", "--to", "compressed-tensors", "--recipe", "int4:g32; **.v_proj=mxfp4", "--json"
    )  # fmt: skip
    report = json.loads(result.stdout)
    assert report["exact"] == len(report["tensors"]) == 20
    assert {one["type"] for one in report["tensors"] if one["from"] == "int4:g32" and one["note"] is None} == {
        "pack-quantized, 4-bit int, groups of 32"
    }
    octavo("convert", tmp_path / "ct", tmp_path / "own", "--to", "octavo")
    own = package.load_model(tmp_path / "own")
    assert str(own.model.layers[0].self_attn.v_proj.weight.format) == "mxfp4"
    told = octavo("convert", folder, tmp_path / "no", "--to", "compressed-tensors", "--recipe", "nf4", code=2).output
    (advice,) = re.findall(r"--decode", told)
    octavo("convert", folder, tmp_path / "no", "--to", "compressed-tensors", "--recipe", "nf4", advice)
    octavo("convert", tmp_path / "own", tmp_path / "x.gguf", "--to", "gguf", "--decode")
