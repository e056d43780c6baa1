"""The index of the API is complete: ``docs/site/api`` has every public name, and a page or a section for every room."""

import re
import types
from pathlib import Path

import octavo
import octavo.errors
from test_public_names import NAMES, ROOT

PAGES = {path.stem: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "site" / "api").glob("*.rst"))}
DESCRIBED = set(re.findall(r"^\.\. auto\w+:: ([\w.]+)$", "\n".join(PAGES.values()), re.MULTILINE))


def test_every_public_name_is_described():
    public = {name for name in octavo.__all__ if name != "__version__" and not hasattr(octavo.errors, name)}
    assert {f"octavo.{name}" for name in public} <= DESCRIBED
    assert "octavo.errors" in DESCRIBED


def test_every_room_is_described():
    rooms = {name for name in dir(octavo) if isinstance(getattr(octavo, name), types.ModuleType)}
    assert {f"octavo.{name}" for name in rooms} <= DESCRIBED


def test_what_the_manual_calls_is_of_a_room_that_is_described():
    for name in NAMES:
        assert f"octavo.{name.split('.')[1]}" in DESCRIBED or hasattr(octavo.errors, name.split(".")[1]), name


def test_every_page_of_the_index_is_in_the_contents():
    contents = (ROOT / "docs" / "site" / "contents.txt").read_text(encoding="utf-8").split()
    assert {Path(line).name for line in contents if line.startswith("docs/site/api/")} == set(PAGES)
