"""Commands take a GGUF file where they take the folder of a model."""

import json
import shutil

import octavo as package
import pytest
import torch
from helpers.gguf_files import gguf
from helpers.gguf_models import file_of
from helpers.models import transformer
from octavo.display.numbers import size
from octavo.errors import OctavoWarning
from octavo.interchange.conversion import as_folder
from octavo.interchange.gguf_model import GgufModel, load_gguf_model

pytest.importorskip("transformers")
BOOK = "6 of 20 tensors are decoded to float32: 6 of IQ4_NL: no format has its code book"


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """A small llama with a tokenizer of bytes; its feed-forward weights have an offset."""
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = ["<|end|>", *sorted(ByteLevel.alphabet()), "th", "the"]
    keys = [
        ("tokenizer.ggml.model", "str", "gpt2"),
        ("tokenizer.ggml.pre", "str", "gpt-2"),
        ("tokenizer.ggml.tokens", "str", tokens),
        ("tokenizer.ggml.token_type", "i32", [3] + [1] * (len(tokens) - 1)),
        ("tokenizer.ggml.merges", "str", ["t h", "th e"]),
        ("tokenizer.ggml.eos_token_id", "u32", 0),
    ]
    model = transformer(
        "LlamaForCausalLM", width=64, heads=4, inner=96, num_key_value_heads=2, vocab_size=len(tokens),
        max_position_embeddings=32, tie_word_embeddings=True,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    path.write_bytes(file_of(model, "llama", lambda name: "IQ4_NL" if "ffn" in name else "Q8_0", keys))
    return path


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("the rain in the north, the wind in the south. " * 60)
    return path


def test_inspect_lists_the_types_of_a_file(octavo, file):
    listed = json.loads(octavo("inspect", file, "--json").stdout)
    assert [one["format"] for one in listed["tensors"]].count("IQ4_NL") == 6
    assert listed["metadata"]["general.architecture"] == "llama" and listed["file_bytes"] == file.stat().st_size
    shown = octavo("inspect", file).stdout
    assert "20 tensors, 15 packed" in shown and "Q8_0" in shown and "tiny.gguf" in shown


def test_inspect_reads_files_of_every_architecture(octavo, tmp_path):
    (tmp_path / "x.gguf").write_bytes(
        gguf([("general.architecture", "str", "other")], [("w", 16, (1, 256), bytes(66))])
    )
    assert "IQ2_XXS" in octavo("inspect", tmp_path / "x.gguf").stdout


def test_pack_without_a_recipe_keeps_the_blocks(octavo, file, tmp_path):
    result = octavo("pack", file, "-o", tmp_path / "out", "--json")
    packed = json.loads(result.stdout)
    formats = {one["name"]: one["format"] for one in packed["tensors"]}
    assert formats["model.layers.0.self_attn.q_proj.weight"] == "int8:g32"
    assert formats["model.layers.0.mlp.up_proj.weight"] is None and packed["notes"] == [BOOK]
    assert packed["path"] == str(file) and packed["bytes_before"] == file.stat().st_size
    mine, theirs = package.load_model(tmp_path / "out").state_dict(), load_gguf_model(file)[0].state_dict()
    assert mine.keys() == theirs.keys() and all(mine[name].equal(theirs[name]) for name in mine)
    dry = octavo("pack", file, "-o", tmp_path / "dry", "--dry-run").stdout
    assert BOOK in " ".join(dry.split()) and not (tmp_path / "dry").exists()
    assert "give --force" in octavo("pack", file, "-o", tmp_path / "out", code=2).output
    octavo("pack", file, "-o", tmp_path / "out", "--force")
    assert "--sparse needs a --recipe" in octavo("pack", file, "-o", tmp_path / "new", "--sparse", code=2).output


def test_pack_with_a_recipe_packs_anew(octavo, file, tmp_path):
    packed = json.loads(octavo("pack", file, "-o", tmp_path / "out", "--recipe", "int4:g32", "--json").stdout)
    assert {one["format"] for one in packed["tensors"]} == {None, "int4:g32"} and packed["path"] == str(file)
    layer = package.load_model(tmp_path / "out").model.layers[0].mlp.up_proj
    assert str(layer.weight.format) == "int4:g32"


def test_compare_measures_the_decoded_weights(octavo, file):
    compared = json.loads(
        octavo("compare", file, "--formats", "int8:g32,mxfp4", "--tensor", "**.q_proj.weight", "--json").stdout
    )
    by_format = {one["format"]: one for one in compared}
    assert by_format["int8:g32"]["sqnr_db"] is None  # no error: the weights are codes of this format
    assert by_format["mxfp4"]["sqnr_db"] > 10


def test_eval_measures_the_model_of_a_file(octavo, file, text, tmp_path):
    options = ("--data", text, "--context", "16", "--tokens", "400", "--guard-calls", "2", "--json")
    result = octavo("eval", file, *options)
    found = json.loads(result.stdout)
    assert found["model"] == str(file) and BOOK in " ".join(result.stderr.split())
    octavo("pack", file, "-o", tmp_path / "out")
    assert json.loads(octavo("eval", tmp_path / "out", *options).stdout)["value"] == found["value"]


def test_compress_takes_the_weights_of_a_file(octavo, file, text, tmp_path):
    options = ("--data", text, "--recipe", "int8:g32", "--samples", "4", "--tokens", "16", "--fast")
    told = f"{file} has {size(file.stat().st_size)}: values before are those of its decoded weights"
    assert told in " ".join(octavo("compress", "--model", file, "-o", tmp_path / "out", *options).stdout.split())
    assert str(package.load_model(tmp_path / "out").model.layers[0].mlp.up_proj.weight.format) == "int8:g32"
    assert json.loads((tmp_path / "out" / "report.json").read_text())["model"]["name"] == str(file)
    assert told in json.loads((tmp_path / "out" / "report.json").read_text())["notes"]


def test_recipe_shows_what_it_does_to_a_file(octavo, file):
    rows = json.loads(octavo("recipe", "mxint8", "--model", file, "--json").stdout)["rows"]
    assert any(row["module"].endswith("mlp.up_proj") for row in rows)


def test_untied_heads_of_a_file_ask_for_a_recipe(octavo, file, tmp_path):
    assert "--untie needs a --recipe" in octavo("pack", file, "-o", tmp_path / "out", "--untie", code=2).output
    octavo("pack", file, "-o", tmp_path / "out", "--untie", "--recipe", "int8:g32")
    assert not json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"]


def test_unpack_decodes_the_weights_of_a_file(octavo, file, tmp_path):
    octavo("unpack", file, "-o", tmp_path / "plain")
    found, wanted = package.load_model(tmp_path / "plain"), GgufModel.open(file)
    assert found.model.layers[0].mlp.up_proj.weight.equal(wanted.decoded("blk.0.ffn_up.weight"))


@pytest.fixture(scope="module")
def folders(file, tmp_path_factory):
    """The model of the file as folders: with its blocks packed, and with decoded weights."""
    place = tmp_path_factory.mktemp("folders")
    for name, packed in (("packed", True), ("plain", False)):
        with as_folder(GgufModel.open(file), packed=packed) as (folder, _):
            shutil.copytree(folder, place / name)
    return place / "packed", place / "plain"


def test_graph_shows_a_file_as_the_folder_of_its_blocks(octavo, file, folders):
    packed, plain = folders
    with pytest.warns(OctavoWarning, match="IQ4_NL"):
        found = octavo("graph", file, "--json").stdout
    assert json.loads(found) == json.loads(octavo("graph", packed, "--json").stdout)
    with pytest.warns(OctavoWarning, match="IQ4_NL"):
        assert "no difference" in octavo("graph", packed, "--diff", file).stdout
    priced = octavo("graph", file, "--recipe", "mxfp4", "--json").stdout
    assert (
        json.loads(priced)["costs"] == json.loads(octavo("graph", plain, "--recipe", "mxfp4", "--json").stdout)["costs"]
    )


def test_pipelines_run_on_the_decoded_weights_of_a_file(octavo, file, folders, text, tmp_path):
    (tmp_path / "static.toml").write_text(
        '[[passes]]\npass = "quantize"\nrecipe = "int8:g32 input=int8@minmax"\nsamples = 4\n[[passes]]\npass = "pack"\n'
    )
    options = ("--pipeline", tmp_path / "static.toml", "--data", text, "--out")
    for model, out in ((file, "a"), (folders[1], "b")):
        octavo("graph", model, *options, tmp_path / out)
    mine, theirs = (package.load_model(tmp_path / out).state_dict() for out in ("a", "b"))
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
    nodes = json.loads(octavo("graph", file, "--view", "fx", "--data", text, "--json").stdout)["nodes"]
    assert any(node["target"] == "model.layers.0.mlp.up_proj" for node in nodes)
