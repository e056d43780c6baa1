"""The content of code for a digest: names and versions of libraries, and the byte code of the user's code.

The content does not depend on paths of sources, line numbers, comments, addresses or the seed of hashes.
"""

from __future__ import annotations

import dis
import importlib.util
import sys
from collections.abc import Iterator
from functools import cache, lru_cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from types import CodeType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any

import torch

from octavo import __version__

# Members of classes that do not affect results, or that are derived from other members.
_IGNORED_MEMBERS = frozenset({
    "__module__", "__doc__", "__dict__", "__weakref__", "__qualname__", "__annotations__", "__annotate__",
    "__annotate_func__", "__annotations_cache__", "__static_attributes__", "__firstlineno__", "__match_args__",
    "__dataclass_fields__", "__dataclass_params__", "__orig_bases__", "__parameters__", "__type_params__",
    "__abstractmethods__", "_abc_impl", "__slotnames__",
})  # fmt: skip
_INSTALLED = ("site-packages", "dist-packages")


def versions() -> str:
    """Return the versions that every number depends on: Python's, PyTorch's, Octavo's."""
    python = ".".join(map(str, sys.version_info[:3]))
    return f"{sys.implementation.name} {python} torch {torch.__version__} octavo {__version__}"


def library_name(value: Any) -> str | None:
    """Return the identity of a library's class, function or module: its name, version and the digest of its file.

    None for the user's own objects, and for objects that cannot be imported by name, such as nested functions.
    """
    if isinstance(value, ModuleType):
        return _library(value.__name__)
    if (owner := getattr(value, "__objclass__", None)) is not None:  # a method of a builtin type
        owner_name = library_name(owner)
        return None if owner_name is None else f"{owner_name} {value.__name__}"
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        return None
    target: Any = sys.modules.get(module)
    for part in name.split("."):
        target = getattr(target, part, None)
    return _library(module) and f"{_library(module)} {name}" if target is value else None


def is_library(module: str) -> bool:
    """Whether a module belongs to Python, to Octavo or to an installed package; it need not be imported."""
    root = module.partition(".")[0]
    if root == "__main__":
        return False
    if root in sys.stdlib_module_names or root == "octavo":
        return True
    loaded = sys.modules.get(root)
    if loaded is None:
        try:
            spec = importlib.util.find_spec(root)
        except (ImportError, ValueError, AttributeError):
            return False
        return spec is not None and _is_installed(str(spec.origin))
    places = [getattr(loaded, "__file__", None), *(getattr(loaded, "__path__", None) or ())]
    return any(_is_installed(place) for place in places if isinstance(place, str))


@lru_cache(maxsize=4096)
def _is_installed(place: str) -> bool:
    return any(part in _INSTALLED for part in Path(place).parts)


def _library(module: str) -> str | None:
    """Return the name of a module of a library, its version and the digest of its source."""
    if not is_library(module):
        return None
    root = module.partition(".")[0]
    if root in sys.stdlib_module_names:
        return module
    file, version = (
        getattr(sys.modules.get(module), "__file__", None),
        getattr(sys.modules.get(root), "__version__", ""),
    )
    return f"{module} {version} {_source_digest(file) if isinstance(file, str) and file.endswith('.py') else ''}"


@cache
def _source_digest(file: str) -> str:
    """Return the SHA-256 of a library's source; it is cached, because the imported code stays the same."""
    try:
        return sha256(Path(file).read_bytes()).hexdigest()
    except OSError:  # a package in a zip file: its version stands for it
        return ""


def code_parts(code: CodeType) -> Iterator[Any]:
    """Yield the instructions, names, signature, constants and exception handlers of a code object, nested code too."""
    arguments = code.co_argcount + code.co_kwonlyargcount
    yield code.co_code
    yield (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    yield code.co_names
    yield code.co_varnames[:arguments]
    yield (code.co_freevars, code.co_cellvars)
    yield getattr(code, "co_exceptiontable", b"")
    yield code.co_consts


def globals_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of the globals that a function reads, nested code included.

    A global that is a module of the user yields the members that the code names. A module imported inside the function
    yields its source. Functions of libraries yield nothing: the library's version identifies them.
    """
    if is_library(str(function.__globals__.get("__name__", ""))):
        return
    read, imported, named = _names(function.__code__)
    for name in sorted(read):
        if name not in function.__globals__:
            continue
        value = function.__globals__[name]
        if isinstance(value, ModuleType) and library_name(value) is None:
            members = vars(value)
            for member in sorted(named & members.keys()):
                yield f"{name}.{member}", members[member]
        else:
            yield name, value
    for module in sorted(imported):
        yield f"import {module}", _source(module, str(function.__globals__.get("__package__") or ""))


def _names(code: CodeType) -> tuple[set[str], set[str], set[str]]:
    """Return the global names that a code reads, the modules that it imports, and all names in it."""
    read, imported, named = set[str](), set[str](), set(code.co_names)
    level = 0
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            read.add(step.argval)
        elif step.opname in ("LOAD_CONST", "LOAD_SMALL_INT") and type(step.argval) is int:
            level = step.argval  # of the import that may follow, behind the names
        elif step.opname == "IMPORT_NAME":
            imported.add("." * level + step.argval)
            level = 0
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            for whole, part in zip((read, imported, named), _names(inner), strict=True):
                whole |= part
    return read, imported, named


def _source(module: str, package: str) -> bytes | str | None:
    """Return the source of a user's module, the version of a library's module, or None if there is no such module.

    The module is not imported.
    """
    try:
        module = importlib.util.resolve_name(module, package)
        if is_library(module):
            return metadata.version(module.partition(".")[0])
        spec = importlib.util.find_spec(module)
        return None if spec is None or spec.origin is None else Path(spec.origin).read_bytes()
    except (ImportError, ValueError, AttributeError, OSError):  # or the distribution has another name than the module
        return None


def class_parts(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the bases and members of a class."""
    yield "bases", kind.__bases__
    yield "metaclass", type(kind)
    for name, value in sorted(vars(kind).items()):
        if name not in _IGNORED_MEMBERS and not isinstance(value, MemberDescriptorType):
            yield name, value
