"""Search for formats: loss and cost per group of layers, the best assignment for every budget, and its verification.

``measure_sensitivity`` measures the loss of groups of layers in each format, ``measure_latency`` their seconds.
``allocate`` finds the assignment of least predicted loss for every budget. ``to_recipe`` turns an assignment into a
recipe. ``verify`` measures assignments, ``tune`` improves the codes of one. Names are imported on first use.
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
    """Import a public name on first use, because most need numpy or torch."""
    if name in _LAZY:
        value = getattr(_import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    return _part(name)


def __dir__() -> list[str]:
    return __all__
