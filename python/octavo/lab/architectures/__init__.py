"""Choosing models: a search builds points of a space, each once, as a sampler of Optuna proposes them.

``run_search`` measures the models of a ``Space``. Parts are imported when they are first asked for.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any

from octavo.late_binding import parts_on_demand

if _TYPE_CHECKING:
    from octavo.lab.architectures.config_fields import config_spec
    from octavo.lab.architectures.objectives import Objective
    from octavo.lab.architectures.samplers import Sampler
    from octavo.lab.architectures.search_loop import Build, Search, run_search
    from octavo.lab.architectures.space import Axis, Constraint, Space
    from octavo.lab.architectures.stopping import Stopping

_LAZY = {
    "Axis": "octavo.lab.architectures.space",
    "Build": "octavo.lab.architectures.search_loop",
    "Constraint": "octavo.lab.architectures.space",
    "Objective": "octavo.lab.architectures.objectives",
    "Sampler": "octavo.lab.architectures.samplers",
    "Search": "octavo.lab.architectures.search_loop",
    "Space": "octavo.lab.architectures.space",
    "Stopping": "octavo.lab.architectures.stopping",
    "config_spec": "octavo.lab.architectures.config_fields",
    "run_search": "octavo.lab.architectures.search_loop",
}

__all__ = [
    "Axis",
    "Build",
    "Constraint",
    "Objective",
    "Sampler",
    "Search",
    "Space",
    "Stopping",
    "config_spec",
    "run_search",
]

_part = parts_on_demand(__name__, __path__)


def __getattr__(name: str) -> Any:
    """Load what needs numpy, torch or optuna on first use."""
    if name in _LAZY:
        value = getattr(_import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    return _part(name)


def __dir__() -> list[str]:
    return __all__
