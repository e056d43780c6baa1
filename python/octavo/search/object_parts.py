"""Parts of an object for a digest: attributes, slots, hooks, closures, and its pickled state."""

from __future__ import annotations

import copyreg
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache, partial
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import nn

from octavo.search.code_content import class_parts, code_parts, globals_of, is_library

#: A part of an object: the suffix of its path, and its value. Names that matter are parts of their own.
Part = tuple[str, Any]
_HEAP = 1 << 9  # flag of classes that are created at run time
_CACHED = type(lru_cache(len))
CODE = (
    CodeType, FunctionType, MethodType, BuiltinFunctionType, CellType, ModuleType, type, partial, property,
    staticmethod, classmethod, _CACHED,
)  # fmt: skip
"""Types of code: functions, classes, modules and wrappers of functions."""
# Attributes in which transformers notes where a model came from and how it was loaded.
NOTES = frozenset({
    "_name_or_path", "name_or_path", "_commit_hash", "_is_hf_initialized", "warnings_issued", "transformers_version",
    "_original_object_hash",
})  # fmt: skip


def object_parts(value: Any) -> list[Part]:
    """Return the class of an object, its attributes, and its pickled state if a library defines one.

    Raises the exceptions of pickling, such as a TypeError for a generator.
    """
    kind = type(value)
    children = [(" class", kind), *_builtin_part(value)]
    reducer = _reducer(kind)
    if kind not in copyreg.dispatch_table and (reducer is None or not is_library(reducer.__module__)):
        if reducer is None:
            object.__reduce_ex__(value, 4)  # raises for objects with content outside their attributes
        return [*children, *attribute_parts(value)]
    reduced: Any = copyreg.dispatch_table[kind](value) if kind in copyreg.dispatch_table else value.__reduce_ex__(4)
    if isinstance(reduced, str):
        return [*children, (" name", reduced)]
    function, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    if not is_library(kind.__module__) and not isinstance(value, nn.Module):
        children += attribute_parts(value)
    children += [(" made by", function), (" of", arguments), (" state", state)]
    return [*children, (" items", items and list(items)), (" pairs", pairs and list(pairs))]


def _builtin_part(value: Any) -> Iterator[Part]:
    """Yield the content of subclasses of builtin types."""
    if isinstance(value, dict):
        yield " content", dict(dict.items(value))
        return
    kinds: tuple[Any, ...] = (list, tuple, set, frozenset, str, bytes, int, float, complex)
    for kind in kinds:
        if isinstance(value, kind):
            yield " content", kind(value)
            return


def code_object(value: Any) -> tuple[str, bytes, Iterable[Part] | None]:
    """Return the kind of a ``CODE`` object, its content as bytes, and its parts, or None for no parts."""
    if isinstance(value, CodeType):
        return "code", b"", ((" code", part) for part in code_parts(value))
    if isinstance(value, FunctionType):
        return "function", b"", _function_parts(value)
    if isinstance(value, MethodType):
        return "method", b"", [(" function", value.__func__), (" object", value.__self__)]
    if isinstance(value, BuiltinFunctionType):
        return "builtin", value.__name__.encode(), [(" object", value.__self__)]
    if isinstance(value, partial):
        parts = [(" function", value.func), (" arguments", value.args), (" keywords", value.keywords)]
        return "partial", b"", [*parts, *attribute_parts(value)]
    if isinstance(value, type):
        # Builtin classes, such as those of iterators, are identified by name alone.
        members = ((f".{name}", member) for name, member in class_parts(value)) if value.__flags__ & _HEAP else None
        return "class", value.__qualname__.encode(), members
    if isinstance(value, property):
        return "property", b"", [(" get", value.fget), (" set", value.fset), (" delete", value.fdel)]
    if isinstance(value, staticmethod | classmethod | _CACHED):
        return type(value).__name__, b"", [(" function", value.__wrapped__)]
    if isinstance(value, CellType):
        return ("cell", b"", [(" content", value.cell_contents)]) if _is_filled(value) else ("cell", b"empty", None)
    assert isinstance(value, ModuleType)  # a user's module that an object refers to: all of its members count
    named = [(name, vars(value)[name]) for name in sorted(vars(value)) if not name.startswith("__")]
    return "python module", b"", ((f".{name}", one) for name, one in named)


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _function_parts(function: FunctionType) -> Iterator[Part]:
    yield " code", function.__code__
    yield " defaults", function.__defaults__
    yield " keyword defaults", function.__kwdefaults__
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield f" closure '{name}'", cell
    for name, value in globals_of(function):
        yield " global", name
        yield f" global '{name}'", value
    for name, value in sorted(vars(function).items()):
        yield " attribute", name
        yield f".{name}", value


def attribute_parts(value: Any) -> Iterator[Part]:
    """Yield the attributes of an object by name, including slots."""
    kind = type(value)
    for name, one in sorted(getattr(value, "__dict__", {}).items(), key=lambda pair: str(pair[0])):
        if not _is_note(kind, str(name)):
            yield " attribute", name
            yield f".{name}", one
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            inner = f"_{base.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name
            if inner not in ("__dict__", "__weakref__") and hasattr(value, inner):
                yield " attribute", name
                yield f".{name}", getattr(value, inner)


def module_parts(module: nn.Module) -> Iterator[Part]:
    """Yield the class, attributes, parameters, buffers and hooks of a module of torch, and the modules inside it.

    The order of modules counts, because it is the order of execution in an ``nn.Sequential``. Hooks are identified by
    position, because torch numbers them globally.
    """
    attributes = vars(module)
    hooks = {name: table for name, table in attributes.items() if "_hooks" in name and isinstance(table, dict)}
    yield " class", type(module)
    for name, value in sorted(attributes.items()):
        if name in hooks or name in ("_parameters", "_buffers", "_modules") or _is_note(type(module), name):
            continue
        yield " attribute", name
        yield f".{name}", value
    for name, table in sorted(hooks.items()):
        if not table:
            continue
        order = list(attributes.get(name.partition("_with_kwargs")[0].partition("_always_called")[0], table))
        yield " hooks", name
        for number, hook in table.items():
            yield " place", order.index(number) if number in order else -1
            yield f" hook of {name}", hook
    for name, tensor in (*sorted(module._parameters.items()), *sorted(module._buffers.items())):
        yield " tensor", name
        yield f".{name}", tensor
    for name, inner in module._modules.items():
        yield " module", name
        yield f".{name}", inner


def _is_note(kind: type, name: str) -> bool:
    """Whether an attribute is a note of transformers, or a cached property of a library's class."""
    if isinstance(getattr(kind, name, None), cached_property):
        return is_library(kind.__module__)
    return name in NOTES and any(base.__module__.partition(".")[0] == "transformers" for base in kind.__mro__)


def _reducer(kind: type) -> type | None:
    """Return the class that defines how objects of a kind are pickled, None for the default of ``object``."""
    names = ("__reduce_ex__", "__reduce__", "__getstate__")
    return next(
        (base for base in kind.__mro__ if base is not object and any(name in vars(base) for name in names)), None
    )


def is_traced(kind: type) -> bool:
    """Whether a library defines how modules of a kind are pickled, as torch does for traced modules."""
    names = {"__reduce_ex__", "__reduce__"}
    base = next(base for base in kind.__mro__ if names & vars(base).keys())
    return base is not object and is_library(base.__module__)
