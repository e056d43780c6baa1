"""Every public name works after ``import octavo`` alone, and ``help(octavo)`` and ``dir(octavo)`` show them all."""

import pydoc
import re
import subprocess
import sys
from pathlib import Path

import octavo
import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "FORMATS.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.py")),
]
NAME = re.compile(r"(?<![\w./:\"'-])octavo((?:\.[A-Za-z_]\w*)+)")
KEYS = {".safetensors", ".version", ".tensor.NAME", ".subjects"}  # of file names, metadata, entry points


def told(text: str) -> set[str]:
    """Return the dotted names of the package that a page uses, without what other libraries put behind them.

    ``octavo.transformers`` is imported by name, for a program without transformers has no such room.
    """
    return {name for name in NAME.findall(text) if name not in KEYS and name.split(".")[1] != "transformers"}


NAMES = sorted(set().union(*(told(page.read_text()) for page in PAGES)))
MAP = octavo.__doc__.split("=\n")[1].split("\n==")[0]


def resolves(names: list[str]) -> str:
    """Return which of the names a new process does not find after ``import octavo``, one a line."""
    code = (
        "import octavo, sys\n"
        "for name in sys.argv[1:]:\n"
        "    found = octavo\n"
        "    try:\n"
        "        for part in name.strip('.').split('.'): found = getattr(found, part)\n"
        "    except AttributeError as error: print(name, error)\n"
    )
    return subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=True).stdout


def test_the_pages_name_enough():
    assert len(NAMES) > 20 and {".quantize_model", ".load_model", ".linear.kernel"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_the_pages_is_that_of_a_room_or_public(name):
    assert name.split(".")[1] in {*dir(octavo), *octavo.__all__}


@pytest.mark.slow
def test_names_of_the_pages_work_after_one_import():
    assert resolves(NAMES) == ""


@pytest.mark.slow
def test_everything_that_the_package_calls_a_module_is_imported_as_one():
    """``from octavo.linear import packed_linear`` works where ``octavo.linear.packed_linear`` does."""
    code = (
        "import importlib, types, octavo\n"
        "modules = [name for name in dir(octavo) if isinstance(getattr(octavo, name), types.ModuleType)]\n"
        "assert {'gemm', 'linear', 'search'} <= set(modules)\n"
        "for name in modules: assert importlib.import_module(f'octavo.{name}') is getattr(octavo, name), name\n"
        "from octavo.linear import kernel, packed_linear\n"
        "from octavo.gemm import int8_gemm\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "name",
    ["linear.packed_linear", *(pytest.param(it, marks=pytest.mark.slow) for it in ("gemm.int8_gemm", "lora.insert"))],
)
def test_a_room_is_there_in_a_process_that_has_touched_nothing_else(name):
    assert resolves([name]) == ""


def test_every_name_of_dir_is_there():
    assert resolves(dir(octavo)) == ""


def test_dir_is_short_enough_to_read():
    assert len(dir(octavo)) <= 55
    assert {"OctavoError", "errors"} <= set(dir(octavo)) and "FormatError" not in dir(octavo)


@pytest.mark.parametrize("name", octavo._FORMER)
def test_former_names_warn_and_say_what_they_are_now(name):
    with pytest.warns(FutureWarning, match=f"octavo.{name} is octavo.* now") as caught:
        thing = getattr(octavo, name)
    now = re.search(r" is ([\w.]+) now", str(caught[0].message))
    assert now and pydoc.locate(now[1]) is thing


def test_help_shows_the_map():
    """Each public name, but errors, is in the table by task; each name in the table is there."""
    shown = pydoc.plain(pydoc.render_doc(octavo))
    assert all(line.strip() in shown for line in MAP.splitlines())
    public = {name: getattr(octavo, name) for name in octavo.__all__}
    errors = {name for name, what in public.items() if isinstance(what, type) and issubclass(what, Exception)}
    assert public.keys() - errors - {"__version__"} <= set(re.findall(r"\w+", MAP))
    inner = [
        f"{room}.{name}"
        for room, names in re.findall(r"(\w+) \(([^)]*)\)", MAP.replace("\n", " "))
        for name in names.split(", ")
    ]
    assert len(inner) > 10 and resolves(inner) == ""


def test_a_name_that_is_not_there_is_refused():
    with pytest.raises(AttributeError, match="module 'octavo' has no attribute 'quantise'"):
        octavo.quantise  # noqa: B018
