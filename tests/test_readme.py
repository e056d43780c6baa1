"""The README's tour is true: its Python runs, its commands give the output that is printed under them."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"
BLOCKS = re.findall(
    r"^```(python|text|console)\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)
TIMES = re.compile(r"[\d.]+\s+[\d.]+$")  # GB/s at the end of a row of `compare`


def printed(text: str) -> list[str]:
    """Lines without trailing blanks and without times."""
    return [TIMES.sub("", line.rstrip()).rstrip() for line in text.splitlines() if line.strip()]


def assert_shows(shown: str, real: str) -> None:
    """Every line of the README, in order; ``...`` stands for any number of lines."""
    lines = iter(printed(real))
    skipping = False
    for wanted in printed(shown):
        if wanted == "...":
            skipping = True
            continue
        for line in lines:
            if line == wanted:
                break
            assert skipping, f"the README shows {wanted!r}, but the real output is {line!r}"
        else:
            pytest.fail(f"the README shows {wanted!r}, which is not in the output")
        skipping = False


def test_the_tour_runs_as_printed(tmp_path, monkeypatch):
    from octavo.cli import main

    monkeypatch.chdir(tmp_path)
    names: dict = {}
    output = ""
    ran = 0
    for kind, body in BLOCKS[BLOCKS.index(next(block for block in BLOCKS if block[0] == "python")) :]:
        if kind == "python":
            captured = io.StringIO()
            with contextlib.redirect_stdout(captured):
                exec(compile(body, "README.md", "exec"), names)
            output = captured.getvalue()
        elif kind == "text":
            assert_shows(body, output)
        else:
            command, _, shown = body.removeprefix("$ ").partition("\n")
            raw = io.BytesIO()  # some commands write bytes
            captured = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
            with contextlib.redirect_stdout(captured), contextlib.redirect_stderr(captured), pytest.raises(SystemExit):
                monkeypatch.setattr("sys.argv", shlex.split(command))
                main()
            assert_shows(shown, raw.getvalue().decode())
        ran += 1
    assert ran >= 10, "the README lost its tour"


def test_the_two_commands_are_in_the_readme():
    commands = [body.strip() for kind, body in BLOCKS if kind == "console"]
    assert commands[:2] == ["pip install . && octavo compress", 'pip install ".[test]" && pytest']
