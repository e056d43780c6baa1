"""Octavo: number formats for PyTorch models - choose, train, pack to real bytes, and run, bit-exact everywhere.

Importing this package loads neither torch nor numpy; they load when a tensor is first touched.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

from octavo import settings as _settings
from octavo._core import __version__
from octavo.errors import (
    CalibrationError,
    ContainerError,
    DataError,
    DTypeError,
    FormatError,
    InternalError,
    NonFiniteError,
    OctavoError,
    SettingError,
    ShapeError,
)
from octavo.formats import Format, formats

if _TYPE_CHECKING:
    from octavo.container import inspect, load, save
    from octavo.engine import Engine
    from octavo.ops import decode, encode, quantize
    from octavo.quant.model import quantize_model
    from octavo.quant.recipe import Recipe, Rule
    from octavo.tensor import PackedTensor

_LAZY = {
    "Engine": "octavo.engine",
    "PackedTensor": "octavo.tensor",
    "Recipe": "octavo.quant.recipe",
    "Rule": "octavo.quant.recipe",
    "decode": "octavo.ops",
    "encode": "octavo.ops",
    "inspect": "octavo.container",
    "load": "octavo.container",
    "quantize": "octavo.ops",
    "quantize_model": "octavo.quant.model",
    "save": "octavo.container",
}

__all__ = [
    "CalibrationError",
    "ContainerError",
    "DTypeError",
    "DataError",
    "Engine",
    "Format",
    "FormatError",
    "InternalError",
    "NonFiniteError",
    "OctavoError",
    "PackedTensor",
    "Recipe",
    "Rule",
    "SettingError",
    "ShapeError",
    "__version__",
    "decode",
    "encode",
    "formats",
    "inspect",
    "load",
    "quantize",
    "quantize_model",
    "save",
]

_settings.apply()


def __getattr__(name: str) -> object:
    """Load what needs torch on first use."""
    if name in _LAZY:
        value = getattr(_import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'octavo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
