"""Layers over rounded operands: simulated, trainable, with the parameters of the layers they replace.

::

    plan = LayerPlan(weight=Spec(Format("mxint4")), input=Spec(Format("mxint8")))
    layer = octavo.nn.QuantLinear.from_linear(linear, plan)

:func:`octavo.quantize_model` does it to a whole model, with calibrated scales.
"""

from importlib import import_module
from pkgutil import iter_modules

from octavo.nn import attention, registry
from octavo.nn.attention import QuantAttention
from octavo.nn.conv import PackedConv1d, PackedConv2d, PackedConv3d, QuantConv1d, QuantConv2d, QuantConv3d
from octavo.nn.conv_transposed import (
    PackedConvTranspose1d,
    PackedConvTranspose2d,
    PackedConvTranspose3d,
    QuantConvTranspose1d,
    QuantConvTranspose2d,
    QuantConvTranspose3d,
)
from octavo.nn.direct_weight_access import rounded_weights
from octavo.nn.embedding import PackedEmbedding, QuantEmbedding
from octavo.nn.embedding_bag import PackedEmbeddingBag, QuantEmbeddingBag
from octavo.nn.int32_bias import Int32Bias
from octavo.nn.linear import PackedLinear, QuantLinear, QuantTransposedLinear
from octavo.nn.matmul import QuantMatmul, quantized_matmul
from octavo.nn.packed_layer import PackedLayer
from octavo.nn.quant_layer import QuantLayer
from octavo.nn.quantizer import Quantizer

__all__ = [
    "Int32Bias",
    "PackedConv1d",
    "PackedConv2d",
    "PackedConv3d",
    "PackedConvTranspose1d",
    "PackedConvTranspose2d",
    "PackedConvTranspose3d",
    "PackedEmbedding",
    "PackedEmbeddingBag",
    "PackedLayer",
    "PackedLinear",
    "QuantAttention",
    "QuantConv1d",
    "QuantConv2d",
    "QuantConv3d",
    "QuantConvTranspose1d",
    "QuantConvTranspose2d",
    "QuantConvTranspose3d",
    "QuantEmbedding",
    "QuantEmbeddingBag",
    "QuantLayer",
    "QuantLinear",
    "QuantMatmul",
    "QuantTransposedLinear",
    "Quantizer",
    "attention",
    "quantized_matmul",
    "rounded_weights",
]

for _file in iter_modules(__path__):  # a file of this folder that registers a layer needs no line here
    import_module(f"{__name__}.{_file.name}")


def __getattr__(name: str) -> type:
    """Return a registered class that has no line above."""
    if found := registry.class_named(name):
        return found
    raise AttributeError(f"module 'octavo.nn' has no attribute {name!r}")
