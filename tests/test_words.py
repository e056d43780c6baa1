"""Names that say nothing become fewer: bare ``told``, ``made``, ``given``, ``held``, ``kept``, ``found`` and ``what``.

``words.json`` records how many each room and crate has; ``python tests/test_words.py`` records lower counts. A variable is
better called by its noun: ``message``, ``match``, ``record``, ``layer``, ``label``.
"""

import ast
import json
import re
import warnings
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RECORD = Path(__file__).with_name("words.json")
WORDS = ("told", "made", "given", "held", "kept", "found", "what")

# Comments and string literals of Rust; an apostrophe may begin a lifetime, which has no end.
_NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|r(#*)".*?"\1|"(?:\\.|[^"\\])*"', re.DOTALL)
_BARE = re.compile(rf"(?<![.\w])(?:{'|'.join(WORDS)})(?!\w)")


def python_words(text: str) -> list[str]:
    """Parameters and assigned variables with such a name, one for each place that binds it."""
    return [
        name
        for node in ast.walk(ast.parse(text))
        if (name := node.arg if isinstance(node, ast.arg) else _stored(node)) in WORDS
    ]


def _stored(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else None


def rust_words(text: str) -> list[str]:
    """Every use of such a name that is no field, outside comments and texts."""
    return _BARE.findall(_NOT_CODE.sub('""', text))


def counts() -> dict[str, dict[str, int]]:
    """How many of the words each room of the package and each crate has."""
    rooms, crates = Counter[str](), Counter[str]()
    package = ROOT / "python" / "octavo"
    for file in package.rglob("*.py"):
        rooms[file.relative_to(package).parts[0]] += len(python_words(file.read_text(encoding="utf-8")))
    for file in (ROOT / "rust").glob("*/src/**/*.rs"):
        crates[file.relative_to(ROOT / "rust").parts[0]] += len(rust_words(file.read_text(encoding="utf-8")))
    return {"python": dict(sorted((+rooms).items())), "rust": dict(sorted((+crates).items()))}


@pytest.mark.parametrize("language", ["python", "rust"])
def test_bare_participles_become_no_more(language):
    present, recorded = counts()[language], json.loads(RECORD.read_text(encoding="utf-8"))[language]
    more = {room: (recorded.get(room, 0), count) for room, count in present.items() if count > recorded.get(room, 0)}
    assert not more, f"more variables are called {', '.join(WORDS)} than before; name them by a noun: {more}"
    if present != recorded:
        warnings.warn("fewer bare participles than recorded: python tests/test_words.py records it", stacklevel=1)


def test_only_bound_names_and_bare_identifiers_count():
    text = "def f(what, *, held=1):\n    made: int = g(found=1)\n    return [kept for kept in made.given]"
    assert sorted(python_words(text)) == ["held", "kept", "made", "what"]
    text = 'let made = self.held; // found\nfn f(what: &str) { g("told {}", what) } /* kept */'
    assert rust_words(text) == ["made", "what", "what"]


if __name__ == "__main__":
    RECORD.write_text(json.dumps(counts(), indent=2) + "\n", encoding="utf-8")
