"""The polynomial exercise: train a small model to expand ``(7-3*z)*(2*z+5)``, measure it, and ship it.

:class:`Engine` runs an exported model natively, without torch.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any

from octavo.late_binding import parts_on_demand

if _TYPE_CHECKING:
    from octavo.lab.polynomials.native_engine import Engine as Engine
    from octavo.lab.polynomials.native_engine import Summary as Summary

__all__ = ["Engine", "Summary"]

_part = parts_on_demand(__name__, __path__)


def __getattr__(name: str) -> Any:
    """Load a part, or the engine, when it is first asked for."""
    if name in __all__:
        return getattr(_part("native_engine"), name)
    return _part(name)
