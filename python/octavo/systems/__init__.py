"""Whole jobs on one subject, each with its data, runs and measures."""

from octavo.late_binding import parts_on_demand

__getattr__ = parts_on_demand(__name__, __path__)
