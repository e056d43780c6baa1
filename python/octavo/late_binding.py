"""Functions of rooms further down, for the rooms above them: asked for by name, loaded at the first call.

A room imports the rooms above it alone. Where one hands work down - a packed tensor decodes itself through
:mod:`octavo.ops`, a recipe asks :mod:`octavo.nn` for the kinds of layers - it names the function here. The
package's own ``__init__``, which knows all rooms, says in which module each name stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

_modules: dict[str, str] = {}
_loaded: dict[str, Any] = {}


def parts_on_demand(package: str, path: Iterable[str]) -> Callable[[str], ModuleType]:
    """Return the ``__getattr__`` of a package: a part of it is imported when it is first asked for."""
    parts = {module.name for module in iter_modules(path)}

    def part(name: str) -> ModuleType:
        if name not in parts:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return import_module(f"{package}.{name}")

    return part


def bind(modules: Mapping[str, str]) -> None:
    """Say where each name stands: its module, or ``module:function`` where the function has another name there."""
    _modules.update(modules)


def bound(prefix: str) -> list[str]:
    """Return the names that begin with ``prefix``."""
    return [name for name in _modules if name.startswith(prefix)]


def late(name: str) -> Any:
    """Return the function of a name, whose module is loaded if it is not. Raises KeyError for a name not bound."""
    _load(name)
    return _loaded[name]


def _load(name: str) -> None:
    if name not in _loaded:
        module, _, function = _modules[name].partition(":")
        _loaded[name] = getattr(import_module(module), function or name)


# torch.compile runs it while it traces, as it does an import statement; torch is not loaded to say so.
_load._dynamo_marked_constant = True  # type: ignore[attr-defined] # an attribute of torch's own
