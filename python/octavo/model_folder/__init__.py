"""The model folder: models written and read, checkpoints of transformers converted, without pickle or a dense copy."""

from octavo.late_binding import parts_on_demand

__getattr__ = parts_on_demand(__name__, __path__)
