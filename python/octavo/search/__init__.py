"""Choosing formats: whole models within a budget of bits, measured on the job they are for."""

from octavo.late_binding import parts_on_demand

__getattr__ = parts_on_demand(__name__, __path__)
