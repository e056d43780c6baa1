"""A linter for quantised checkpoints: ``octavo check``.

:func:`~octavo.interchange.check.run_check.check_path` runs it. :mod:`~octavo.interchange.check.source` opens files,
:mod:`~octavo.interchange.check.stored_layers` sorts tensors into layers, and families of rules judge them:
``index_rules``, ``shape_rules``, ``config_rules``, ``scale_rules``, ``ggml_scale_rules``, ``factor_rules``,
``code_rules`` and, with the original, ``base_rules``.
"""

from octavo.late_binding import parts_on_demand

__getattr__ = parts_on_demand(__name__, __path__)
