"""Language models as whole jobs: a run from a text file to a model folder, and the bench of techniques."""

from octavo.late_binding import parts_on_demand

__getattr__ = parts_on_demand(__name__, __path__)
