import json
import os
import pty
import subprocess
import sys

import pytest
import torch
from helpers.processes import python
from octavo.lab.polynomials.native_engine import Engine

MAIN = "from octavo.cli import main; main()"


@pytest.fixture(scope="module")
def engine(exported):
    return Engine.load(exported)


def test_expressions_are_answered_in_order(octavo, exported, engine):
    expressions = ["(x+1)*(x-2)", "-5*s*(4-s)", "-o*(o-h)", "3*x"]
    result = octavo("expand", *expressions, "--model", exported)
    assert result.stdout.splitlines() == engine.expand(expressions)
    result = octavo("expand", "--model", exported, "--beam", 3, "--format", "pairs", *expressions)
    assert result.stdout.splitlines() == [
        f"{left}={right}" for left, right in zip(expressions, engine.expand(expressions, beam=3), strict=True)
    ]
    result = octavo("expand", expressions[0], "--model", exported, "--format", "json")
    assert json.loads(result.stdout) == {"line": 1, "left": expressions[0], "right": engine.expand(expressions)[0]}


def test_standard_input_is_read_without_arguments(exported, engine):
    result = python(MAIN, "expand", "--model", exported, text="x*(x+1)\n(2-y)*y")
    assert result.stdout.splitlines() == engine.expand(["x*(x+1)", "(2-y)*y"])
    assert result.returncode == 0 and not result.stderr


def test_failed_lines_are_named_on_stderr_and_the_exit_code_is_1(octavo, exported, engine):
    result = octavo("expand", "x*y", "Q", "", "y", "--model", exported, code=1)
    one, two = engine.expand(["x*y", "y"])
    assert result.stdout == f"{one}\n\n\n{two}\n"
    first, second = result.stderr.splitlines()
    assert first.startswith("line 2: column 1: character 'Q' is not in the vocabulary; allowed are ")
    assert second == "line 3: empty line; accepted are 1 to 32 characters"


def test_files_are_read_and_written(octavo, exported, engine, tmp_path):
    source, target = tmp_path / "lines.txt", tmp_path / "answers.txt"
    rows = [f"{i}*x*(x-{i % 10})" for i in range(100)]
    source.write_text("\n".join(rows) + "\n")
    result = octavo("expand", "-f", source, "-o", target, "--model", exported)
    assert target.read_text().splitlines() == engine.expand(rows)
    assert not result.output
    assert octavo("expand", "--file", source, "--model", exported).stdout == target.read_text()
    octavo("expand", "x*y", "--model", exported, "-o", target)
    assert target.read_text() == engine.expand(["x*y"])[0] + "\n"


def test_a_bar_is_shown_on_a_terminal_alone(exported, tmp_path):
    source, target = tmp_path / "lines.txt", tmp_path / "answers.txt"
    source.write_text("x*(x-1)\n" * 9000)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", MAIN, "expand", "-f", source, "-o", target, "--model", exported]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 1 << 16):
            shown += piece
    except OSError:  # the other end was closed
        pass
    assert child.wait(60) == 0
    assert b"expanding" in shown and b"lines" in shown


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["x", "--file", "lines.txt"], "give either EXPRESSION or --file"),
        (["x\ny", "--model", "{model}"], "has a line feed"),
        (["--file", "absent.txt", "--model", "{model}"], "absent.txt: no such file or directory"),
        (["x", "--model", "absent"], "absent/config.json"),
        (["x", "--model", "{model}", "--beam", "0"], "beam is 0"),
        (["x", "--model", "{model}", "--beam", "99"], "beam is 99; accepted are 1 to 31, the vocabulary"),
        (
            ["x", "--model", "{model}", "--precision", "int4"],
            "unknown precision 'int4'; accepted are float, bfloat16, integer",
        ),
        (["x", "--model", "{model}", "--route", "gpu"], "unknown route 'gpu'; accepted are auto, general, fused"),
        (["x", "--model", "{model}", "--format", "xml"], "unknown format 'xml'; accepted are text, pairs, json"),
        (["x", "--model", "{model}", "--threads", "0"], "threads is 0; accepted is a whole number from 1"),
        (["x", "--model", "{model}", "--precision", "integer"], "integer.safetensors"),
    ],
)
def test_wrong_requests_are_refused_in_one_line(octavo, exported, args, reason):
    result = octavo("expand", *(arg.format(model=exported) for arg in args), code=2)
    assert not result.stdout
    assert reason in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_nothing_heavy_is_loaded(exported):
    code = f"import sys; from octavo.cli import app; app(['expand', 'x*y', '--model', {str(exported)!r}], standalone_mode=False)"
    result = python(f"{code}; print([name for name in ('torch', 'numpy', 'rich') if name in sys.modules])")
    assert result.stdout.splitlines()[-1] == "[]", result.stderr


def test_a_closed_pipe_ends_quietly(exported, tmp_path):
    source = tmp_path / "lines.txt"
    source.write_text("x*(x-1)\n" * 50_000)
    code = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {MAIN!r}, 'expand', '-f', "
    code += f"{str(source)!r}, '--model', {str(exported)!r}], stdout=subprocess.PIPE, stderr=subprocess.PIPE); "
    code += "p.stdout.readline(); p.stdout.close(); print(p.stderr.read().decode(), end='')"
    assert python(code).stdout == ""


def test_help_teaches(octavo):
    text = octavo("expand", "--help").output
    assert "octavo lab expand '(7-3*z)*(2*z+5)'" in text.split("Examples")[1]
    for option in ("--file", "--out", "--beam", "--format", "--precision", "--route", "--threads", "--model"):
        assert option in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named(octavo, exported):
    assert "finds no GPU" in octavo("expand", "x", "--model", exported, "--device", "cuda", code=2).stderr
    result = octavo("expand", "x", "--model", exported, "--device", "tpu", code=2)
    assert "device is 'tpu'; accepted are 'cpu', 'cuda' and 'cuda:N'" in result.stderr
