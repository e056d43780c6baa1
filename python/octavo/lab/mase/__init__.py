"""Plain-torch reproductions of MASE's quantizers, quirks included.

Every function takes float tensors on any device and returns *dequantized* values, as MASE does. They reproduce
DeepWok/mase 6ff398cf on recorded inputs (../shared/vectors/mase) and exist to compare with old numbers and to import
old settings: they disagree with octavo's own formats on purpose (FORMATS.md, section 6). Exponents come from a rounded
float32 `log2`, so that results within a few ulp of a power of two may depend on the torch build, as they do in MASE.

Gradients are MASE's too: the identity, never clipped, unless a function says otherwise.

:func:`recipe` imports MASE's dictionaries as recipes of Octavo's own formats.
"""

from octavo.lab.mase.binary import (
    binarize,
    binary_bipolar_scaled,
    binary_quantizer,
    binary_zero_one,
    residual_sign_quantizer,
    ternary_quantizer,
)
from octavo.lab.mase.block import block_fp_quantizer, block_log_quantizer, block_minifloat_quantizer
from octavo.lab.mase.importer import Imported, recipe
from octavo.lab.mase.integer import integer_floor_quantizer, integer_quantizer, scale_integer_quantizer
from octavo.lab.mase.learned import flexround_quantizer, flexround_weight, lsq_integer
from octavo.lab.mase.linear import linear_forward
from octavo.lab.mase.lookup import generate_truth_table, linear_logicnets, linear_lut, logicnets_table
from octavo.lab.mase.microscaling import (
    extract_mxfp_components,
    mxfp_quantizer,
    mxint8_dequantize,
    mxint_hardware,
    mxint_quantizer,
)
from octavo.lab.mase.minifloat import log_quantizer, minifloat_denorm_quantizer, minifloat_ieee_quantizer
from octavo.lab.mase.minifloat_codes import compose_minifloat_component, extract_minifloat_component
from octavo.lab.mase.softmax import fixed_softermax, softermax

__all__ = [
    "Imported",
    "binarize",
    "binary_bipolar_scaled",
    "binary_quantizer",
    "binary_zero_one",
    "block_fp_quantizer",
    "block_log_quantizer",
    "block_minifloat_quantizer",
    "compose_minifloat_component",
    "extract_minifloat_component",
    "extract_mxfp_components",
    "fixed_softermax",
    "flexround_quantizer",
    "flexround_weight",
    "generate_truth_table",
    "integer_floor_quantizer",
    "integer_quantizer",
    "linear_forward",
    "linear_logicnets",
    "linear_lut",
    "log_quantizer",
    "logicnets_table",
    "lsq_integer",
    "minifloat_denorm_quantizer",
    "minifloat_ieee_quantizer",
    "mxfp_quantizer",
    "mxint8_dequantize",
    "mxint_hardware",
    "mxint_quantizer",
    "recipe",
    "residual_sign_quantizer",
    "scale_integer_quantizer",
    "softermax",
    "ternary_quantizer",
]
