"""ARCHITECTURE.md says what is there: its paths exist, and its rooms are those of the package, in their order."""

import re
from pathlib import Path

import pytest
import test_rooms

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
PATHS = sorted(set(re.findall(r"`((?:rust|python|tests|benches)/[\w./-]+|[A-Z]+\.md)`", TEXT)))


@pytest.mark.parametrize("path", PATHS)
def test_a_path_exists(path):
    assert (ROOT / path).exists()


def test_the_table_of_rooms_is_the_order():
    section = TEXT.split("## Rooms of the Python package")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    told = [room for cell in cells for room in re.findall(r"`(\w+)`", cell)]
    assert told == [room for room in test_rooms.ORDER if not room.startswith("_")]
