"""Pages and pictures from plain data: the report of a compression, comparisons of reports, plots.

``write_report`` writes ``report.json`` and its page, ``read_report`` reads and checks it, and
``compare_reports.compare_reports`` compares several. Parts are imported when they are first asked for.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any

from octavo.late_binding import parts_on_demand

if _TYPE_CHECKING:
    from octavo.report.compression_report import check_report, read_report, write_report

_LAZY = {
    "check_report": "octavo.report.compression_report",
    "read_report": "octavo.report.compression_report",
    "write_report": "octavo.report.compression_report",
}

__all__ = ["check_report", "read_report", "write_report"]

_part = parts_on_demand(__name__, __path__)


def __getattr__(name: str) -> Any:
    """Load a function, or a part, when it is first asked for."""
    if name in _LAZY:
        value = getattr(_import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    return _part(name)


def __dir__() -> list[str]:
    return __all__
