"""Reproductions of other libraries' number formats, for comparison and for importing old settings only.

Nothing else in octavo imports this package. Source: FORMATS.md section 7.
"""

from octavo.late_binding import parts_on_demand

__getattr__ = parts_on_demand(__name__, __path__)
