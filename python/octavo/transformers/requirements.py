"""What the plug-in needs of transformers, checked once, when it is imported."""

from __future__ import annotations

from octavo.errors import ModelError

LEAST = "5.24"
_INSTALL = 'pip install -U "octavo[transformers]"'

try:
    import transformers
except ImportError:
    raise ModelError(f"octavo.transformers needs transformers {LEAST} or later; {_INSTALL}") from None
try:
    from transformers.core_model_loading import ConversionOps as ConversionOps
    from transformers.quantizers import register_quantizer as register_quantizer
except ImportError:
    raise ModelError(
        f"octavo.transformers needs transformers {LEAST} or later, and {transformers.__version__} is installed; "
        f"{_INSTALL}"
    ) from None
