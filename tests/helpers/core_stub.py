"""What ``_core.pyi`` says of the core: its names, and which arguments of its functions are addresses."""

import ast
import functools
from pathlib import Path

import octavo

STUB = Path(octavo.__file__).with_name("_core.pyi")


@functools.cache
def _tree() -> ast.Module:
    return ast.parse(STUB.read_text(encoding="utf-8"))


def functions() -> dict[str, ast.FunctionDef]:
    """The functions of the core, by name."""
    return {node.name: node for node in _tree().body if isinstance(node, ast.FunctionDef)}


def names() -> set[str]:
    """Functions, classes and values of the core."""
    classes = {node.name for node in _tree().body if isinstance(node, ast.ClassDef)}
    return {*functions(), *classes, *(name for name, kind in _annotated().items() if kind != "TypeAlias")}


def listed() -> list[str]:
    """``__all__`` of the stub."""
    lists = (
        node for node in _tree().body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return ast.literal_eval(next(lists).value)


def address_positions(name: str) -> tuple[int, ...]:
    """Positions of the arguments that a function needs and that hold an address, alone or in a tuple."""
    return tuple(
        place
        for place, argument in enumerate(functions()[name].args.args)
        if "None" not in ast.unparse(argument.annotation) and _has_address(argument.annotation)
    )


def takes_addresses(name: str) -> bool:
    """Whether any argument of a function may hold an address."""
    return any(_has_address(argument.annotation) for argument in functions()[name].args.args)


def _annotated() -> dict[str, str]:
    return {node.target.id: ast.unparse(node.annotation) for node in _tree().body if isinstance(node, ast.AnnAssign)}


@functools.cache
def _aliases() -> dict[str, ast.expr]:
    """Types that the stub gives names, by name."""
    return {
        node.target.id: node.value
        for node in _tree().body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias"
    }


def _has_address(annotation: ast.expr) -> bool:
    inside = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
    return "_Address" in inside or any(_has_address(_aliases()[name]) for name in inside & _aliases().keys())
