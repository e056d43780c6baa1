"""octavo pack, unpack and inspect: what is written is what was asked, whole or not at all."""

import json
import re

import pytest
import safetensors.torch
import torch
from octavo import PackedTensor, quantize
from octavo.tensors import container

BITS = {"mxint8": 8.25, "mxfp4": 4.25, "int4:g32": 4.5}


def same_bits(a, b):
    return a.dtype == b.dtype and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def everything(folder):
    """Every path below a folder, hidden ones included, and the bytes of files."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_the_default_packs_2d_weights_and_keeps_the_rest(octavo, model, tmp_path):
    octavo("pack", model, "-o", tmp_path / "small.safetensors")
    before, after = container.load(model), container.load(tmp_path / "small.safetensors")
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        if tensor.ndim == 2 and tensor.is_floating_point():
            assert isinstance(after[name], PackedTensor) and str(after[name].format) == "mxint8"
            assert torch.equal(after[name].decode(), quantize(tensor, "mxint8"))
        else:
            assert same_bits(after[name], tensor)


def test_the_last_rule_that_matches_decides(octavo, model, tmp_path):
    recipe = "mxint8; layer.**=mxfp4; layer.1.*=int4:g32; norm.weight=bf16; embeddings.*=keep"
    octavo("pack", model, "-o", tmp_path / "small.safetensors", "--recipe", recipe)
    listed = json.loads(octavo("inspect", tmp_path / "small.safetensors", "--json").stdout)
    assert {entry["name"]: entry["format"] or entry["dtype"] for entry in listed["tensors"]} == {
        "embeddings.position_ids": "int64",
        "embeddings.word.weight": "float32",
        "layer.0.query.weight": "mxfp4",
        "layer.0.query.bias": "float32",
        "layer.1.query.weight": "int4:g32",
        "layer.1.query.bias": "float32",
        "norm.weight": "bfloat16",
    }


@pytest.mark.parametrize("fmt", BITS)
def test_reported_bits_are_bytes_on_disk(octavo, model, tmp_path, fmt):
    path = tmp_path / "small.safetensors"
    output = octavo("pack", model, "-o", path, "--recipe", fmt).output
    assert f"packed weights: {BITS[fmt]:.4g} bits per element" in output
    listed = json.loads(octavo("inspect", path, "--json").stdout)
    assert {entry["bits_per_element"] for entry in listed["tensors"] if entry["kind"] == "packed"} == {BITS[fmt]}
    assert listed["file_bytes"] == path.stat().st_size
    header = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    assert listed["bytes"] == path.stat().st_size - header


def test_unpacked_files_are_read_by_other_tools(octavo, model, tmp_path):
    octavo("pack", model, "-o", tmp_path / "small.safetensors", "--recipe", "mxfp6e2m3")
    octavo("unpack", tmp_path / "small.safetensors", "-o", tmp_path / "plain.safetensors")
    before = container.load(model)
    read = safetensors.torch.load_file(tmp_path / "plain.safetensors")
    assert read.keys() == before.keys()
    for name, tensor in before.items():
        if tensor.ndim == 2 and tensor.is_floating_point():
            assert torch.equal(read[name], quantize(tensor, "mxfp6e2m3"))  # as numbers: zeros may differ in sign
        else:
            assert same_bits(read[name], tensor)
    with safetensors.safe_open(tmp_path / "plain.safetensors", "pt") as file:
        assert file.metadata()["format"] == "pt"  # transformers asks for it


def test_unpack_to_another_dtype(octavo, model, tmp_path):
    octavo("pack", model, "-o", tmp_path / "small.safetensors")
    octavo("unpack", tmp_path / "small.safetensors", "-o", tmp_path / "plain.safetensors", "--dtype", "bfloat16")
    assert container.load(tmp_path / "plain.safetensors")["layer.0.query.weight"].dtype == torch.bfloat16
    octavo("unpack", tmp_path / "small.safetensors", "-o", tmp_path / "other", "--dtype", "int8", code=2)


def test_a_folder_becomes_a_folder_with_its_other_files(octavo, folder, tmp_path):
    octavo("pack", folder, "-o", tmp_path / "small")
    files = sorted(str(path.relative_to(tmp_path / "small")) for path in (tmp_path / "small").rglob("*.*"))
    assert files == ["config.json", "model.octavo.safetensors", "pooling/config.json"]
    assert (tmp_path / "small" / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    octavo("unpack", tmp_path / "small", "-o", tmp_path / "plain")
    plain = container.load(tmp_path / "plain" / "model.safetensors")
    shards = [container.load(path) for path in sorted(folder.glob("*.safetensors"))]
    assert plain.keys() == shards[0].keys() | shards[1].keys()


def test_a_dry_run_tells_the_bytes_and_writes_nothing(octavo, model, tmp_path):
    recipe = ("--recipe", "mxfp4; embeddings.word.weight=int4:g32")
    before = everything(tmp_path)
    planned = octavo("pack", model, "-o", tmp_path / "small.safetensors", *recipe, "--dry-run").output
    assert everything(tmp_path) == before
    done = octavo("pack", model, "-o", tmp_path / "small.safetensors", *recipe).output
    for name in ("embeddings.word.weight", "layer.0.query.weight"):
        rows = [line.split()[:7] for line in (planned + done).splitlines() if line.startswith(name)]
        assert len(rows) == 2 and rows[0] == rows[1]


def test_sqnr_in_the_table_is_that_of_the_tensor(octavo, model, tmp_path):
    output = octavo("pack", model, "-o", tmp_path / "small.safetensors", "--recipe", "mxfp4").output
    x = container.load(model)["layer.0.query.weight"].double()
    q = container.load(tmp_path / "small.safetensors")["layer.0.query.weight"].decode().double()
    sqnr_db = 10 * torch.log10((x**2).sum() / ((x - q) ** 2).sum()).item()
    assert re.search(r"layer\.0\.query\.weight .* ([\d.]+)$", output, re.MULTILINE)[1] == f"{sqnr_db:.2f}"


REFUSED = {
    "an unknown format": (["--recipe", "mxfp6e3m3"], "did you mean 'mxfp6e3m2'?"),
    "a rule that matches nothing": (["--recipe", "mxint8; **.kwery.*=mxfp4"], "nearest names: "),
    "rules joined by commas": (["--recipe", "mxint8, layer.*=mxfp4"], "rules are separated by ';'"),
    "an empty rule": (["--recipe", "mxint8;;layer.*=mxfp4"], "an empty rule"),
    "a scale rule of another format": (["--recipe", "int8@ceil"], "no block scale"),
    "no rules": (["--recipe", ""], "the recipe has no rules"),
    "a type": (["--recipe", "type:Linear int8"], "a checkpoint holds names, not types"),
    "activations": (["--recipe", "weight=int8 input=int8"], "a checkpoint holds no inputs"),
    "a calibration": (["--recipe", "int4:g32@gptq"], "needs a model"),
    "a glob that stops at dots": (["--recipe", "*query=mxfp4"], "'*' does not cross a dot, '**' does"),
    "a tensor that is no float": (["--recipe", "**position_ids=mxint8"], "int64"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_writes_nothing(octavo, model, tmp_path, case):
    args, message = REFUSED[case]
    before = everything(tmp_path)
    assert message in octavo("pack", model, "-o", tmp_path / "small.safetensors", *args, code=2).output
    assert everything(tmp_path) == before


def test_a_rule_that_matches_nothing_names_the_nearest_tensors(octavo, model, tmp_path):
    output = octavo("pack", model, "-o", tmp_path / "x", "--recipe", "layers.0.query*=mxfp4", code=2).output
    assert "nearest names: layer.0.query" in output


def test_nan_is_refused_with_the_name_of_its_tensor(octavo, model, tmp_path):
    tensors = container.load(model)
    tensors["layer.1.query.weight"][3, 5] = torch.nan
    container.save(tensors, model)
    output = octavo("pack", model, "-o", tmp_path / "small.safetensors", code=2).output
    assert output.startswith("error: layer.1.query.weight: ")
    assert not (tmp_path / "small.safetensors").exists()


def test_nothing_is_overwritten_without_force(octavo, model, folder, tmp_path):
    (tmp_path / "small.safetensors").write_text("precious")
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "notes.txt").write_text("precious")
    for command in ("pack", "unpack"):
        assert "--force" in octavo(command, model, "-o", tmp_path / "small.safetensors", code=2).output
        assert "--force" in octavo(command, folder, "-o", tmp_path / "small", code=2).output
    assert (tmp_path / "small.safetensors").read_text() == "precious"
    assert [path.name for path in (tmp_path / "small").iterdir()] == ["notes.txt"]
    octavo("pack", model, "-o", tmp_path / "small.safetensors", "--force")
    octavo("pack", folder, "-o", tmp_path / "small", "--force")
    assert container.inspect(tmp_path / "small.safetensors")
    assert (tmp_path / "small" / "notes.txt").read_text() == "precious"
    assert (tmp_path / "small" / "model.octavo.safetensors").is_file()


@pytest.mark.parametrize("command", ["pack", "unpack"])
def test_the_tokenizer_of_another_model_does_not_stay(octavo, folder, tmp_path, command):
    """A folder without a tokenizer, written over one that has another model's, has none."""
    before = {"pack": folder, "unpack": tmp_path / "packed"}[command]
    octavo("pack", folder, "-o", tmp_path / "packed")
    octavo(command, before, "-o", tmp_path / "small")
    for name in ("tokenizer.json", "vocab.txt", "tokenizer_config.json", "notes.txt"):
        (before / name).unlink(missing_ok=True)
        (tmp_path / "small" / name).write_text("of another model")
    (before / "vocab.txt").write_text("of this model")
    octavo(command, before, "-o", tmp_path / "small", "--force")
    left = {path.name for path in (tmp_path / "small").iterdir()}
    assert not left & {"tokenizer.json", "tokenizer_config.json"} and "notes.txt" in left
    assert (tmp_path / "small" / "vocab.txt").read_text() == "of this model"


def test_the_input_is_never_the_output(octavo, model, folder):
    before = everything(model.parent)
    for target in (folder, folder / "packed", folder / "model-1-of-2.safetensors"):
        octavo("pack", folder, "-o", target, "--force", code=2)
    octavo("pack", model, "-o", model, "--force", code=2)
    octavo("pack", model, "-o", folder, "--force", code=2)
    assert everything(model.parent) == before


def test_a_folder_never_holds_two_forms_of_a_model(octavo, folder, tmp_path):
    octavo("pack", folder, "-o", tmp_path / "small")
    octavo("unpack", tmp_path / "small", "-o", tmp_path / "plain")
    assert "ambiguous" in octavo("pack", folder, "-o", tmp_path / "plain", "--force", code=2).output
    (tmp_path / "small" / "model.safetensors").write_bytes((tmp_path / "plain" / "model.safetensors").read_bytes())
    assert "name the file" in octavo("inspect", tmp_path / "small", code=2).output


def test_packing_twice_is_refused(octavo, model, tmp_path):
    octavo("pack", model, "-o", tmp_path / "small.safetensors")
    output = octavo("pack", tmp_path / "small.safetensors", "-o", tmp_path / "smaller.safetensors", code=2).output
    assert "already packed as 'mxint8'" in output


def test_files_that_are_no_containers_are_refused_by_name(octavo, model, tmp_path):
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(model.read_bytes()[:-1])
    for args in (["inspect"], ["pack", "-o", tmp_path / "x"], ["unpack", "-o", tmp_path / "x"]):
        assert "broken.safetensors" in octavo(args[0], broken, *args[1:], code=2).output
    assert not (tmp_path / "x").exists()


def test_shards_outside_the_folder_are_refused(octavo, folder):
    index = folder / "model.safetensors.index.json"
    for hostile in ("../secret.safetensors", "/etc/passwd", "config.json", 5):
        index.write_text(json.dumps({"weight_map": {"layer.weight": hostile}}))
        assert "is not the name of a safetensors file" in octavo("inspect", folder, code=2).output
    for hostile in ("[]", '{"weight_map": 3}', "{", '{"weight_map": {"a": ["b"]}}', "\xff"):
        index.write_text(hostile, encoding="latin-1")
        assert f"{index.name}: " in octavo("inspect", folder, code=2).output


def test_inspect_shows_what_a_file_holds(octavo, model):
    output = octavo("inspect", model).output
    assert re.search(r"layer\.0\.query\.weight +- +64 x 64 +float32 +16,384 +32", output)
    assert "7 tensors, 0 packed" in output
    assert "metadata format: pt" in output


@pytest.mark.parametrize("recipe", ["keep", "mxint8; ** keep"])
def test_a_recipe_that_packs_nothing_is_refused_before_anything_is_written(octavo, model, tmp_path, recipe):
    before = everything(tmp_path)
    pack = ("pack", model, "-o", tmp_path / "small.safetensors", "--recipe", recipe)
    told = octavo(*pack, code=2).output
    assert f"the recipe '{recipe}' packs none of its weights" in " ".join(told.split())
    assert octavo(*pack, "--dry-run", code=2).output == told and everything(tmp_path) == before


@pytest.mark.parametrize("name", ["model.safetensors.index.json", "config.json"])
def test_a_text_beside_the_weights_is_told_from_them(octavo, folder, tmp_path, name):
    for command in (
        ("inspect",),
        ("pack", "-o", tmp_path / "x"),
        ("recipe", "mxint8", "--model"),
        ("unpack", "-o", tmp_path / "x"),
    ):
        told = " ".join(octavo(*command, folder / name, code=2).output.split())
        assert f"{name}: a text beside the weights of a model; give its folder, {folder}" in told


def test_names_in_a_file_cannot_steer_the_terminal(octavo, tmp_path):
    file = tmp_path / "hostile.safetensors"
    container.save({"\x1b[31mred\nline": torch.zeros(2)}, file, metadata={"k": "\x1b[2J"})
    shown = octavo("inspect", file).stdout
    assert "\x1b" not in shown
    assert "\\x1b[31mred\\nline" in shown


def test_json_has_every_tensor_and_why_some_stayed(octavo, model, tmp_path):
    command = ["pack", model, "-o", tmp_path / "small.safetensors", "--recipe", "mxint8; embeddings.**=keep", "--json"]
    planned = json.loads(octavo(*command, "--dry-run").stdout)
    assert planned["file"] is None and not (tmp_path / "small.safetensors").exists()
    packed = json.loads(octavo(*command).stdout)
    assert packed["bytes"] == (tmp_path / "small.safetensors").stat().st_size
    assert [row["name"] for row in packed["tensors"]] == [row["name"] for row in planned["tensors"]]
    for row in packed["tensors"]:
        assert (row["format"] is None) == (row["reason"] is not None), row
    reasons = {row["name"]: row["reason"] for row in packed["tensors"]}
    assert reasons["embeddings.word.weight"] == "kept by a rule"
    assert reasons["layer.0.query.bias"] == "no rule names it"
    assert reasons["layer.0.query.weight"] is None


def test_json_of_a_folder_tells_its_head_and_its_norms(octavo, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, vocab_size=64,
        tie_word_embeddings=True,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    packed = json.loads(
        octavo("pack", tmp_path / "llama", "-o", tmp_path / "small", "--recipe", "int4:g32", "--json").stdout
    )
    assert any("lm_head" in note for note in packed["notes"])
    reasons = {row["name"]: row["reason"] for row in packed["tensors"]}
    assert reasons["model.layers.0.mlp.up_proj.weight"] is None
    assert "takes no formats" in reasons["model.norm.weight"]
