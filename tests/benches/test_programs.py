"""The benches run: what they import is there, the manual names them and their options, and tiny ones end well."""

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.quick import spread
from octavo import _core

BENCHES = Path(__file__).resolve().parents[2] / "benches"
PROGRAMS = sorted(path.stem for path in BENCHES.glob("[!_]*.py"))
MANUAL = (BENCHES / "README.md").read_text(encoding="utf-8")
TINY = {
    "calls": ["--only", "layer", "--rounds", "1", "--threads", "1"],
    "codecs": ["--formats", "mxint8,nf4,int8:channel", "--size", "8x64", "--rounds", "1", "--peers"],
    "compact": ["--layers", "1", "--batch", "1", "--tokens", "8", "--rounds", "1", "--threads", "1"],
    "linear": [
        *(
            "--formats",
            "mxint8,nf4",
            "--inputs",
            "int8:g32,bfloat16",
            "--size",
            "64x64",
            "--batches",
            "1,5",
            "--rounds",
            "1",
        ),
        *("--rotate-mb", "1", "--peers"),
    ],
    "model": ["--batches", "1", "--tokens", "8", "--layers", "1", "--rounds", "1", "--threads", "1"],
    "qat": ["--layers", "1", "--batch", "2x8", "--rounds", "1", "--threads", "1"],
    "solve": ["--formats", "int4:g32", "--size", "64", "--rounds", "1"],
    "startup": ["--runs", "1"],
    "training_steps": ["--numbers", "5000", "--width", "16", "--batch", "1", "--rounds", "1"],
}
NEED_TRANSFORMERS = ("compact", "model", "qat")


def run(program, *arguments):
    command = [sys.executable, str(BENCHES / f"{program}.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, "COLUMNS": "200"})


def imports(path):
    """Names of octavo that a program imports, in functions too, as (module, name)."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "octavo":
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name.split(".")[0] == "octavo")


@pytest.mark.parametrize("path", sorted(BENCHES.rglob("*.py")), ids=lambda path: path.name)
def test_what_a_bench_imports_is_there(path):
    for module, name in imports(path):
        if module.split(".")[1:2] in (["transformers"], ["peft"]):  # they need the package of that name
            pytest.importorskip(module.split(".")[1])
        loaded = importlib.import_module(module)
        assert name is None or hasattr(loaded, name) or importlib.import_module(f"{module}.{name}")


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_manual_names_every_bench_and_options_it_has(program):
    assert f"python benches/{program}.py" in MANUAL
    section = re.search(rf"^## [^\n]*\b{program}\.py.*?(?=^## |\Z)", MANUAL, re.M | re.S)
    assert section, f"no section about {program}.py"
    command = re.search(rf"python benches/{program}\.py[^#\n]*", MANUAL)
    told = run(program, "--help")
    assert told.returncode == 0, told.stderr
    for option in re.findall(r"--[a-z][a-z-]*", section[0] + command[0]):
        if option not in ("--tool", "--build", "--target", "--parallel", "--no-deps"):  # compute-sanitizer, cmake, pip
            assert option in told.stdout, f"{program}.py has no {option}"


@pytest.mark.parametrize("program", spread(TINY, 12))
def test_a_tiny_bench_ends_well(program, tmp_path):
    if program in NEED_TRANSFORMERS:
        pytest.importorskip("transformers")
    ended = run(program, *TINY[program], "--force", "--json", str(tmp_path / "figures.json"))
    assert ended.returncode == 0, ended.stderr
    report = json.loads((tmp_path / "figures.json").read_text())
    assert report["machine"]["cpu"]


@pytest.mark.skipif(_core.simd_level() not in ("avx2", "avx512"), reason="a processor without AVX2")
def test_products_are_limited_to_avx2(tmp_path):
    tiny = ("--formats", "mxint8", "--size", "64x64", "--batches", "1", "--rounds", "1", "--rotate-mb", "1")
    ended = run("linear", *tiny, "--simd", "avx2", "--force", "--json", str(tmp_path / "figures.json"))
    assert ended.returncode == 0, ended.stderr
    assert json.loads((tmp_path / "figures.json").read_text())["machine"]["simd"] == "avx2"


@pytest.mark.slow
def test_the_engine_is_measured(tmp_path):
    ended = run("engine", "--lines", "100", "--rounds", "1", "--force", "--json", str(tmp_path / "figures.json"))
    assert ended.returncode == 0, ended.stderr
    assert json.loads((tmp_path / "figures.json").read_text())["rows"]
