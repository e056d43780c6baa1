"""A model that is read, changed and saved again is a whole folder: its tokenizer and the like come along."""

import json
import re
import shutil
from pathlib import Path

import octavo
import pytest
import torch
from helpers.processes import octavo_command
from octavo.lab.polynomials.shipped import shipped_folder
from octavo.model_folder.companion_files import TOKENIZER_TEXTS, VOCABULARIES, belongs


@pytest.fixture
def shipped(tmp_path):
    shutil.copytree(shipped_folder(), tmp_path / "shipped")
    return tmp_path / "shipped"


def test_a_saved_polynomial_model_runs_natively(tmp_path, shipped):
    octavo.save_model(octavo.load_model(shipped), tmp_path / "small")
    assert (tmp_path / "small" / "tokenizer.json").read_bytes() == (shipped / "tokenizer.json").read_bytes()
    engine = octavo.lab.polynomials.Engine.load(tmp_path / "small")
    assert engine.expand(["(7-3*z)*(-5*z-9)"]) == ["15*z**2-8*z-63"]


def test_another_tokenizer_does_not_stay_beside_the_model(tmp_path, shipped):
    model = octavo.load_model(shipped)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "tokenizer.json").write_text("{}")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    octavo.save_model(model, tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (shipped / "tokenizer.json").read_bytes()
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


def test_what_is_no_file_of_the_folder_is_not_carried(tmp_path, shipped):
    (tmp_path / "secret").write_text("of another place")
    (shipped / "vocab.txt").symlink_to(tmp_path / "secret")
    (shipped / "merges.txt").mkdir()
    octavo.save_model(octavo.load_model(shipped), tmp_path / "out")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        "config.json", "model.octavo.safetensors", "tokenizer.json",
    }  # fmt: skip


# --- models of transformers -----------------------------------------------------------------------------------------

BELONGING = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
    "spiece.model", "qwen.tiktoken", "chat_template.jinja", "additional_chat_templates/rag.jinja",
    "preprocessor_config.json", "processor_config.json", "modules.json", "1_Pooling/config.json", "LICENSE.txt",
}  # fmt: skip
OTHERS = {"notes.txt", "training_args.bin", "logs/events.json", "README.md", "additional_chat_templates/notes.txt"}


@pytest.fixture
def checkpoint(tmp_path):
    """The folder of a BERT of transformers, with files of all kinds."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path / "float")
    for place in BELONGING | OTHERS:
        (tmp_path / "float" / place).parent.mkdir(exist_ok=True)
        (tmp_path / "float" / place).write_text(json.dumps({"of": place}))
    return tmp_path / "float"


def read(folder):
    return transformers_class().from_pretrained(folder)


def transformers_class():
    return pytest.importorskip("transformers").BertForMaskedLM


def quantized(model):
    return octavo.quantize_model(model, "mxint8", progress=False)


def saved_twice(folder, out):
    octavo.save_model(octavo.pack_model(quantized(read(folder))), out.with_name("between"))
    octavo.save_model(octavo.load_model(out.with_name("between")), out)


DOORS = {
    "save_model of a float model": lambda folder, out: octavo.save_model(read(folder), out),
    "save_model of a packed model": lambda folder, out: octavo.save_model(
        octavo.pack_model(quantized(read(folder))), out
    ),
    "save_pretrained of a packed model": lambda f, out: octavo.pack_model(quantized(read(f))).save_pretrained(out),
    "save_pretrained of a simulated model": lambda folder, out: quantized(read(folder)).save_pretrained(out),
    "load_model, save_model": lambda folder, out: octavo.save_model(octavo.load_model(folder), out),
    "load_model, quantize_model, pack_model, save_model": lambda folder, out: octavo.save_model(
        octavo.pack_model(quantized(octavo.load_model(folder))), out
    ),
    "twice": saved_twice,
    "octavo pack": lambda folder, out: octavo_command("pack", folder, "-o", out, "--recipe", "mxint8"),
    "octavo prune": lambda folder, out: octavo_command("prune", folder, "-o", out, "--sparsity", "0.5"),
    "octavo prune --compact": lambda folder, out: octavo_command(
        "prune", folder, "-o", out, "--sparsity", "0.5", "--granularity", "neuron", "--compact"
    ),
    "octavo unpack": lambda folder, out: (
        octavo.save_model(octavo.pack_model(quantized(read(folder))), out.with_name("packed")),
        octavo_command("unpack", out.with_name("packed"), "-o", out),
    ),
}


@pytest.mark.filterwarnings("ignore::octavo.CoverageWarning")
@pytest.mark.parametrize("door", DOORS)
def test_every_door_takes_along_what_belongs_to_the_model(door, checkpoint, tmp_path):
    DOORS[door](checkpoint, tmp_path / "out")
    found = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert found >= BELONGING, BELONGING - found
    assert all((tmp_path / "out" / place).read_bytes() == (checkpoint / place).read_bytes() for place in BELONGING)
    if not door.startswith("octavo"):  # which copies a folder, pages of its user included
        card = tmp_path / "out" / "README.md"  # of a packed model
        is_ours = card.exists() and "base_model_relation: quantized" in card.read_text()
        assert not found & OTHERS - ({"README.md"} if is_ours else set())
    assert "training_args.bin" not in found


def test_a_tokenizer_that_was_saved_beside_the_model_stays(checkpoint, tmp_path):
    """Of a model that from_pretrained read; its user saves model and tokenizer in either order."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "tokenizer.json").write_text('"with tokens of my own"')
    for write in (octavo.save_model, lambda model, folder: quantized(model).save_pretrained(folder)):
        folder = shutil.copytree(tmp_path / "out", tmp_path / write.__name__)
        write(read(checkpoint), folder)
        assert (folder / "tokenizer.json").read_text() == '"with tokens of my own"'
        assert not (folder / "vocab.txt").exists()


def test_models_without_a_folder_have_no_such_files(checkpoint, tmp_path):
    gone = read(checkpoint)
    shutil.rmtree(checkpoint)
    made = transformers_class()(gone.config)
    for number, model in enumerate((gone, made)):
        octavo.save_model(model, tmp_path / str(number))
        assert {path.name for path in (tmp_path / str(number)).iterdir()} == {"config.json", "model.octavo.safetensors"}


def test_files_are_found_in_the_cache_of_the_hub(checkpoint, tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    model = read(checkpoint)
    model.config.name_or_path, model.config._commit_hash = "somebody/something", "0123"
    cache = tmp_path / "cache" / "models--somebody--something"
    (cache / "refs").mkdir(parents=True)
    (cache / "snapshots").mkdir()
    shutil.copytree(checkpoint, cache / "snapshots" / "0123")
    blobs = cache / "blobs"
    blobs.mkdir()
    (cache / "snapshots" / "0123" / "vocab.txt").rename(blobs / "abc")
    (cache / "snapshots" / "0123" / "vocab.txt").symlink_to("../../blobs/abc")  # as the cache holds files
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    found = hub.try_to_load_from_cache
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda *a, **k: found(*a, cache_dir=tmp_path / "cache", **k))
    octavo.save_model(model, tmp_path / "out")
    assert (tmp_path / "out" / "vocab.txt").read_bytes() == (checkpoint / "vocab.txt").read_bytes()
    model.config.name_or_path = "no/name/of a repository"
    octavo.save_model(model, tmp_path / "other")
    assert not (tmp_path / "other" / "vocab.txt").exists()


def test_files_of_all_tokenizers_of_transformers_are_known():
    """Read from their texts: some classes are there only with further packages."""
    models = Path(pytest.importorskip("transformers").__file__).parent / "models"
    tables = [
        table
        for file in models.glob("*/tokenization_*.py")
        for table in re.findall(r"VOCAB_FILES_NAMES = \{(.*?)\}", file.read_text(), re.DOTALL)
    ]
    names = {name for table in tables for name in re.findall(r':\s*"([^"]+)"', table)}
    assert len(tables) > 30 and {"vocab.txt", "spiece.model"} < names <= {*TOKENIZER_TEXTS, *VOCABULARIES}
    assert all(belongs(Path(name)) for name in names)


def test_what_replaces_a_model_leaves_no_tokenizer_of_it(checkpoint, tmp_path, shipped):
    """Through the door of commands, and of save_model for a model with files of its own."""
    saved = shutil.copytree(checkpoint, tmp_path / "saved")
    (saved / "model.safetensors").unlink()
    octavo.save_model(octavo.load_model(shipped), saved)
    left = {path.name for path in saved.iterdir()}
    assert left == {"config.json", "model.octavo.safetensors", "tokenizer.json", *(name for name in left & {
        "notes.txt", "training_args.bin", "logs", "README.md"})}  # fmt: skip
    octavo.save_model(octavo.load_model(shipped), tmp_path / "packed")
    for place in ("vocab.txt", "chat_template.jinja", "notes.txt"):
        (tmp_path / "packed" / place).write_text("of another")
    octavo_command("pack", checkpoint, "-o", tmp_path / "packed", "--recipe", "mxint8", "--force")
    assert (tmp_path / "packed" / "notes.txt").read_bytes() == (checkpoint / "notes.txt").read_bytes()
    assert (tmp_path / "packed" / "vocab.txt").read_bytes() == (checkpoint / "vocab.txt").read_bytes()
