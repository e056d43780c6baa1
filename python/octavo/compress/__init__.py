"""The main job: a model is compressed within a budget, with the evidence; models as commands name them."""

from octavo.late_binding import parts_on_demand

__getattr__ = parts_on_demand(__name__, __path__)
