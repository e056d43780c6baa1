"""Functions of rooms further down, for the rooms above them: asked for by name, loaded at the first call.

A room imports the rooms above it alone. Where one hands work down - a packed tensor decodes itself through
:mod:`octavo.ops`, a recipe asks :mod:`octavo.nn` for the kinds of layers - it names the function here. The
package's own ``__init__``, which knows all rooms, says in which module each name stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

_modules: dict[str, str] = {}
_loaded: dict[str, Any] = {}


def bind(modules: Mapping[str, str]) -> None:
    """Say where each name stands: its module, or ``module:function`` where the function has another name there."""
    _modules.update(modules)


def late(name: str) -> Any:
    """Return the function of a name, whose module is loaded if it is not. Raises KeyError for a name not bound."""
    _load(name)
    return _loaded[name]


def _load(name: str) -> None:
    if name not in _loaded:
        module, _, function = _modules[name].partition(":")
        _loaded[name] = getattr(import_module(module), function or name)


# torch.compile runs it while it traces, as it does an import statement; torch is not loaded to say so.
_load._dynamo_marked_constant = True  # type: ignore[attr-defined]
