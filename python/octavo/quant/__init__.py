"""Quantizing and packing models."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any

from octavo.late_binding import late as _late

if _TYPE_CHECKING:
    from octavo.quant.algorithms.bias import BiasCorrections, correct_bias_model
    from octavo.quant.algorithms.gptq import gptq
    from octavo.quant.algorithms.hqq import hqq
    from octavo.quant.algorithms.smooth import Smoothing, smooth_model
    from octavo.quant.algorithms.solution import Solution
    from octavo.quant.apply_recipe import freeze_scales, prepare_model, quantize_model
    from octavo.quant.coverage_report import Coverage, coverage
    from octavo.quant.format_schedule import FormatSchedule
    from octavo.quant.pack_layers import pack_model

_LAZY = {
    "BiasCorrections": "octavo.quant.algorithms.bias",
    "Coverage": "octavo.quant.coverage_report",
    "FormatSchedule": "octavo.quant.format_schedule",
    "Smoothing": "octavo.quant.algorithms.smooth",
    "Solution": "octavo.quant.algorithms.solution",
    "correct_bias_model": "octavo.quant.algorithms.bias",
    "coverage": "octavo.quant.coverage_report",
    "freeze_scales": "octavo.quant.apply_recipe",
    "gptq": "octavo.quant.algorithms.gptq",
    "hqq": "octavo.quant.algorithms.hqq",
    "pack_model": "octavo.quant.pack_layers",
    "prepare_model": "octavo.quant.apply_recipe",
    "quantize_model": "octavo.quant.apply_recipe",
    "smooth_model": "octavo.quant.algorithms.smooth",
}

__all__ = [
    "BiasCorrections",
    "Coverage",
    "FormatSchedule",
    "Smoothing",
    "Solution",
    "correct_bias_model",
    "coverage",
    "freeze_scales",
    "gptq",
    "hqq",
    "load_model",
    "pack_model",
    "prepare_model",
    "quantize_model",
    "save_model",
    "smooth_model",
]


def __getattr__(name: str) -> Any:
    """Load what needs torch on first use; ``octavo.recipe.spec`` is a leaf that the layers import."""
    if name in _LAZY:
        value = getattr(_import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    if name in ("load_model", "save_model"):
        return _late(name)
    raise AttributeError(f"module 'octavo.quant' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
