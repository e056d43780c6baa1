"""Choosing formats: what each costs where, the best assignment for every budget, and whether the prediction holds.

``measure_sensitivity`` measures what groups of layers lose in formats, ``measure_latency`` what they take. ``allocate``
finds the assignment of least predicted loss for every budget, ``recipe_of`` makes a recipe of one. ``run_search``
chooses models: it builds points of a ``Space``, each once, as a sampler of Optuna proposes them. Parts are imported
when they are first asked for.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any

from octavo.late_binding import parts_on_demand

if _TYPE_CHECKING:
    from octavo.search.allocation import allocate
    from octavo.search.assignment_recipe import recipe_of
    from octavo.search.config_fields import config_spec
    from octavo.search.front import Front, Point
    from octavo.search.latency_table import LatencyTable
    from octavo.search.layer_sensitivity import Group, Sensitivity
    from octavo.search.measured_divergences import measure_sensitivity
    from octavo.search.measured_latencies import measure_latency
    from octavo.search.objectives import Objective
    from octavo.search.samplers import Sampler
    from octavo.search.search_loop import Build, Search, run_search
    from octavo.search.space import Axis, Constraint, Space
    from octavo.search.stopping import Stopping
    from octavo.search.tuning import Tuned, tune
    from octavo.search.verification import Pair, Verification, Verified, pair_terms, verify

_LAZY = {
    "Axis": "octavo.search.space",
    "Build": "octavo.search.search_loop",
    "Constraint": "octavo.search.space",
    "Front": "octavo.search.front",
    "Group": "octavo.search.layer_sensitivity",
    "LatencyTable": "octavo.search.latency_table",
    "Objective": "octavo.search.objectives",
    "Pair": "octavo.search.verification",
    "Point": "octavo.search.front",
    "Sampler": "octavo.search.samplers",
    "Search": "octavo.search.search_loop",
    "Sensitivity": "octavo.search.layer_sensitivity",
    "Space": "octavo.search.space",
    "Stopping": "octavo.search.stopping",
    "Tuned": "octavo.search.tuning",
    "Verification": "octavo.search.verification",
    "Verified": "octavo.search.verification",
    "allocate": "octavo.search.allocation",
    "config_spec": "octavo.search.config_fields",
    "measure_latency": "octavo.search.measured_latencies",
    "measure_sensitivity": "octavo.search.measured_divergences",
    "pair_terms": "octavo.search.verification",
    "recipe_of": "octavo.search.assignment_recipe",
    "run_search": "octavo.search.search_loop",
    "tune": "octavo.search.tuning",
    "verify": "octavo.search.verification",
}

__all__ = [
    "Axis",
    "Build",
    "Constraint",
    "Front",
    "Group",
    "LatencyTable",
    "Objective",
    "Pair",
    "Point",
    "Sampler",
    "Search",
    "Sensitivity",
    "Space",
    "Stopping",
    "Tuned",
    "Verification",
    "Verified",
    "allocate",
    "config_spec",
    "measure_latency",
    "measure_sensitivity",
    "pair_terms",
    "recipe_of",
    "run_search",
    "tune",
    "verify",
]

_part = parts_on_demand(__name__, __path__)


def __getattr__(name: str) -> Any:
    """Load what needs numpy or torch on first use."""
    if name in _LAZY:
        value = getattr(_import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    return _part(name)


def __dir__() -> list[str]:
    return __all__
