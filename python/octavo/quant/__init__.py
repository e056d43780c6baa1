"""Quantising and packing models."""

from importlib import import_module as _import_module

_LAZY = {
    "FormatSchedule": "octavo.quant.schedule",
    "freeze_scales": "octavo.quant.model",
    "prepare_model": "octavo.quant.model",
    "quantize_model": "octavo.quant.model",
}

__all__ = ["FormatSchedule", "freeze_scales", "prepare_model", "quantize_model"]


def __getattr__(name: str) -> object:
    """Load what needs torch on first use; ``octavo.quant.spec`` is a leaf that the layers import."""
    if name in _LAZY:
        value = getattr(_import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'octavo.quant' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
