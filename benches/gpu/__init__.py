"""Parts of ``benches/gpu.py``. Figures are plain dicts: ``kernel`` and what it ran on, ``us``, ratios, ``correct``.

:mod:`gpu.bars`: promises, and how figures are held against them; pure. :mod:`gpu.timing`: clocks and yardsticks.
:mod:`gpu.codecs`, :mod:`gpu.products`, :mod:`gpu.calls` and :mod:`gpu.models`: what is measured. :mod:`gpu.report`:
tables and the picture; pure.
"""
