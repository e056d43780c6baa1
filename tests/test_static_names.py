"""Names that load on first use have types: a checker and an editor see what the program will get."""

import ast
from pathlib import Path

import octavo
import octavo.quant
import pytest

ROOT = Path(octavo.__file__).parent


def imported_for_types(path):
    """The names that a module imports where types are checked."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for part in node.body:
                found |= {alias.asname or alias.name for alias in part.names}
    return found


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (octavo, {*octavo._LAZY, *octavo._MODULES}),
        (octavo.quant, set(octavo.quant._LAZY)),
    ],
    ids=["octavo", "octavo.quant"],
)
def test_every_lazy_name_has_a_type(module, names):
    assert imported_for_types(Path(module.__file__)) == names
    for name in names:
        assert getattr(module, name) is not None
