"""The polynomial exercise: train a small model to expand ``(7-3*z)*(2*z+5)``, measure it, and ship it."""

from octavo.late_binding import parts_on_demand

__getattr__ = parts_on_demand(__name__, __path__)
