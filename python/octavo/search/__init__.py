"""Choosing formats: what each costs where, the best assignment for every budget, and whether the prediction holds.

``measure_sensitivity`` measures what groups of layers lose in formats, ``measure_latency`` what they take. ``allocate``
finds the assignment of least predicted loss for every budget, ``to_recipe`` makes a recipe of one. Parts are imported
when they are first asked for.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any

from octavo.late_binding import parts_on_demand

if _TYPE_CHECKING:
    from octavo.search.allocation import allocate
    from octavo.search.assignment_recipe import to_recipe
    from octavo.search.latency_table import LatencyTable
    from octavo.search.layer_sensitivity import Group, Sensitivity
    from octavo.search.measured_divergences import measure_sensitivity
    from octavo.search.measured_latencies import measure_latency
    from octavo.search.pareto_front import Front, Point
    from octavo.search.refine import Tuned, tune
    from octavo.search.verification import Pair, Verification, Verified, interaction_terms, verify

_LAZY = {
    "Front": "octavo.search.pareto_front",
    "Group": "octavo.search.layer_sensitivity",
    "LatencyTable": "octavo.search.latency_table",
    "Pair": "octavo.search.verification",
    "Point": "octavo.search.pareto_front",
    "Sensitivity": "octavo.search.layer_sensitivity",
    "Tuned": "octavo.search.refine",
    "Verification": "octavo.search.verification",
    "Verified": "octavo.search.verification",
    "allocate": "octavo.search.allocation",
    "measure_latency": "octavo.search.measured_latencies",
    "measure_sensitivity": "octavo.search.measured_divergences",
    "interaction_terms": "octavo.search.verification",
    "to_recipe": "octavo.search.assignment_recipe",
    "tune": "octavo.search.refine",
    "verify": "octavo.search.verification",
}

__all__ = [
    "Front",
    "Group",
    "LatencyTable",
    "Pair",
    "Point",
    "Sensitivity",
    "Tuned",
    "Verification",
    "Verified",
    "allocate",
    "interaction_terms",
    "measure_latency",
    "measure_sensitivity",
    "to_recipe",
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
