"""A model that is loaded, changed and saved again is a whole folder: its tokenizer comes along."""

import shutil

import octavo
import pytest
from octavo.systems.polynomials.shipped import shipped_folder


@pytest.fixture
def shipped(tmp_path):
    shutil.copytree(shipped_folder(), tmp_path / "shipped")
    return tmp_path / "shipped"


def test_a_saved_polynomial_model_runs_natively(tmp_path, shipped):
    octavo.save_model(octavo.load_model(shipped), tmp_path / "small")
    assert (tmp_path / "small" / "tokenizer.json").read_bytes() == (shipped / "tokenizer.json").read_bytes()
    engine = octavo.Engine.load(tmp_path / "small")
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
