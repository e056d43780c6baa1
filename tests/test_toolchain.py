"""The versions that are stated are the ones that are needed, everywhere they are stated, and every file is checked."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = (".ci/run", ".pre-commit-config.yaml", ".github/workflows/ci.yml", "CONTRIBUTING.md", "pyproject.toml")


def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def toml(path: str) -> dict:
    return tomllib.loads(text(path))


def test_the_stated_rust_version_is_one():
    stated = toml("Cargo.toml")["workspace"]["package"]["rust-version"]
    assert re.findall(r"\((\d+\.\d+) or later\)", text("README.md")) == [stated]
    assert set(re.findall(r"Rust (\d+\.\d+) or later", text("CONTRIBUTING.md"))) == {stated}
    assert set(re.findall(r"rustup \w+(?: install)? (\d+\.\d+)", text(".github/workflows/ci.yml"))) == {stated}
    for manifest in sorted(ROOT.glob("rust/*/Cargo.toml")):
        package = tomllib.loads(manifest.read_text(encoding="utf-8"))["package"]
        assert package["rust-version"] == {"workspace": True}, manifest


def test_the_workflow_has_every_python_that_ci_looks_for():
    least = re.fullmatch(r">=(3\.\d+)", toml("pyproject.toml")["project"]["requires-python"])[1]
    (others,) = re.findall(r"for version in ([0-9. ]+); do", text(".ci/run"))
    (stated,) = re.findall(r"python-version: \|\n((?: +3\.\d+\n)+)", text(".github/workflows/ci.yml"))
    assert sorted(stated.split()) == sorted([least, *others.split()])
    assert toml("pyproject.toml")["tool"]["ruff"]["target-version"] == f"py{least.replace('.', '')}"


@pytest.mark.parametrize("tool", ["ruff", "mypy"])
def test_a_tool_has_one_version_in_all_files_and_an_end(tool):
    """Another version formats otherwise, or finds other errors."""
    stated = {(path, pin) for path in FILES for pin in re.findall(rf'"{tool}([<>=][^"]*)"', text(path))}
    pins = {pin for _, pin in stated}
    assert len(pins) == 1, stated
    assert re.fullmatch(r">=(\d+)\.(\d+),<\d+\.\d+", pins.pop())


def test_a_commit_is_checked_by_the_commands_of_ci():
    """Hooks change nothing that CI does not ask for, and use the tools of the environment."""
    hooks = text(".pre-commit-config.yaml")
    commands = [entry.replace(" --force-exclude", "") for entry in re.findall(r"entry: (.+)", hooks)]
    assert commands
    for command in commands:
        assert command in text(".ci/run"), command
    assert set(re.findall(r"language: (\w+)", hooks)) == {"system"} and set(re.findall(r"repo: (\S+)", hooks)) == {
        "local"
    }


def test_the_workflow_calls_what_everyone_can_call():
    workflow = text(".github/workflows/ci.yml")
    assert re.findall(r"run: bash (\S+)", workflow) == [".ci/run"]
    assert "secrets." not in workflow


def test_no_module_is_spared_by_the_type_checker():
    mypy = toml("pyproject.toml")["tool"]["mypy"]
    assert mypy["strict"] is True
    for override in mypy["overrides"]:
        assert not [name for name in override["module"] if name.startswith("octavo")], override


def test_ci_calls_the_test_command_of_the_readme_to_the_character():
    """Another command would see other failures: of one process and of several, in one order and in another."""
    (command,) = re.findall(r"^(pip install .* && pytest.*)$", text("README.md"), re.MULTILINE)
    assert command in [line.strip() for line in text(".ci/run").splitlines()]
    options = toml("pyproject.toml")["tool"]["pytest"]["ini_options"]["addopts"].split()
    assert "--random-order" in options and options[options.index("-n") + 1] == "auto"
