"""Sentences: the text encoder that is compressed, and classifiers trained on labelled ones."""

from octavo.late_binding import parts_on_demand

__getattr__ = parts_on_demand(__name__, __path__)
