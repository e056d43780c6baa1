"""The order of rooms: a room imports those above it in ORDER, never those below - lazy imports and types included.

What a room hands to those below it goes by name through ``octavo.late_binding``, which the package alone binds.
"""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import octavo
import octavo.lab  # it binds a name of its own
from octavo import late_binding

PACKAGE = Path(octavo.__file__).parent

ORDER = [
    "errors",
    "settings",
    "late_binding",
    "_interpreter",
    "storage",
    "display",
    "report",
    "tensors",
    "recipe",
    "ops",
    "linear",
    "gemm",
    "cuda",
    "nn",
    "data",
    "train",
    "graph",
    "quant",
    "lora",
    "prune",
    "model_folder",
    "engine",
    "search",
    "compress",
    "interchange",
    "transformers",
    "peft",
    "lab",
    "cli",
]


def module_of(path: Path) -> str:
    """Return the dotted name of a file of the package."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imported(tree: ast.AST) -> set[str]:
    """Return the modules of ``octavo`` that a file names: in imports, lazy ones and those of types too, and in texts.

    ``octavo.__version__`` and the core are below everything, and no modules of the package.
    """
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = {f"{node.module}.{alias.name}" for alias in node.names} - {"octavo._core", "octavo.__version__"}
            found |= {name if name in MODULES else node.module for name in names}
        elif isinstance(node, ast.Constant) and node.value in MODULES and node.value != "octavo":
            found.add(node.value)
    return {name for name in found if name.partition(".")[0] == "octavo" and name != "octavo._core"}


def room_of(module: str) -> str:
    """Return the room of a module, ``""`` of the package itself."""
    return [*module.split("."), ""][1]


@cache
def imports() -> dict[str, set[str]]:
    """Return which modules each module imports."""
    return {module: imported(ast.parse(path.read_text())) - {module} for module, path in MODULES.items()}


USERS = {"octavo", "octavo.__main__"}  # the package's own files know every room


def edges() -> dict[tuple[str, str], list[str]]:
    """Return which rooms import which, with the files that do."""
    found = defaultdict(list)
    for module, others in imports().items():
        if module not in USERS:
            for other in others:
                if room_of(other) != room_of(module):
                    found[room_of(module), room_of(other)].append(module)
    return found


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the sets of nodes that reach each other (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        path.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
            if other in path:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            group = path[path.index(node) :]
            del path[path.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def test_every_room_has_its_place():
    rooms = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert rooms - {"__init__", "__main__", "__pycache__"} == set(ORDER)


def test_rooms_import_only_what_stands_above_them():
    place = {room: number for number, room in enumerate(ORDER)}
    assert not {edge: files for edge, files in edges().items() if edge[1] and place[edge[1]] > place[edge[0]]}


def test_only_the_command_line_imports_the_laboratory():
    """What is done to a user's model needs none of ours."""
    assert not {edge: files for edge, files in edges().items() if edge[1] == "lab" and edge[0] != "cli"}


def test_only_the_highest_rooms_use_the_package_as_its_users_do():
    lowest = ORDER.index("compress")
    assert not {edge: files for edge, files in edges().items() if not edge[1] and ORDER.index(edge[0]) < lowest}


def test_no_circle_between_files_but_a_package_and_its_own_parts():
    own = {
        module: {other for other in others - USERS if not module.startswith(f"{other}.")}
        for module, others in imports().items()
        if module not in USERS
    }
    assert not circles(own)


def test_only_the_package_itself_binds_late():
    """``late_binding`` turns an import around; bound in one place it stays a table, everywhere it would be a knot."""
    bound = {
        module for module, path in MODULES.items() if re.search(r"late_binding\.bind\(|import bind\b", path.read_text())
    }
    assert bound == {"octavo", "octavo.lab"}


def test_every_late_name_is_there():
    """A name that no module has would be found at its first call, by a user."""
    for name in late_binding._modules:
        assert callable(late_binding.late(name)), name
    asked = {name for path in MODULES.values() for name in re.findall(r'\blate\("(\w+)"\)', path.read_text())}
    assert asked and asked <= set(late_binding._modules)


def test_a_circle_is_seen():
    tree = ast.parse(
        "def f():\n    from octavo.cli.pack import run\nimport octavo.nn.linear\nfrom octavo import quant, Format\n"
        "import_module('octavo.model_folder.save_load')"
    )
    assert imported(tree) == {
        "octavo.cli.pack", "octavo.nn.linear", "octavo.quant", "octavo", "octavo.model_folder.save_load"
    }  # fmt: skip
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]


def test_names_of_files_mean_one_thing():
    """A file name in two rooms is one thing seen from both: a command and its work, a layer and its product, a product and its public name."""
    rooms = defaultdict(set)
    for path in MODULES.values():
        rooms[path.name].add(path.relative_to(PACKAGE).parts[0].removesuffix(".py"))
    twice = {name for name, places in rooms.items() if len(places) > 1 and name != "__init__.py"}
    assert twice == {"convert.py", "formats.py", "gemm.py", "linear.py", "recipe.py"}
