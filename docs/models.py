"""Measures the architectures of the manual's page on models and writes its table: ``python docs/models.py``.

Each is quantized in one recipe, packed, saved and loaded, and run in each form; the table of architectures is that of
the tests, ``tests/helpers/architectures.py``, which hold the page to it. Two to five minutes.
"""

import re
import sys
import warnings
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "models.md"
TABLE = re.compile(r"(?<=<!-- architectures: transformers )(?P<version>[\d.]+) -->\n(?P<rows>(?:\|.*\n)*)")
HEAD = (
    "| architecture | parameters | reached, % | bits a parameter | stays float |\n| --- | ---: | ---: | ---: | --- |\n"
)


def line(row: Any) -> str:
    """Return a row of the table: names of parameters that stay float are those of their last part."""
    left = ", ".join(f"`{name}`" for name in row.left)
    return f"| {row.name} | {row.parameters:,} | {100 * row.covered:.1f} | {row.bits:.2f} | {left} |\n"


def table(families: Mapping[str, Mapping[str, Any]], rows: Mapping[str, Any]) -> str:
    """Return the table, with a heading row for each family."""
    parts = [
        f"| **{family}** | | | | |\n{''.join(line(rows[name]) for name in names)}" for family, names in families.items()
    ]
    return HEAD + "".join(parts)


def recorded(text: str) -> tuple[str, dict[str, str]]:
    """Return the version of transformers that a page's table is of, and its lines by the name of the architecture."""
    found = TABLE.search(text)
    assert found is not None  # the page has the table
    lines = found["rows"].splitlines(keepends=True)
    return found["version"], {one.split("|")[1].strip(): one for one in lines}


def main() -> None:
    """Measure all and write the page."""
    sys.path.insert(0, str(ROOT / "tests"))
    from helpers import architectures

    warnings.simplefilter("ignore")
    rows = {}
    for name in architectures.ARCHITECTURES:
        rows[name] = architectures.measure(name)
        print(rows[name], flush=True)
    text = PAGE.read_text(encoding="utf-8")
    made = f"{version('transformers')} -->\n{table(architectures.FAMILIES, rows)}"
    PAGE.write_text(TABLE.sub(lambda _: made, text), encoding="utf-8")
    least = min(rows.values(), key=lambda row: row.covered)
    print(f"{len(rows)} architectures; least reached {least.name}, {least.covered:.1%}; largest gap", end=" ")
    print(f"{max(row.gap for row in rows.values()):.1e}; most bytes {max(row.excess for row in rows.values()):.3f}")


if __name__ == "__main__":
    main()
