"""The order of rooms: a room imports those above it in ORDER, never those below - lazy imports and types included."""

import ast
from collections import defaultdict
from pathlib import Path

import octavo

PACKAGE = Path(octavo.__file__).parent

ORDER = [
    "errors",
    "settings",
    "_interpreter",
    "_memory",
    "_reading",
    "_streams",
    "locks",
    "files",
    "folders",
    "children",
    "display",
    "report",
    "formats",
    "tensor",
    "container",
    "recipe",
    "ops",
    "cuda",
    "nn",
    "data",
    "models",
    "train",
    "quant",
    "lora",
    "folder",
    "engine",
    "search",
    "systems",
    "studies",
    "compat",
    "cli",
]

# Imports against the order that are still there, with what would end them.
KNOWN = {
    ("tensor", "container"): "PackedTensor is written by its own method",
    ("tensor", "ops"): "PackedTensor is decoded by its own method",
    ("quant", "folder"): "save_pretrained of a quantized model writes our folder",
    ("engine", "systems"): "the engine on a GPU runs the one architecture that systems.polynomials exports",
}


def rooms_imported(tree: ast.AST) -> set[str]:
    """Return the rooms of ``octavo`` that a file names in its imports; ``""`` is the package itself."""
    found = set()
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = (
                [f"{node.module}.{alias.name}" for alias in node.names] if node.module == "octavo" else [node.module]
            )
        for name in names:
            first, _, rest = name.partition(".")
            if first == "octavo":
                found.add(rest.partition(".")[0])
    return found


def edges() -> dict[tuple[str, str], list[str]]:
    """Return which rooms import which, with the files that do."""
    found = defaultdict(list)
    for file in sorted(PACKAGE.rglob("*.py")):
        path = file.relative_to(PACKAGE)
        room = path.parts[0].removesuffix(".py")
        if room not in ("__init__", "__main__"):
            for other in rooms_imported(ast.parse(file.read_text())) - {room, "_core", "__version__"}:
                found[room, other].append(str(path))
    return found


def test_every_room_has_its_place():
    rooms = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert rooms - {"__init__", "__main__", "__pycache__"} == set(ORDER)


def test_rooms_import_only_what_stands_above_them():
    place = {room: number for number, room in enumerate(ORDER)}
    wrong = {
        edge: files
        for edge, files in edges().items()
        if edge[1] and edge not in KNOWN and place[edge[1]] > place[edge[0]]
    }
    assert not wrong


def test_only_the_highest_rooms_use_the_package_as_its_users_do():
    lowest = ORDER.index("systems")
    assert {room for room, other in edges() if not other and ORDER.index(room) < lowest} <= {"train", "search"}


def test_what_is_known_is_still_there():
    assert set(KNOWN) <= set(edges())


def test_a_circle_is_seen():
    tree = ast.parse(
        "def f():\n    from octavo.cli import main\nimport octavo.nn.quant_layer\nfrom octavo import quant, Format"
    )
    assert rooms_imported(tree) == {"cli", "nn", "quant", "Format"}
