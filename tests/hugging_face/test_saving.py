"""What save_pretrained writes of packed models: one folder for every reader, with a card, in shards, ready to publish."""

import json
import re
import subprocess
import sys

import octavo
import pytest
import torch
from helpers.architectures import IDS, build
from octavo.errors import ContainerError, SettingError

transformers = pytest.importorskip("transformers", minversion="5.24")

import octavo.transformers  # noqa: E402 - transformers may be missing
from octavo.transformers import OctavoConfig  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small Llama in float32, with a card of its own."""
    path = tmp_path_factory.mktemp("llama")
    build("Llama")[0].save_pretrained(path)
    (path / "README.md").write_text(
        "---\nlicense: apache-2.0\nlanguage:\n- en\nmetrics:\n- x\nbase_model: a/b\n---\n\n# A small Llama\n"
    )
    return path


def packed(folder, recipe="int4:g32"):
    return transformers.LlamaForCausalLM.from_pretrained(folder, quantization_config=OctavoConfig(recipe))


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


def test_files_are_as_large_as_was_asked_and_open_everywhere(folder, tmp_path):
    model = packed(folder)
    model.save_pretrained(tmp_path / "many", max_shard_size="10KB")
    names = sorted(file.name for file in (tmp_path / "many").iterdir())
    shards = [name for name in names if re.fullmatch(r"model\.octavo-\d{5}-of-\d{5}\.safetensors", name)]
    assert len(shards) > 3 and "model.octavo.safetensors" not in names
    largest = max((tmp_path / "many" / name).stat().st_size for name in shards[1:])
    assert largest < 10_000 + 2_000  # a header
    index = json.loads((tmp_path / "many" / "model.octavo.safetensors.index.json").read_text())
    assert sorted(set(index["weight_map"].values())) == shards
    assert torch.equal(logits(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "many")), logits(model))
    assert torch.equal(logits(octavo.load_model(tmp_path / "many")), logits(model))
    again = octavo.load_model(tmp_path / "many")
    again.save_pretrained(tmp_path / "many")  # in the place of the shards
    assert {file.name for file in (tmp_path / "many").glob("*.safetensors*")} == {"model.octavo.safetensors"}
    assert torch.equal(logits(transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "many")), logits(model))
    with pytest.raises(SettingError, match="max_shard_size"):
        model.save_pretrained(tmp_path / "none", max_shard_size="large")


def test_the_native_engine_says_what_to_type_for_shards(folder, tmp_path, monkeypatch):
    packed(folder).save_pretrained(tmp_path / "many", max_shard_size="10KB")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ContainerError, match=r"octavo\.save_model") as caught:
        octavo.TextGenerator.load("many")
    exec(re.search(r"octavo\.save_model\(.*\)", str(caught.value)).group())
    assert octavo.TextGenerator.load("ONE").vocabulary == 61


def test_a_damaged_shard_is_found(folder, tmp_path):
    packed(folder).save_pretrained(tmp_path, max_shard_size="10KB")
    shard = sorted(tmp_path.glob("model.octavo-*"))[2]
    content = bytearray(shard.read_bytes())
    content[-3] ^= 1
    shard.write_bytes(content)
    with pytest.raises(ContainerError, match=shard.name):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)


def test_the_card_tells_base_recipe_bytes_and_the_line_to_load_it(folder, tmp_path):
    model = packed(folder)
    model.config.name_or_path = "some-one/small-llama"
    model.save_pretrained(tmp_path / "packed")
    card = (tmp_path / "packed" / "README.md").read_text()
    assert card.startswith("---\nbase_model: some-one/small-llama\nbase_model_relation: quantized\n")
    assert "`int4:g32`" in card and "before packing" in card
    code = re.search(r"```python\n(.*?)```", card, re.DOTALL)[1].replace(
        "THIS FOLDER OR REPOSITORY", str(tmp_path / "packed")
    )
    scope = {}
    exec(code, scope)
    assert torch.equal(logits(scope["model"]), logits(model))
    scope["model"].save_pretrained(tmp_path / "again")  # the base stays
    assert (tmp_path / "again" / "README.md").read_text() == card
    octavo.load_model(tmp_path / "packed").save_pretrained(tmp_path / "third")
    assert (tmp_path / "third" / "README.md").read_text() == card


def test_octavo_pack_writes_a_card_above_that_of_the_float_model(folder, tmp_path):
    command = [sys.executable, "-m", "octavo", "pack", str(folder), "-o", str(tmp_path / "p"), "--recipe", "int4:g32"]
    subprocess.run(command, check=True, timeout=120, stdout=subprocess.DEVNULL)
    card = (tmp_path / "p" / "README.md").read_text()
    head = card.split("---\n")[1]
    assert head == (
        "base_model_relation: quantized\nlibrary_name: transformers\ntags:\n- octavo\nlicense: apache-2.0\nlanguage:\n- en\n"
    )
    assert "import octavo.transformers" in card and card.endswith("# A small Llama\n")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "p")
    assert torch.equal(logits(loaded), logits(packed(folder)))
    loaded.save_pretrained(tmp_path / "p")
    assert (tmp_path / "p" / "README.md").read_text() == card


def test_unpacked_folders_are_those_of_transformers_again(folder, tmp_path):
    packed(folder).save_pretrained(tmp_path / "p")
    command = [sys.executable, "-m", "octavo", "unpack", str(tmp_path / "p"), "-o", str(tmp_path / "u")]
    subprocess.run(command, check=True, timeout=120, stdout=subprocess.DEVNULL)
    assert not (tmp_path / "u" / "README.md").exists()  # that of the packed model
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "u")
    expected = packed(folder).dequantize()
    assert torch.equal(logits(plain), logits(expected)) and not hasattr(plain, "hf_quantizer")


def test_publishing_uploads_the_folder_with_its_card(folder, tmp_path, monkeypatch):
    uploads = []

    class Hub:
        def __init__(self, token=None):
            assert token == "secret"

        def create_repo(self, repo_id, **options):
            assert options == {"private": True, "exist_ok": True}
            return type("Url", (), {"repo_id": f"someone/{repo_id}"})

        def upload_folder(self, *, repo_id, folder_path, **options):
            uploads.append({file.name: file.read_bytes() for file in folder_path.iterdir()})
            assert repo_id == "someone/small" and options["commit_message"] == "first"
            return "https://hub/commit/1"

    monkeypatch.setattr("huggingface_hub.HfApi", Hub)
    model = packed(folder)
    address = model.push_to_hub("small", token="secret", private=True, commit_message="first", tags=["tiny"])
    assert address == "https://hub/commit/1"
    assert {"README.md", "config.json", "model.octavo.safetensors"} <= uploads[0].keys()
    assert b"tags:\n- octavo\n- tiny\n" in uploads[0]["README.md"]


def test_a_model_that_was_cast_is_opened_as_it_was_saved(folder, tmp_path):
    model = packed(folder).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.dtype == torch.bfloat16 and again.lm_head.dtype == torch.bfloat16
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in again.state_dict().items())


def test_adapters_that_transformers_adds_are_saved_alone(folder, tmp_path, monkeypatch):
    peft = pytest.importorskip("peft")
    import octavo.peft

    # transformers asks for a later release than the tests may have.
    monkeypatch.setattr("transformers.integrations.peft.check_peft_version", lambda **_: None)
    model = packed(folder)
    config = octavo.peft.prepare(peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    model.add_adapter(config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    model.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("model*.safetensors"))
    again = packed(folder)
    again.load_adapter(tmp_path, peft_config=config)
    assert torch.equal(logits(again), logits(model))


def in_cache(folder, cache, name):
    """Lay a folder into a cache of the hub, as a download of the repository ``name`` does."""
    top = cache / f"models--{name.replace('/', '--')}"
    snapshot = top / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    for part in (snapshot, top / "blobs", top / "refs"):
        part.mkdir(parents=True)
    (top / "refs" / "main").write_text(snapshot.name)
    for number, file in enumerate(sorted(folder.iterdir())):
        (top / "blobs" / f"{number:040}").write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(f"../../blobs/{number:040}")
    return snapshot


@pytest.mark.parametrize("size", [None, "10KB"])
def test_repositories_of_the_hub_open_from_its_cache_and_are_the_base(folder, tmp_path, size, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    read, offline = transformers.AutoModelForCausalLM.from_pretrained, {"local_files_only": True}
    in_cache(folder, tmp_path / "cache", "a/float")
    model = read("a/float", cache_dir=tmp_path / "cache", quantization_config=OctavoConfig("int4:g32"), **offline)
    model.save_pretrained(tmp_path / "packed", **({} if size is None else {"max_shard_size": size}))
    assert (tmp_path / "packed" / "README.md").read_text().startswith("---\nbase_model: a/float\n")
    snapshot = in_cache(tmp_path / "packed", tmp_path / "cache", "b/packed")
    for again in (read("b/packed", cache_dir=tmp_path / "cache", **offline), read(snapshot)):
        assert torch.equal(logits(again), logits(model))
        again.save_pretrained(tmp_path / "again")
        assert (tmp_path / "again" / "README.md").read_text().startswith("---\nbase_model: a/float\n")


def test_figures_of_a_compression_stand_in_the_card(folder, tmp_path):
    from octavo.model_folder.model_card import add_measured

    packed(folder).save_pretrained(tmp_path)
    add_measured(tmp_path, ["loss 2.10 -> 2.14"])
    card = (tmp_path / "README.md").read_text()
    assert "## Measured\n\n```text\nloss 2.10 -> 2.14\n```\n\n## Load it\n" in card
    (tmp_path / "README.md").write_text("# Another page\n")
    add_measured(tmp_path, ["loss"])
    assert (tmp_path / "README.md").read_text() == "# Another page\n"
