"""Files beside the weights: those that state measurements stay with the weights that were measured."""

import json

import octavo
import pytest
import torch
from helpers.processes import octavo_command
from octavo.data import CharTokenizer
from octavo.lab.polynomials import export
from octavo.lab.polynomials.seq2seq import Seq2SeqConfig, build
from octavo.lab.polynomials.shipped import shipped_folder
from octavo.model_folder.companion_files import MEASURED, measurements
from octavo.tensors import container


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_measurements_of_a_network_of_ours_stay_with_its_weights(tmp_path):
    """Through unpack, pack, and load_model and save_model; the output says which files are not there."""
    lines = octavo_command("unpack", shipped_folder(), "-o", tmp_path / "plain").splitlines()
    assert lines[-1].endswith(": accuracy.json, README.md") and lines[-1].startswith("left behind")
    assert names(tmp_path / "plain") == {"config.json", "tokenizer.json", "model.safetensors"}
    lines = octavo_command("pack", tmp_path / "plain", "-o", tmp_path / "packed").splitlines()
    assert names(tmp_path / "packed") == {"config.json", "tokenizer.json", "model.octavo.safetensors"}
    assert not lines[-1].startswith("left behind")
    octavo.save_model(octavo.load_model(shipped_folder()), tmp_path / "saved")
    assert names(tmp_path / "saved") == names(tmp_path / "packed")


@pytest.fixture
def foreign(tmp_path):
    """A folder of somebody else's model, with a report of octavo compress beside it."""
    folder = tmp_path / "foreign"
    folder.mkdir()
    container.save({"a.weight": torch.randn(32, 32)}, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"model_type": "bort"}))
    for name in (*MEASURED, "LICENSE", "notes.txt"):
        (folder / name).write_text("of this model")
    return folder


def test_the_page_of_another_model_which_may_hold_its_license_travels(foreign, tmp_path):
    left = {"accuracy.json", "report.json", "report.html", "report.md"}
    for command in ("pack", "unpack"):
        lines = octavo_command(command, foreign, "-o", tmp_path / command).splitlines()
        line = next(line for line in lines if line.startswith("left behind"))
        assert set(line.rpartition(": ")[2].split(", ")) == left
        assert not names(tmp_path / command) & left
        assert names(tmp_path / command) >= {"README.md", "LICENSE", "notes.txt", "config.json"}


def test_measurements_of_replaced_weights_do_not_stay(foreign, tmp_path):
    """A folder that is written over keeps what its user put there, and no figures of the weights that were in it."""
    torch.manual_seed(0)
    model = build(Seq2SeqConfig(embedding=8, encoder=6, hidden=12, heads=3, layers=1, feedforward=20)).eval()
    for number, write in enumerate((
        lambda folder: octavo_command("pack", foreign, "-o", folder, "--force"),
        lambda folder: octavo.save_model(model, folder),
        lambda folder: export.export_model(model, CharTokenizer.polynomials(), folder, overwrite=True),
    )):  # fmt: skip
        folder = tmp_path / str(number)
        export.export_model(model, CharTokenizer.polynomials(), folder, metadata={"lines": 1})
        assert measurements(folder) == ("accuracy.json", "README.md")
        (folder / "notes.txt").write_text("of the user")
        write(folder)
        assert "notes.txt" in names(folder) and "accuracy.json" not in names(folder)
        page = folder / "README.md"
        assert not page.exists() or page.read_text() == "of this model"  # that of the model which is there now


@pytest.mark.parametrize("config", ["{", "[]", '{"octavo": 99, "kind": "seq2seq"}', '{"model_type": "bert"}', None])
def test_a_configuration_that_nobody_reads_makes_no_page_ours(tmp_path, config):
    for name in MEASURED:
        (tmp_path / name).write_text("x")
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    assert measurements(tmp_path) == ("accuracy.json", "report.json", "report.html", "report.md")
