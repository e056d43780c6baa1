"""Programs of examples/ run as they are, end with a printed figure that means success, and are short."""

import re
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
MOST_LINES = 60
LAST = {  # the last line that a program prints, and what its last number has to be at least
    "decoder": (r"greedy tokens as in float32$", 30),  # random weights: logits lie close together
    "encoder": (r"^smallest cosine", 0.999),
    "lora_on_packed": (r"new task: [\d.]+%$", 80),
    "own_network": (r"same tag as in float32: [\d.]+%$", 80),
    "publish": (r"same answers in another process: [\d.]+%$", 100),
    "qat_classifier": (r"packed [\d.]+%$", 90),
}
FIGURE = {"decoder": r"([\d.]+)% of"}
NEEDS = {
    "transformers": "import transformers",
    "tokenizers": "import tokenizers",
    "accelerate": "transformers.Trainer(",
}


@pytest.mark.parametrize("program", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(program, monkeypatch, capsys, tmp_path):
    text = program.read_text()
    missing = [name for name, use in NEEDS.items() if use in text and find_spec(name) is None]
    if missing:
        pytest.skip(f"{program.name} needs {', '.join(missing)}, which the extra 'demo' brings")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(program)])
    runpy.run_path(str(program), run_name="__main__")
    last = capsys.readouterr().out.splitlines()[-1]
    shape, least = LAST[program.stem]
    assert re.search(shape, last)
    assert float(re.findall(FIGURE.get(program.stem, r"([\d.]+)%?"), last)[-1]) >= least, last
    assert not list(tmp_path.iterdir()), "an example leaves nothing behind"


@pytest.mark.parametrize("program", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_says_how_to_run_it(program):
    text = program.read_text()
    assert len(text.splitlines()) <= MOST_LINES
    assert f"python examples/{program.name}" in text


def test_the_readme_names_every_example():
    readme = (ROOT / "README.md").read_text()
    assert [path.stem for path in EXAMPLES] == sorted(LAST)
    assert all(f"examples/{path.name}" in readme for path in EXAMPLES)
