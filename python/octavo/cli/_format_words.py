"""Descriptions of formats for ``octavo formats``: families, one line each, and their key numbers."""

from __future__ import annotations

import math
import re
from typing import Any

from octavo.errors import FormatError
from octavo.tensors.formats import Format

# Title, and how an element is read, in the order of FORMATS.md section 1.
FAMILIES = {
    "native": "IEEE storage: a cast, nothing shared",
    "fixed": "Fixed point: integers times a power of two",
    "int": "Scaled integers, symmetric",
    "uint": "Scaled integers, asymmetric (with zero point)",
    "fullrange": "Scaled integers, full range (scales have a sign)",
    "affine": "Scaled integers with an offset",
    "kquant": "K-quants of ggml: scales of scales; carried over from GGUF files, nothing is encoded in them",
    "minifloat": "Minifloats: sign, exponent, mantissa, subnormals",
    "denorm": "Denormals: minifloats without an implicit bit",
    "log": "Logarithmic: zero and signed powers of two",
    "binary": "Binary: one sign bit, or a sum of N scaled signs",
    "ternary": "Ternary: -a, 0, +a",
    "bfp": "Block floating point: integers that share an exponent",
    "bm": "Block minifloats: minifloats that share their bias",
    "blog": "Block logarithmic: powers of two that share their bias",
    "mxint": "OCP microscaling, integers",
    "mxfp": "OCP microscaling, minifloats",
    "nvfp4": "NVFP4: two levels of scales",
    "nf": "Normal floats: quantiles of a normal distribution",
}
FEW = 64  # as many values as are listed one by one

_NATIVE = {"fp32": "IEEE single", "fp16": "IEEE half", "bf16": "range of fp32, 8-bit precision"}
_MINIFLOATS = {
    "e4m3": "OCP FP8 E4M3, has NaN",
    "e5m2": "OCP FP8 E5M2, has inf and NaN",
    "e4m3:finite": "E4M3 with every code finite",
    "e5m2:finite": "E5M2 with every code finite",
}
_SHARES = {"tensor": "tensor", "channel": "row"}
_SCALES = {"float32": "f32", "float16": "f16", "int8": "F", "nested": "codes times f16"}


def scale_text(fmt: Format) -> str:
    """Return how scales are stored, such as ``e8m0 per 32`` or ``f32 per row``; ``-`` without scales."""
    if fmt.scale_type is None:
        return "-"
    return f"{_SCALES.get(fmt.scale_type, fmt.scale_type)} per {fmt.block or _SHARES[fmt.granularity]}"


def number(value: float) -> str:
    """Return a number as people read it: ``448``, ``0.0625``, ``3.4e+38``, and ``2^64`` for far powers of two."""
    text = f"{value:.6g}"
    if "e" not in text:
        return text
    return power_of_two(value) or f"{value:.3g}"


def power_of_two(value: float) -> str | None:
    """Return ``2^-8`` for a power of two, None for other numbers."""
    mantissa, exponent = math.frexp(value)
    return f"2^{exponent - 1}" if mantissa == 0.5 else None


def smallest_text(fmt: Format) -> str:
    """Return the smallest positive value at scale 1, as a power of two where it is a small one."""
    text = f"{fmt.smallest:.4g}"
    return text if len(text) <= 6 else power_of_two(fmt.smallest) or text


def range_text(fmt: Format) -> str:
    """Return the range at scale 1: ``±448`` where it is symmetric, else ``-8 .. 7.9375``."""
    low, high = fmt.range
    return f"±{number(high)}" if low == -high else f"{number(low)} .. {number(high)}"


def describe(fmt: Format) -> str:
    """Describe the element of a format in a few words."""
    text, width = fmt.text, fmt.width
    match fmt.family:
        case "native":
            return _NATIVE[text]
        case "fixed" if fmt.scale_type is None:
            return f"step 2^{-int(text.split('.')[1])}"
        case "fixed":
            return "F for least squared error" if "mse" in text else "F fits the largest value"
        case "int" | "fullrange":
            return "code * scale"
        case "affine":
            return "code * scale + offset"
        case "kquant":
            groups = "16" if text in ("q2_k", "q3_k", "q6_k") else "32"
            offset = "" if text in ("q3_k", "q6_k") else " + offset"
            return f"code * scale{offset}, of {groups}"
        case "uint":
            return "(code - zero point) * scale"
        case "minifloat":
            return _MINIFLOATS.get(text) or _float_bits(width, _number(r"e(\d+)", text))
        case "denorm" | "bm":
            return _float_bits(width, _number(r"[a-z]+\d+e(\d+)", text))
        case "log" | "blog":
            return f"0 and ±2^e, {width - 1} exponent bits"
        case "binary":
            return ("±1" if fmt.scale_type is None else "±a") if width == 1 else f"sum of {width} signed levels"
        case "ternary":
            return "-1, 0, +1" if fmt.scale_type is None else "-a, 0, +a"
        case "bfp":
            return f"sign and {width - 1} magnitude bits"
        case "mxint":
            return "OCP MXINT8" if width == 8 else f"MXINT8's rule at {width} bits"
        case "mxfp":
            element = "E2M1" if width == 4 else text.split("/")[0][-4:].upper()
            return f"OCP MXFP{width}, {element}"
        case "nvfp4":
            return "E2M1, and f32 per tensor"
    assert fmt.family == "nf"
    return f"{len(fmt.values())} quantile levels (QLoRA)"


def _float_bits(width: int, exponent: int) -> str:
    mantissa = width - 1 - exponent
    return f"{exponent} exponent, {mantissa} mantissa bit" + ("" if mantissa == 1 else "s")


def as_dict(fmt: Format) -> dict[str, Any]:
    """Return what there is to know about a format, for programs; ``values`` where they are few."""
    values = list_values(fmt)
    return {
        "format": str(fmt),
        "family": fmt.family,
        "description": describe(fmt),
        "width": fmt.width,
        "bits_per_element": fmt.bits,
        "block": fmt.block,
        "granularity": fmt.granularity,
        "scale_type": fmt.scale_type,
        "range": list(fmt.range),
        "smallest": fmt.smallest,
        "values": values if values and len(values) <= FEW else None,
    }


def list_values(fmt: Format) -> list[float] | None:
    """Return every value at scale 1; None where there are too many to list (more than 16 bits)."""
    try:
        return fmt.values()
    except FormatError:
        return None


def _number(pattern: str, text: str) -> int:
    """Return the number that a pattern finds at the beginning of a text that it fits."""
    found = re.match(pattern, text)
    assert found is not None
    return int(found[1])
