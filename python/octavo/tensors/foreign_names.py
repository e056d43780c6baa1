"""Names that other libraries and papers give to formats and methods, with the nearest texts of Octavo.

A name of a method, such as ``gptq``, stands for the recipe that people mean by it: the widths and groups are the
defaults of the library that the name comes from. Nearest is not equal: q4_K has scales of scales, ``uint4:g32`` not.
"""

from __future__ import annotations

import re

# What a name is, as a regular expression for all of it in lower case with '-' and ' ' as '_', and the texts that are
# nearest, best first.
_FORMATS = (
    (r"(fp8|float8|f8|hf8|fp8_e4m3|fp8_e4m3fn|float8_e4m3|float8_e4m3fn|e4m3fn|fp8wo)", ("e4m3", "mxfp8e4m3")),
    (r"(bf8|fp8_e5m2|float8_e5m2|e5m2fn)", ("e5m2", "mxfp8e5m2")),
    (r"(mxfp8|mx8|mxfp8_e4m3)", ("mxfp8e4m3", "mxfp8e5m2")),
    (r"(fp6|float6|mxfp6|mx6|fp6_e3m2|fp6_llm)", ("mxfp6e3m2", "mxfp6e2m3")),
    (r"(fp4|float4|mx4|mxfp4_moe|fp4_e2m1|float4_e2m1fn|e2m1fn)", ("mxfp4", "nvfp4")),
    (r"(nvfp|nv_fp4|fp4_nv|modelopt_fp4)", ("nvfp4",)),
    (r"(normalfloat|normalfloat4|nf4_dq|nf4_double_quant|bnb|bnb4|bnb_4bit|bitsandbytes|load_in_4bit|qlora)", ("nf4",)),
    (r"(f32|float|float32|single)", ("fp32",)),
    (r"(f16|half|float16)", ("fp16",)),
    (r"(bfloat|bfloat16|brain_float)", ("bf16",)),
    (r"(i8|s8|qint8|integer8)", ("int8",)),
    (r"(u8|quint8)", ("uint8",)),
    (r"(int8wo|int8_wo|int8_weight_only|int8_woq|w8|w8a16|w8a32)", ("int8:channel", "int8:g32")),
    (r"(int4wo|int4_wo|int4_weight_only|int4_woq|w4|w4a16|w4a32|i4|s4)", ("int4:g128", "int4:g32")),
    (r"(w3|w3a16|int3wo)", ("int3:g32",)),
    (r"(w2|w2a16|int2wo)", ("int2:g32",)),
    (r"(uint4wo|uint4_weight_only|u4|uintx)", ("uint4:g128", "uint4:g32")),
    (r"q8(_0|_1|_k|_k_.*)?", ("int8:g32",)),
    (r"q6(_k|_k_.*)?", ("int6:g32",)),
    (r"q5(_0)?", ("int5:g32",)),
    (r"q5_(1|k|k_.*)", ("uint5:g32",)),
    (r"q4(_0|_0_.*)?", ("int4:g32",)),
    (r"q4_(1|k|k_.*)", ("uint4:g32",)),
    (r"iq4_(nl|xs)", ("nf4", "int4:g32")),
    (r"(q3_k|q3_k_.*|iq3_.*)", ("uint3:g32", "int3:g32")),
    (r"(q2_k|q2_k_.*|iq2_.*)", ("uint2:g32", "int2:g32")),
    (r"(tq1_0|tq2_0|bitnet|bitnet_b1\.58|b1\.58|1\.58bit|twn|ttq|iq1_.*)", ("ternary:channel", "ternary")),
    (r"(q1_0|1bit|bnn|xnor|xnornet|sign)", ("binary:channel", "binary")),
    (r"(msfp|msfp12|msfp16|bfp|block_fp|block_float|block_floating_point)", ("bfp8/16", "mxint8")),
    (r"(block_minifloat|bm)", ("bm8e4/16",)),
    (r"(block_log|blog)", ("blog8/16",)),
    (r"(minifloat|minifloat_ieee)", ("e4m3",)),
    (r"(minifloat_denorm|denorm)", ("denorm8e4",)),
    (r"(log|logarithmic|pot|power_of_two)", ("log8",)),
    (r"(integer|fixed|fixed_point|fxp|q8\.8)", ("fixed8", "fixed8.4")),
    (r"(binary_residual|binary_residual_sign|residual_sign)", ("binary2:channel",)),
    (r"(mxint|mxint_hardware|mx9)", ("mxint8",)),
)
_RECIPES = (
    (r"(gptq|gptqv2|gptq_marlin|marlin|gptq_4bit|auto_gptq|autogptq)", "int4:g128@gptq"),
    (r"(awq|autoawq|awq_marlin|int4_awq|auto_round|autoround|exl2|exl3|quip|quip#|aqlm)", "uint4:g128@gptq"),
    (r"hqq", "uint4:g64@hqq"),
    (r"(spqr|omniquant|squeezellm)", "int4:g32@gptq"),
    (r"(llm\.int8|llm\.int8\(\)|llm_int8|bnb8|bnb_8bit|load_in_8bit)", "weight=int8:channel input=int8:channel"),
    (r"(w8a8|int8dq|int8_dq|smoothquant|int8_dynamic|dynamic_int8|int8_dynamic_activation_int8_weight|int8_sq)",
     "weight=int8:channel input=int8:channel"),
    (r"(w4a8|8da4w|int4dq|int8da_int4w|int8_dynamic_activation_int4_weight|qserve|qoq)",
     "weight=int4:g32 input=int8:channel"),
    (r"(w4a4|quarot|spinquant)", "weight=int4:g32 input=int4:g32"),
    (r"(fp8dq|float8dq|w8a8_fp8|fp8_dynamic|float8_dynamic_activation_float8_weight|mxfp8_training)",
     "weight=mxfp8e4m3 input=mxfp8e4m3"),
    (r"(w4a4_mxfp4|mxfp4dq)", "weight=mxfp4 input=mxfp4"),
    (r"(w4a4_nvfp4|nvfp4dq)", "weight=nvfp4 input=nvfp4"),
)  # fmt: skip


def suggestion(name: str) -> str | None:
    """Return what to write for a name that others use, ``'e4m3' or 'mxfp8e4m3'``; None for a name that is not known."""
    text = re.sub(r"[-\s]", "_", name.strip().lower())
    for pattern, spellings in _FORMATS:
        if re.fullmatch(pattern, text):
            return " or ".join(f"'{spelling}'" for spelling in spellings)
    for pattern, recipe in _RECIPES:
        if re.fullmatch(pattern, text):
            return f"the recipe '{recipe}'"
    return None
