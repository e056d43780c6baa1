"""Networks, and the functions that give their configurations."""

from octavo.late_binding import parts_on_demand

SIZES = "octavo_sizes"
"""Key of a configuration under which the sizes of a network stand whose heads or neurons were taken out."""

__getattr__ = parts_on_demand(__name__, __path__)
