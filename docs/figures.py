"""Puts the figures of benches/results/figures.json into README.md and the manual: ``python docs/figures.py``.

A figure is marked where it stands, ``99.05 %<!-- figure: compress / after -->``: the group and the name in the JSON
file. It is written with the unit and the decimals that the document has. ``<!-- figures: GROUP -->`` in a paragraph or
on the line before a table says where its other figures come from: groups of that file, too.
"""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "benches" / "results" / "figures.json"
MARKED = re.compile(
    r"(?P<sign>[+-]?)(?P<number>\d[\d,]*(?:\.\d+)?)(?P<unit> (?:%|kB|MB|ms|us|s))?<!-- figure: (?P<name>[^>]+?) -->"
)
SCALES = {"%": 1e2, "kB": 1e-3, "MB": 1e-6, "ms": 1e3, "us": 1e6, "s": 1.0, "": 1.0}


def figures() -> dict[str, dict]:
    """Return the groups of figures, each with command, processor and date, by name."""
    return json.loads(FIGURES.read_text(encoding="utf-8"))


def written(value: float, number: str, unit: str) -> str:
    """Return a value in a unit with as many decimals as ``number`` has, and its separators of thousands."""
    decimals = len(number.partition(".")[2])
    return f"{abs(value) * SCALES[unit.strip()]:,.{decimals}f}"


def value_of(known: dict[str, dict], name: str) -> float:
    """Return the value of ``GROUP / NAME``. Raises KeyError for one that is not there."""
    group, _, figure = name.partition(" / ")
    return known[group]["figures"][figure]["value"]


def with_figures(text: str, known: dict[str, dict]) -> str:
    """Return the text of a document with every marked figure as the JSON file has it."""

    def put(found: re.Match[str]) -> str:
        value, unit = value_of(known, found["name"]), found["unit"] or ""
        sign = found["sign"] and ("-" if value < 0 else "+")
        return f"{sign}{written(value, found['number'], unit)}{unit}<!-- figure: {found['name']} -->"

    return MARKED.sub(put, text)


def main() -> None:
    """Rewrite the documents."""
    known = figures()
    for document in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = document.read_text(encoding="utf-8")
        if (new := with_figures(text, known)) != text:
            document.write_text(new, encoding="utf-8")
            print(f"{document.relative_to(ROOT)}: figures changed")


if __name__ == "__main__":
    main()
