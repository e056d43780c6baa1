"""Commands take a folder of compressed-tensors where they take the folder of a model."""

import json

import octavo as package
import pytest
import torch
from helpers.compressed_models import folder_of, weights
from helpers.models import transformer

pytest.importorskip("transformers")
DECODED = (
    "6 of 20 tensors are decoded to float32: 6 of float-quantized (8-bit float, channels): no format has E4M3 codes"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small llama with a tokenizer of bytes; its feed-forward weights have scales that no format has."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<|end|>", *alphabet]
    path = tmp_path_factory.mktemp("ct") / "tiny"
    model = transformer(
        "LlamaForCausalLM", width=64, heads=4, inner=96, num_key_value_heads=2, vocab_size=len(tokens),
        max_position_embeddings=32, tie_word_embeddings=True,
    )  # fmt: skip
    folder_of(
        model, path, tie=True,
        choose=lambda name: None if name == "lm_head" else
        ("float", weights(8, "float", "channel")) if "mlp" in name else ("words", weights(8)),
    )  # fmt: skip
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.save(str(path / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>"}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("the rain in the north, the wind in the south. " * 60)
    return path


def test_inspect_lists_weights_and_how_they_are_packed(octavo, folder):
    listed = json.loads(octavo("inspect", folder, "--json").stdout)
    by_name = {one["name"]: one for one in listed["tensors"]}
    weight = by_name["model.layers.0.self_attn.q_proj.weight"]
    assert weight["shape"] == [64, 64] and "8-bit int, groups of 32" in weight["format"]
    assert json.loads(listed["metadata"]["quantization_config"])["format"] == "mixed-precision"
    assert len(by_name) == 20 and "20 tensors, 14 packed" in octavo("inspect", folder).stdout


def test_pack_without_a_recipe_keeps_the_codes(octavo, folder, tmp_path):
    result = octavo("pack", folder, "-o", tmp_path / "out", "--json")
    packed = json.loads(result.stdout)
    formats = {one["name"]: one["format"] for one in packed["tensors"]}
    assert formats["model.layers.0.self_attn.q_proj.weight"] == "int8:g32"
    assert formats["model.layers.0.mlp.up_proj.weight"] is None and packed["notes"][0].startswith(DECODED)
    with pytest.warns(package.OctavoWarning, match="6 of 20 tensors are decoded"):
        theirs = package.load_model(folder).state_dict()
    mine = package.load_model(tmp_path / "out").state_dict()
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert (tmp_path / "out" / "tokenizer.json").exists()
    dry = octavo("pack", folder, "-o", tmp_path / "dry", "--dry-run").stdout
    assert "6 of 20 tensors are decoded" in " ".join(dry.split()) and not (tmp_path / "dry").exists()
    assert "would lie in the input" in octavo("pack", folder, "-o", folder / "out", code=2).output


def test_pack_with_a_recipe_packs_anew(octavo, folder, tmp_path):
    packed = json.loads(octavo("pack", folder, "-o", tmp_path / "out", "--recipe", "int4:g32", "--json").stdout)
    assert {one["format"] for one in packed["tensors"]} == {None, "int4:g32"} and packed["path"] == str(folder)
    assert str(package.load_model(tmp_path / "out").model.layers[0].mlp.up_proj.weight.format) == "int4:g32"


def test_compare_measures_the_decoded_weights(octavo, folder):
    compared = json.loads(
        octavo("compare", folder, "--formats", "int8:g32,mxfp4", "--tensor", "**.q_proj.weight", "--json").stdout
    )
    by_format = {one["format"]: one for one in compared}
    assert by_format["int8:g32"]["sqnr_db"] > 40 and by_format["mxfp4"]["sqnr_db"] > 10


def test_eval_measures_the_model_of_a_folder(octavo, folder, text, tmp_path):
    options = ("--data", text, "--context", "16", "--tokens", "400", "--guard-calls", "2", "--json")
    result = octavo("eval", folder, *options)
    found = json.loads(result.stdout)
    assert found["model"] == str(folder) and "6 of 20 tensors are decoded" in " ".join(result.stderr.split())
    octavo("pack", folder, "-o", tmp_path / "out")
    assert json.loads(octavo("eval", tmp_path / "out", *options).stdout)["value"] == found["value"]


def test_compress_takes_the_weights_of_a_folder(octavo, folder, text, tmp_path):
    options = ("--data", text, "--recipe", "int8:g32", "--samples", "4", "--tokens", "16", "--fast")
    octavo("compress", "--model", folder, "-o", tmp_path / "out", *options)
    assert str(package.load_model(tmp_path / "out").model.layers[0].mlp.up_proj.weight.format) == "int8:g32"
    assert json.loads((tmp_path / "out" / "report.json").read_text())["model"]["name"] == str(folder)


def test_recipe_shows_what_it_does_to_a_folder(octavo, folder):
    rows = json.loads(octavo("recipe", "mxint8", "--model", folder, "--json").stdout)["rows"]
    assert any(row["module"].endswith("mlp.up_proj") for row in rows)


def test_unpack_decodes_the_weights(octavo, folder, tmp_path):
    told = octavo("unpack", folder, "-o", tmp_path / "out").stdout
    assert "decoded 8 of 21 tensors" in " ".join(told.split())
    with pytest.warns(package.OctavoWarning):
        packed = package.load_model(folder)
    plain = package.load_model(tmp_path / "out")
    assert torch.equal(
        plain.model.layers[0].self_attn.q_proj.weight, packed.model.layers[0].self_attn.q_proj.weight.decode()
    )
    octavo("unpack", folder, "-o", tmp_path / "half", "--dtype", "float16")
    assert (
        package.load(tmp_path / "half" / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"].dtype
        == torch.float16
    )
    assert "would lie in the input" in octavo("unpack", folder, "-o", folder / "out", code=2).output


def test_graph_shows_a_folder_as_the_folder_of_its_packed_weights(octavo, folder, tmp_path):
    octavo("pack", folder, "-o", tmp_path / "packed")
    with pytest.warns(package.OctavoWarning, match="6 of 20 tensors are decoded"):
        found = octavo("graph", folder, "--json").stdout
    assert json.loads(found) == json.loads(octavo("graph", tmp_path / "packed", "--json").stdout)


def test_a_loaded_model_does_not_change_with_its_files(folder, tmp_path):
    import shutil

    shutil.copytree(folder, tmp_path / "ct")
    with pytest.warns(package.OctavoWarning):
        model = package.load_model(tmp_path / "ct")
    before = [model.model.embed_tokens.weight.clone(), model.model.layers[0].self_attn.q_proj.weight.codes.clone()]
    size = (tmp_path / "ct" / "model.safetensors").stat().st_size
    with open(tmp_path / "ct" / "model.safetensors", "r+b") as file:
        file.seek(size // 4)
        file.write(bytes(size // 2))
    assert torch.equal(model.model.embed_tokens.weight, before[0])
    assert torch.equal(model.model.layers[0].self_attn.q_proj.weight.codes, before[1])
