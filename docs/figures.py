"""Puts the figures of benches/results/figures.json into README.md and the manual: ``python docs/figures.py``.

A figure is marked where it stands, ``99.05 %<!-- figure: compress / after -->``: the group and the name in the JSON
file. It is written with the unit and the decimals that the document has. ``<!-- figures: GROUP -->`` in a paragraph or
on the line before a table says where its other figures come from: groups of that file, too. A table after
``<!-- table: FILE.json -->`` is made of the rows of that file of benches/results, whole.
"""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "benches" / "results" / "figures.json"
MARKED = re.compile(
    r"(?P<sign>[+-]?)(?P<number>\d[\d,]*(?:\.\d+)?)(?P<unit> (?:%|kB|MB|ms|us|s))?<!-- figure: (?P<name>[^>]+?) -->"
)
TABLE = re.compile(r"(?<=<!-- table: )(?P<file>[\w.-]+\.json) -->\n(?:\|.*\n)*")
COLUMNS = {  # of a recorded comparison: the heading in a document, by the name of the column in the file
    "program": "",
    "weights": "weights",
    "head": "head",
    "inputs": "inputs",
    "mb_per_token": "MB read a token",
    "tokens_per_s": "tokens a second",
    "prompt_tokens_per_s": "prompt of 512, tokens a second",
    "cache": "keys and values",
    "of_float32": "bytes, of float32",
    "nats": "nats added to a token",
    "divergence": "divergence, nats",
    "base": "base",
    "base_mb": "MB of the base",
    "trained": "trained parameters",
    "accuracy": "accuracy, %",
    "accuracies": "by seed",
    "points": "points to float",
}
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


def table(rows: list[dict]) -> str:
    """Return recorded rows as a table of Markdown; numbers stand right, and the largest speed of a column is bold."""
    names = list(rows[0])
    numbers = [name for name in names if not isinstance(rows[0][name], str)]
    best = {name: max(row[name] for row in rows) for name in numbers if name.endswith("_per_s")}

    def cell(name: str, value: object) -> str:
        text = f"{value:,.0f}" if name in best else str(value)
        return f"**{text}**" if value == best.get(name) else text

    lines = [
        [COLUMNS[name] for name in names],
        ["---:" if name in numbers else "---" for name in names],
        *([cell(name, row[name]) for name in names] for row in rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def with_tables(text: str) -> str:
    """Return the text of a document with every table that is made of a file."""

    def put(found: re.Match[str]) -> str:
        rows = json.loads((FIGURES.parent / found["file"]).read_text(encoding="utf-8"))["results"]
        return f"{found['file']} -->\n{table(rows)}"

    return TABLE.sub(put, text)


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
    for document in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = document.read_text(encoding="utf-8")
        if (new := with_tables(with_figures(text, known))) != text:
            document.write_text(new, encoding="utf-8")
            print(f"{document.relative_to(ROOT)}: figures changed")


if __name__ == "__main__":
    main()
