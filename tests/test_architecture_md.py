"""ARCHITECTURE.md says what is there: its paths exist, and its rooms are those of the package, in their order."""

import re
from pathlib import Path

import pytest
import test_rooms

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
PATHS = sorted(set(re.findall(r"`((?:rust|python|tests|benches|docs|examples|fuzz)(?:/[\w./-]+)?|[A-Z]+\.md)`", TEXT)))


def test_its_paths_exist():
    assert [path for path in PATHS if not (ROOT / path).exists()] == []


def test_the_table_of_rooms_is_the_order():
    section = TEXT.split("## Rooms of the Python package")[1].split("\n##")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    rooms = [room for cell in cells for room in re.findall(r"`(\w+)`", cell)]
    assert rooms == [room for room in test_rooms.ORDER if not room.startswith("_")]


SUBJECTS = [
    "A new format",
    "A new layer",
    "A new criterion for scales",
    "A kernel",
    "A study",
    "A reader of another package's file",
    "A kind of network",
    "A pass",
    "A technique",
]


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_stranger_finds_the_files_to_change(subject):
    """From README.md and ARCHITECTURE.md alone: a section of that name, with files of code and a file of tests."""
    assert "[ARCHITECTURE.md](ARCHITECTURE.md)" in (ROOT / "README.md").read_text()
    section = TEXT.split(f"### {subject}\n")[1].split("\n### ")[0]
    named = re.findall(r"`([\w./-]+\.(?:rs|py|cu))`", section)
    assert [path for path in named if path.startswith(("rust/", "python/"))], section
    assert [path for path in named if "tests/" in path], section
