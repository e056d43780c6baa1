"""Brute-force oracle of every format in FORMATS.md: the specification, executable. Needs numpy only, nothing of octavo.

An element is rounded by a nearest search over the explicit list of representable values, in float64. That decides as
exact arithmetic would: scale and rounding boundary have at most 50 bits together, so a quotient ``x / scale`` that is
not the boundary differs from it by at least 2**-50 of itself, and the rounding error of float64 is 2**-53.

Names in brackets, such as [6 ties], point to the section and bullet of FORMATS.md that a line follows.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

import numpy as np

F32_MAX = float(np.finfo(np.float32).max)
LARGEST = {"float32": F32_MAX, "float16": 65504.0, "bfloat16": float.fromhex("0x1.fep127")}
SMALLEST_SCALE = {"float32": 2.0**-149, "float16": 2.0**-24}
IEEE = {"fp32": (8, 23), "fp16": (5, 10), "bf16": (8, 7)}
MXFP = {"mxfp8e4m3": (4, 3), "mxfp8e5m2": (5, 2), "mxfp6e3m2": (3, 2), "mxfp6e2m3": (2, 3), "mxfp4": (2, 1)}
EMAX = {(5, 2): 15, (4, 3): 8, (3, 2): 4, (2, 3): 2, (2, 1): 2}
# [6 nf4, nf3]; code i is level i.
CODE_BOOK = {
    4: (
        *(-1, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0),
        *(0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1),
    ),
    3: (-1, -0.53502274, -0.24693143, 0, 0.18333748, 0.38199395, 0.6229857, 1),
}


# ---------------------------------------------------------------------------------------------------------------- parse


@dataclass(frozen=True)
class Spec:
    """One format text, taken apart. Fields that a family does not have keep their default."""

    text: str
    family: str
    width: int
    exponent: int = 0
    mantissa: int = 0
    bias: int = 0
    reserved: str = "none"  # codes that are no number: "none", "nan" (OCP E4M3) or "ieee" (inf and NaN)
    fraction: int | None = None  # F of fixedW.F; None where it is calibrated
    scope: str = "none"  # who shares a scale: "none", "tensor", "channel" or "block"
    block: int = 0
    scale: str = "none"  # how a scale is stored: "none", "F", "float32", "float16", "e8m0" or "e4m3"
    levels: int = 1  # N of binaryN; 2, scale and offset, of uintW:gN,offset
    mse: bool = False  # fixedW:mse


PATTERNS = {
    "ieee": r"(?P<name>fp32|fp16|bf16)",
    "fixed": r"(?P<unsigned>u?)fixed(?P<width>\d+)(\.(?P<fraction>-?\d+))?",
    "int": r"(?P<unsigned>u?)int(?P<width>\d+)",
    "minifloat": r"e(?P<exponent>\d+)m(?P<mantissa>\d+)(b(?P<bias>-?\d+))?",
    "denorm": r"denorm(?P<width>\d+)e(?P<exponent>\d+)(b(?P<bias>-?\d+))?",
    "log": r"log(?P<width>\d+)(b(?P<bias>-?\d+))?",
    "binary": r"binary(?P<levels>\d*)",
    "ternary": r"ternary",
    "bfp": r"bfp(?P<width>\d+)",
    "bm": r"bm(?P<width>\d+)e(?P<exponent>\d+)",
    "blog": r"blog(?P<width>\d+)",
    "mxint": r"mxint(?P<width>\d+)",
    "mxfp": r"(?P<name>" + "|".join(MXFP) + ")",
    "nvfp4": r"nvfp4",
    "nf": r"nf(?P<width>[34])",
}
DEFAULT_BLOCK = {"mxint": 32, "mxfp": 32, "nvfp4": 16, "nf": 64}
SCALED = {
    "bfp": "e8m0",
    "bm": "e8m0",
    "blog": "e8m0",
    "mxint": "e8m0",
    "mxfp": "e8m0",
    "nvfp4": "e4m3",
    "nf": "float16",
}


@functools.cache
def parse(text: str) -> Spec:
    """The parts of a format text. Tolerant: raises ValueError for an unknown family, part or option only."""
    body, _, option_text = text.partition(":")
    element, _, block_text = body.partition("/")
    options = [option for option in option_text.split(",") if option]
    matches = {family: match for family, pattern in PATTERNS.items() if (match := re.fullmatch(pattern, element))}
    if not matches:
        raise ValueError(f"unknown format '{text}'")
    ((family, match),) = matches.items()
    part = match.groupdict()
    numbers = {key: int(value) for key, value in part.items() if value and key not in ("name", "unsigned")}
    if family == "fixed" or family == "int":
        family = part["unsigned"] + family
    fields = {"text": text, "family": family, **numbers}

    if family in SCALED:
        block = int(block_text or DEFAULT_BLOCK.get(family, 0))
        if not 1 <= block <= 65536:
            raise ValueError(f"'{text}': a block size of 1 to 65536 is required")
        fields |= {"scope": "block", "block": block, "scale": SCALED[family]}
    elif block_text:
        raise ValueError(f"'{text}': '{element}' takes no block size")

    take = _option_taker(options)
    if family == "ieee":
        exponent, mantissa = IEEE[part["name"]]
        fields |= {"width": 1 + exponent + mantissa, "exponent": exponent, "mantissa": mantissa}
        fields |= {"bias": 2 ** (exponent - 1) - 1, "reserved": "ieee"}
    elif family in ("fixed", "ufixed"):
        if "fraction" not in numbers:
            fields |= {"scope": take("tensor", "channel") or "tensor", "scale": "F", "mse": bool(take("mse"))}
    elif family in ("int", "uint"):
        scope, group = take("tensor", "channel") or "tensor", take(r"g\d+")
        fields |= {"scope": scope, "scale": "float32"}
        if group:
            fields |= {"scope": "block", "block": int(group[1:]), "scale": "float16"}
        if group and family == "int" and take("full"):
            fields["family"] = "fullrange"
        if group and family == "uint" and take("offset"):
            fields |= {"family": "affine", "levels": 2}
    elif family == "minifloat":
        exponent, mantissa = numbers["exponent"], numbers["mantissa"]
        default = 2 ** (exponent - 1) - 1
        bias = numbers.get("bias", default)
        finite = bool(take("finite")) or bias != default
        reserved = {(4, 3): "nan", (5, 2): "ieee"}.get((exponent, mantissa), "none")
        fields |= {"width": 1 + exponent + mantissa, "bias": bias, "reserved": "none" if finite else reserved}
    elif family == "denorm":
        fields["mantissa"] = numbers["width"] - numbers["exponent"] - 1
        fields["bias"] = numbers.get("bias", 2 ** (numbers["exponent"] - 1) - 1)
    elif family == "log":
        fields["exponent"] = numbers["width"] - 1
        fields["bias"] = numbers.get("bias", 2 ** (numbers["width"] - 2) - 1)
    elif family in ("binary", "ternary"):
        scope = take("unit", "tensor", "channel") or "tensor"
        width = numbers.get("levels", 1) if family == "binary" else 2
        fields["width"] = width
        if scope != "unit":
            fields |= {"scope": scope, "scale": "float32"}
        elif width > 1 and family == "binary":
            raise ValueError(f"'{text}': ':unit' has one level")
    elif family == "bfp":
        fields["mantissa"] = numbers["width"] - 1
    elif family == "bm":
        # Scale 1 puts the top binade at 2**0.
        fields |= {"mantissa": numbers["width"] - numbers["exponent"] - 1, "bias": 2 ** numbers["exponent"] - 1}
    elif family == "blog":
        fields |= {"exponent": numbers["width"] - 1, "bias": 2 ** (numbers["width"] - 1) - 1}
    elif family == "mxfp" or family == "nvfp4":
        exponent, mantissa = MXFP["mxfp4" if family == "nvfp4" else part["name"]]
        reserved = {(4, 3): "nan", (5, 2): "ieee"}.get((exponent, mantissa), "none")
        fields |= {"width": 1 + exponent + mantissa, "exponent": exponent, "mantissa": mantissa, "reserved": reserved}
        fields["bias"] = 2 ** (exponent - 1) - 1
    if options:
        raise ValueError(f"'{text}': unknown option '{options[0]}'")
    spec = Spec(**fields)
    if spec.mantissa < 0:
        raise ValueError(f"'{text}': width too small for its exponent")
    return spec


def _option_taker(options: list[str]):
    """A function that removes and returns the first option matching one of its patterns, or None."""

    def take(*patterns: str) -> str | None:
        for option in options:
            if any(re.fullmatch(pattern, option) for pattern in patterns):
                options.remove(option)
                return option
        return None

    return take


def rules(text: str) -> tuple[str, ...]:
    """The values of ``rule=`` that a format accepts: three where a block has a scale code, else the default alone."""
    return ("floor", "ceil", "mse") if parse(text).scale in ("e8m0", "e4m3") else ("floor",)


# ------------------------------------------------------------------------------------------------------ what codes mean


def code_values(spec: Spec, codes: np.ndarray) -> np.ndarray:
    """Unscaled value of every code, canonical or not, in float64; NaN and inf where the code says so.

    ``uintW`` gives the code itself: the caller subtracts the zero point. ``binary`` is left to ``signed_sums``.
    """
    codes = np.asarray(codes, np.int64)
    family, width = spec.family, spec.width
    if family == "nf":
        return np.array(CODE_BOOK[width], np.float32).astype(float)[codes]
    if family in ("ufixed", "uint", "affine"):
        return codes * _fixed_step(spec)
    if family in ("fixed", "int", "fullrange", "ternary", "mxint"):  # two's complement
        return np.where(codes >> (width - 1), codes - 2**width, codes) * _fixed_step(spec)

    sign = np.where(codes >> (width - 1) & 1, -1.0, 1.0)
    if family == "binary":
        return sign
    if family == "bfp":
        return sign * np.ldexp((codes & (2**spec.mantissa - 1)).astype(float), -spec.mantissa)
    field = (codes >> spec.mantissa) & (2**spec.exponent - 1)
    fraction = (codes & (2**spec.mantissa - 1)) / 2.0**spec.mantissa
    if family == "denorm":
        return sign * np.ldexp(fraction, field - spec.bias)
    # ieee, minifloat, log, bm, blog, mxfp, nvfp4: log and blog are minifloats without mantissa bits
    values = sign * np.where(field > 0, np.ldexp(1 + fraction, field - spec.bias), np.ldexp(fraction, 1 - spec.bias))
    top = field == 2**spec.exponent - 1
    if spec.reserved == "ieee":
        values = np.where(top, np.where(fraction == 0, sign * np.inf, np.nan), values)
    elif spec.reserved == "nan":
        values = np.where(top & (fraction == 1 - 2.0**-spec.mantissa), np.nan, values)
    return values


def _fixed_step(spec: Spec) -> float:
    """Value of one unit of a two's complement or unsigned code, at scale 1."""
    if spec.family == "mxint":
        return 2.0 ** (2 - spec.width)
    return 2.0**-spec.fraction if spec.fraction is not None else 1.0


@dataclass(frozen=True)
class Table:
    """Representable values in ascending order, their canonical codes, and where the tie between two neighbours goes."""

    values: np.ndarray
    codes: np.ndarray
    midpoints: np.ndarray
    tie_goes_up: np.ndarray

    def nearest(self, x: np.ndarray) -> np.ndarray:
        """Position of the value nearest to each x; beyond the range, of the last value."""
        below = np.searchsorted(self.midpoints, x, side="left")
        if len(self.midpoints) == 0:
            return below
        at = np.minimum(below, len(self.midpoints) - 1)
        tie = (below < len(self.midpoints)) & (x == self.midpoints[at])
        return below + (tie & self.tie_goes_up[at])


@functools.cache
def table(spec: Spec) -> Table:
    """The element's table at scale 1. Canonical is a value's smallest code, so no negative zero [6 reading codes]."""
    if spec.width > 20:
        raise ValueError(f"'{spec.text}': too many codes to list")
    codes = np.arange(2**spec.width)
    if spec.family in ("int", "mxint", "ternary"):
        codes = codes[codes != 2 ** (spec.width - 1)]  # the lowest number is never written
    if spec.family == "binary" and spec.width > 1:
        raise ValueError(f"'{spec.text}': values depend on the levels")
    values = code_values(spec, codes)
    codes, values = codes[np.isfinite(values)], values[np.isfinite(values)]
    values, first = np.unique(values, return_index=True)
    codes = codes[first]
    lower, upper = values[:-1], values[1:]
    if spec.family == "denorm" and spec.mantissa == 1:
        tie_goes_up = np.where(lower == 0, False, np.where(upper == 0, True, lower > 0))  # zero is even
    elif spec.family == "binary":
        tie_goes_up = np.ones(len(lower), bool)
    else:
        tie_goes_up = codes[1:] % 2 == 0
        assert np.all(tie_goes_up != (codes[:-1] % 2 == 0)), "one neighbour of each pair is even"
    return Table(values, codes, (lower + upper) / 2, tie_goes_up)


@functools.cache
def integer_table(limit: int) -> Table:
    """All integers of magnitude up to ``limit``, ties to even: the multiples of a step before clipping (uintW)."""
    values = np.arange(-limit, limit + 1)
    return Table(values.astype(float), values, values[:-1] + 0.5, values[1:] % 2 == 0)


def grid(text: str) -> tuple[np.ndarray, np.ndarray]:
    """Every code an encoder writes (int64) and its value at scale 1 (float64), in ascending order of value.

    ``uintW`` has zero point 0. ``binaryN`` with N >= 2 is listed with all levels 1, in order of the codes.
    """
    spec = parse(text)
    if spec.family == "binary" and spec.width > 1:
        codes = np.arange(2**spec.width)
        return codes, signed_sums(np.ones(spec.width, np.float32)).astype(float)
    listed = table(spec)
    return listed.codes, listed.values


# -------------------------------------------------------------------------------------------------- rounding to a dtype


def to_float32(values: np.ndarray) -> np.ndarray:
    """float64 to float32, ties to even; finite values never become infinite [6 decoding]."""
    values = np.asarray(values, float)
    return np.where(np.isinf(values), values, np.clip(values, -F32_MAX, F32_MAX)).astype(np.float32)


def to_float16(values: np.ndarray) -> np.ndarray:
    """float32 to float16, ties to even; finite values never become infinite."""
    values = np.asarray(values, np.float32)
    return np.where(np.isinf(values), values, np.clip(values, -65504, 65504)).astype(np.float16)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 to bfloat16 (as float32), ties to even in integer arithmetic; finite values never become infinite."""
    values = np.asarray(values, np.float32)
    bits = values.view(np.uint32).astype(np.int64)
    sign, magnitude = bits & 0x8000_0000, bits & 0x7FFF_FFFF
    rounded = (magnitude + 0x7FFF + ((magnitude >> 16) & 1)) & 0x7FFF_0000
    rounded = np.minimum(rounded, 0x7F7F_0000)
    out = (sign | rounded).astype(np.uint32).view(np.float32)
    return np.where(np.isfinite(values), out, values)


def to_dtype(values: np.ndarray, dtype: str) -> np.ndarray:
    """float64 to float32, then to the logical dtype; the result is float32 [6 decoding]."""
    values = to_float32(values)
    if dtype == "float16":
        return to_float16(values).astype(np.float32)
    return to_bfloat16(values) if dtype == "bfloat16" else values


# ------------------------------------------------------------------------------------------------------ layout and sums


def _split(x: np.ndarray, spec: Spec) -> np.ndarray:
    """Elements by the scale they share: shape ``scale shape + (n,)``. Short blocks end in NaN, which counts nowhere."""
    if spec.scope in ("tensor", "none"):
        return x.reshape(1, -1)
    rows, length = x.shape[:-1], x.shape[-1]
    if spec.scope == "channel":
        return x.reshape(*rows, 1, length)
    blocks = -(-length // spec.block)
    padded = np.full((*rows, blocks * spec.block), np.nan, x.dtype)
    padded[..., :length] = x
    return padded.reshape(*rows, blocks, spec.block)


def _join(groups: np.ndarray, shape: tuple[int, ...], spec: Spec) -> np.ndarray:
    """Undo ``_split``; ``shape`` is that of the tensor with its axis moved last."""
    if spec.scope in ("tensor", "none", "channel"):
        return groups.reshape(shape)
    rows, length = shape[:-1], shape[-1]
    return groups.reshape(*rows, groups.shape[-2] * groups.shape[-1])[..., :length]


def _lane_sum(values: np.ndarray) -> np.ndarray:
    """Sum of the last axis in its own precision: lane i mod 16 in order, then a tree of 8, 4, 2, 1 [6 scale=mse]."""
    outer, length = values.shape[:-1], values.shape[-1]
    steps = max(-(-length // 16), 1)
    padded = np.zeros((*outer, steps * 16), values.dtype)
    padded[..., :length] = values
    lanes = padded.reshape(*outer, steps, 16)
    total = np.cumsum(lanes, axis=-2, dtype=values.dtype)[..., -1, :]  # cumsum adds strictly in order
    for half in (8, 4, 2, 1):
        total = total[..., :half] + total[..., half:]
    return total[..., 0]


def _chunk_sum(values: np.ndarray) -> np.ndarray:
    """Sum over the last axis in float64: lanes inside chunks of 16,384, chunks in order [6 means]."""
    total = np.zeros(values.shape[:-1])
    for start in range(0, values.shape[-1], 16384):
        total = total + _lane_sum(values[..., start : start + 16384].astype(float))
    return total


def _mean(values: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """float32 mean over the last axis of the values where ``counted``; 0 where there are none."""
    total = _chunk_sum(np.where(counted, values, 0))
    return to_float32(total / np.maximum(counted.sum(-1), 1))


def _absmax(groups: np.ndarray) -> np.ndarray:
    """Largest magnitude of each group, 0 for none; NaN takes no part."""
    return np.max(np.abs(np.nan_to_num(groups, nan=0.0)), axis=-1, initial=0.0).astype(np.float32)


def _floor_log2(magnitude: np.ndarray) -> np.ndarray:
    """floor(log2(magnitude)), exact also for float32 subnormals, which are normal in float64."""
    return np.frexp(magnitude.astype(float))[1] - 1


# --------------------------------------------------------------------------------------------------------------- scales


def scale_values(spec: Spec, scales: np.ndarray | None, levels: np.ndarray | None) -> np.ndarray:
    """Stored scales as float64 factors; NaN for scale code 255 of the E8M0 kind."""
    if spec.scale == "none":
        return np.ones(1)
    if spec.scale == "F":
        return np.ldexp(1.0, -scales.astype(np.int64))
    if spec.scale == "e8m0":
        return np.where(scales == 255, np.nan, np.ldexp(1.0, scales.astype(np.int64) - 127))
    if spec.scale == "e4m3":
        # g * scale is a float32 product [6 nvfp4]
        with np.errstate(over="ignore"):
            product = code_values(parse("e4m3"), scales).astype(np.float32) * np.float32(levels[0])
        return np.clip(product, -F32_MAX, F32_MAX).astype(float)
    return (scales[..., 0] if spec.family == "affine" else scales).astype(float)


def offset_values(spec: Spec, scales: np.ndarray | None) -> np.ndarray:
    """Stored offsets as float64; 0 where the format has none, and for -0."""
    return scales[..., 1].astype(float) + 0.0 if spec.family == "affine" else np.zeros(1)


def _choose_fullrange(spec: Spec, groups: np.ndarray) -> np.ndarray:
    """The value of largest magnitude over the lowest code; of two the negative one."""
    finite = np.nan_to_num(groups.astype(np.float32), nan=0.0)
    low, high = finite.min(-1, initial=0.0), finite.max(-1, initial=0.0)
    extreme = np.where(-low >= high, low, high).astype(np.float32)
    magnitude = _stored_scale(np.abs(extreme / np.float32(2 ** (spec.width - 1))), spec.scale, extreme != 0)
    return np.where(extreme > 0, -magnitude, magnitude)


def _choose_affine(spec: Spec, groups: np.ndarray) -> np.ndarray:
    """Scale and offset: the smallest value, and the rest of the range over the largest code."""
    finite = np.nan_to_num(groups.astype(float), nan=0.0)
    low, high = finite.min(-1, initial=0.0), finite.max(-1, initial=0.0)
    offset = to_float16(to_float32(low)) + np.float16(0)
    scale = (high - offset.astype(float)) / (2**spec.width - 1)
    return np.stack([_stored_scale(to_float32(scale), spec.scale, high > low), offset], -1)


def _stored_scale(scale: np.ndarray, kind: str, nonzero: np.ndarray) -> np.ndarray:
    """float32 scales in storage precision; only an all-zero group keeps scale 0 [6 never gets scale 0]."""
    stored = to_float16(scale) if kind == "float16" else scale.astype(np.float32)
    smallest = stored.dtype.type(SMALLEST_SCALE[kind])
    return np.where(nonzero, np.maximum(stored, smallest), stored.dtype.type(0))


def _choose_int(spec: Spec, groups: np.ndarray) -> np.ndarray:
    absmax = _absmax(groups)
    return _stored_scale(absmax / np.float32(2 ** (spec.width - 1) - 1), spec.scale, absmax > 0)


def _choose_uint(spec: Spec, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales and zero points. The range is a float64 difference; min and max enclose zero."""
    finite = np.nan_to_num(groups.astype(float), nan=0.0)
    low, high = finite.min(-1, initial=0.0), finite.max(-1, initial=0.0)
    top = 2**spec.width - 1
    scales = _stored_scale(to_float32((high - low) / top), spec.scale, high > low)
    with np.errstate(divide="ignore", invalid="ignore"):
        zeros = np.where(scales > 0, np.rint(-low / scales.astype(float)), 0)
    return scales, np.clip(zeros, 0, top).astype(np.int64)


def _choose_fraction(spec: Spec, groups: np.ndarray) -> np.ndarray:
    """F of calibrated fixed point: the largest that does not saturate; ``:mse`` tries 7 more [6 fixedW]."""
    unsigned = spec.family == "ufixed"
    largest = _absmax(np.maximum(groups, 0) if unsigned else groups).astype(float)
    top = 2**spec.width - 1 if unsigned else 2 ** (spec.width - 1) - 1
    fraction = np.full(largest.shape, -128)
    for candidate in range(-127, 128):
        fraction = np.where(np.ldexp(largest, candidate) <= top, candidate, fraction)
    fraction = np.where(largest == 0, 0, fraction)
    if spec.mse:
        best, least = fraction, np.full(fraction.shape, np.inf)
        for step in range(8):
            candidate = np.minimum(fraction + step, 127)
            values = _quantized(spec, groups, np.ldexp(1.0, -candidate))
            error = _chunk_sum(np.nan_to_num(groups.astype(float) - values, nan=0.0) ** 2)
            better = (error < least) & (largest > 0)
            best, least = np.where(better, candidate, best), np.where(better, error, least)
        fraction = best
    return fraction.astype(np.int8)


def _choose_binary(spec: Spec, groups: np.ndarray) -> np.ndarray:
    """Levels by the residual rule, shape ``[..., N]``; a level is 0 only where all residuals are."""
    residual, counted = groups.astype(np.float32), ~np.isnan(groups)
    levels = []
    for _ in range(spec.levels):
        magnitude = np.abs(residual)
        nonzero = _absmax(residual) > 0
        level = _stored_scale(_mean(magnitude, counted), "float32", nonzero)
        levels.append(level)
        residual = residual - np.where(residual < 0, -level[..., None], level[..., None])  # sign(0) is +
    return np.stack(levels, axis=-1) if spec.levels > 1 else levels[0]


def _choose_ternary(groups: np.ndarray) -> np.ndarray:
    magnitude, counted = np.abs(groups), ~np.isnan(groups)
    threshold = np.float32(0.75) * _mean(magnitude, counted)
    above = counted & (magnitude > threshold[..., None])
    return _stored_scale(_mean(magnitude, above), "float32", _absmax(groups) > 0)


def _choose_e8m0(spec: Spec, groups: np.ndarray, rule: str) -> np.ndarray:
    """Scale codes (0..254) of bfp, bm, blog, mxint and mxfp; an all-zero block has code 0."""
    absmax = _absmax(groups).astype(float)
    if rule == "ceil":
        largest = table(spec).values[-1]
        limits = largest * np.ldexp(1.0, np.arange(255) - 127)
        return np.minimum(np.searchsorted(limits, absmax, side="left"), 254).astype(np.uint8)

    floor_log2 = _floor_log2(absmax)
    if spec.family == "bfp":
        top = 2**spec.mantissa - 1
        exponent = floor_log2 + 3
        for candidate in (floor_log2 + 2, floor_log2 + 1, floor_log2):
            fits = np.rint(np.ldexp(absmax, spec.mantissa - candidate)) <= top
            exponent = np.where(fits, candidate, exponent)
    elif spec.family == "blog":
        exponent = floor_log2 + (absmax >= np.ldexp(1.5, floor_log2))
    elif spec.family == "mxfp":
        exponent = floor_log2 - EMAX[spec.exponent, spec.mantissa]
    else:  # bm: the top binade; mxint: emax is 0
        exponent = floor_log2
    codes = np.where(absmax > 0, np.clip(exponent + 127, 0, 254), 0)
    if rule == "mse":
        codes = _least_error_e8m0(spec, groups, codes, absmax > 0)
    return codes.astype(np.uint8)


def _least_error_e8m0(spec: Spec, groups: np.ndarray, default: np.ndarray, nonzero: np.ndarray) -> np.ndarray:
    """float32 squared errors of x and q over the default scale; the default wins ties, then the lower [6 scale=mse]."""
    unit = np.ldexp(1.0, default - 127)
    best, least = default, np.full(default.shape, np.inf, np.float32)
    for step in (0, -1, 1):
        candidate = np.clip(default + step, 0, 254)
        q = to_float32(_quantized(spec, groups, np.ldexp(1.0, candidate - 127)))
        error = _squared_error(groups, q, unit)
        better = (error < least) & (nonzero | (step == 0))
        best, least = np.where(better, candidate, best), np.where(better, error, least)
    return best


def _squared_error(groups: np.ndarray, q: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Sum of squares of float32 errors times the float32 inverse of the unit [6 scale=mse]; NaN counts as 0."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        inverse = np.float32(1) / unit.astype(np.float32)
        error = (groups.astype(np.float32) - q.astype(np.float32)) * inverse[..., None]
        error = np.where(np.isnan(groups), np.float32(0), error)
        return _lane_sum(error * error)


def _choose_nvfp4(spec: Spec, groups: np.ndarray, rule: str, levels: np.ndarray) -> np.ndarray:
    """E4M3 codes of the block scales, given the tensor scale."""
    e4m3, level = table(parse("e4m3")), levels[0]
    absmax = _absmax(groups)
    if level == 0:
        return np.zeros(absmax.shape, np.uint8)
    if rule == "ceil":
        positive = np.arange(127)
        limits = 6 * scale_values(spec, positive, levels)
        return np.minimum(np.searchsorted(limits, absmax.astype(float), side="left"), 126).astype(np.uint8)
    with np.errstate(over="ignore"):
        quotient = to_float32(absmax.astype(float) / float(np.float32(6) * level))
    default = e4m3.codes[e4m3.nearest(quotient.astype(float))]
    if rule == "mse":
        unit = scale_values(spec, default, levels)
        best, least = default, np.full(default.shape, np.inf, np.float32)
        for step in (0, -1, 1):
            candidate = np.clip(default + step, 1, 126)
            q = to_float32(_quantized(spec, groups, scale_values(spec, candidate, levels)))
            error = _squared_error(groups, q, unit)
            better = (error < least) & (default > 0)  # a scale that rounds to 0 has no unit to measure in: it stays
            best, least = np.where(better, candidate, best), np.where(better, error, least)
        default = best
    return default.astype(np.uint8)


def _tensor_level(groups: np.ndarray) -> np.ndarray:
    """nvfp4's tensor scale g, shape [1]."""
    absmax = _absmax(groups.reshape(1, -1))
    return _stored_scale(absmax / np.float32(6 * 448), "float32", absmax > 0)


def choose_scales(spec: Spec, groups: np.ndarray, rule: str, levels: np.ndarray | None):
    """Scales in storage form and zero points (or None), for elements already split by the scale they share."""
    if rule not in rules(spec.text):
        raise ValueError(f"'{spec.text}' has no scale rule '{rule}'")
    if spec.scale == "none":
        return None, None
    if spec.scale == "F":
        return _choose_fraction(spec, groups), None
    if spec.family == "uint":
        return _choose_uint(spec, groups)
    if spec.family == "int":
        return _choose_int(spec, groups), None
    if spec.family == "fullrange":
        return _choose_fullrange(spec, groups), None
    if spec.family == "affine":
        return _choose_affine(spec, groups), None
    if spec.family == "binary":
        return _choose_binary(spec, groups), None
    if spec.family == "ternary":
        return _choose_ternary(groups), None
    if spec.family == "nf":
        absmax = _absmax(groups)
        return _stored_scale(absmax, "float16", absmax > 0), None
    if spec.family == "nvfp4":
        return _choose_nvfp4(spec, groups, rule, levels), None
    return _choose_e8m0(spec, groups, rule), None


# ------------------------------------------------------------------------------------------------------------- elements


def _quotient(groups: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """x / scale in float64; 0 for NaN and where the scale is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = groups.astype(float) / scale[..., None]
    return np.where((scale[..., None] == 0) | np.isnan(groups) | np.isnan(quotient), 0.0, quotient)


def _quantized(spec: Spec, groups: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Exact float64 value of each element after rounding with the given scale; no zero points, no binary."""
    if spec.width > 20:
        return code_values(spec, _element_codes(spec, groups, scale, None)) * scale[..., None]
    listed = table(spec)
    return listed.values[listed.nearest(_quotient(groups, scale))] * scale[..., None]


def _element_codes(spec: Spec, groups: np.ndarray, scale: np.ndarray, zeros: np.ndarray | None) -> np.ndarray:
    """Codes by the common rule of section 2, for every family but binary; NaN gets the code of zero."""
    quotient = _quotient(groups, scale)
    if spec.family == "uint":
        top = 2**spec.width - 1
        listed = integer_table(top)
        return np.clip(listed.codes[listed.nearest(quotient)] + zeros[..., None], 0, top)
    if spec.width <= 20:
        listed = table(spec)
        return listed.codes[listed.nearest(quotient)]
    if spec.family == "ieee":  # fp32 holds every input; + 0.0 makes a negative zero positive
        return (quotient.astype(np.float32) + np.float32(0)).view(np.uint32).astype(np.int64)
    low, high = (
        (0, 2**spec.width - 1) if spec.family == "ufixed" else (-(2 ** (spec.width - 1)), 2 ** (spec.width - 1) - 1)
    )
    steps = np.clip(np.rint(quotient / _fixed_step(spec)), low, high).astype(np.int64)
    return steps & (2**spec.width - 1)


def _affine_codes(spec: Spec, groups: np.ndarray, scale: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Codes of the nearest exact ``code * scale + offset``, ties to the even code, 0 where the scale is 0. NaN counts as 0."""
    listed = table(spec)
    sign = np.where(scale < 0, -1.0, 1.0)[..., None]
    x = sign * np.nan_to_num(groups.astype(float), nan=0.0)
    away = -sign * offset[..., None]
    # The exact distance to the offset as a float64 and its rounding error (two-sum).
    far = x + away
    part = far - x
    error = (x - (far - part)) + (away - part)
    position = np.zeros(groups.shape, int)
    for midpoint, tie_goes_up in zip(listed.midpoints, listed.tie_goes_up, strict=True):
        threshold = midpoint * np.abs(scale)[..., None]
        position += (far > threshold) | ((far == threshold) & ((error > 0) | ((error == 0) & tie_goes_up)))
    return np.where(scale[..., None] == 0, 0, listed.codes[position])


def signed_sums(levels: np.ndarray) -> np.ndarray:
    """The 2**N sums of signed levels ``[..., N]``, by code, added in float32 with the first level first."""
    count = levels.shape[-1]
    codes = np.arange(2**count)
    total = np.zeros((*levels.shape[:-1], 2**count), np.float32)
    with np.errstate(over="ignore"):
        for position in range(count):
            negative = (codes >> (count - 1 - position)) & 1
            signed = np.where(negative, -levels[..., position, None], levels[..., position, None])
            total = np.clip(total + signed, -F32_MAX, F32_MAX).astype(np.float32)
    return total


def _binary_codes(groups: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Nearest of the signed sums, ties to the larger value; among equal sums the smallest code. NaN counts as 0."""
    sums = signed_sums(levels).astype(float)
    order = np.argsort(sums, axis=-1, kind="stable")
    ascending = np.take_along_axis(sums, order, -1)
    canonical = np.argmax(ascending[..., :, None] == sums[..., None, :], axis=-1)  # first code with that sum
    lower, upper = ascending[..., :-1], ascending[..., 1:]
    # Twice the midpoint as a float64 and its rounding error (two-sum), so that ties are exact for levels far apart.
    twice = lower + upper
    part = twice - lower
    error = (lower - (twice - part)) + (upper - part)
    x = 2 * np.nan_to_num(groups.astype(float), nan=0.0)[..., None]
    twice, error = twice[..., None, :], error[..., None, :]
    position = np.sum((x > twice) | ((x == twice) & (error <= 0)), axis=-1)
    return np.take_along_axis(canonical, position, -1)


def _binary_levels(spec: Spec, scales: np.ndarray | None) -> np.ndarray:
    """Levels with a trailing dimension N, whatever form the scales have."""
    if scales is None:
        return np.ones((1, 1), np.float32)
    return scales if spec.levels > 1 else scales[..., None]


# -------------------------------------------------------------------------------------------------- encode, decode, ...


@dataclass
class Encoded:
    """What an encoder writes. ``codes`` and ``scales`` are laid out with the axis moved last; ``shape`` is x's own."""

    codes: np.ndarray
    scales: np.ndarray | None
    zeros: np.ndarray | None
    levels: np.ndarray | None
    shape: tuple[int, ...]
    axis: int
    dtype: str


def has_nan(spec: Spec) -> bool:
    """Whether ``nonfinite="nan"`` is accepted [6 infinities]."""
    return spec.family in ("ieee", "mxint", "mxfp") or (spec.family == "minifloat" and spec.reserved != "none")


def _prepare(x: np.ndarray, axis: int, dtype: str) -> np.ndarray:
    """float32, axis moved last, infinities replaced by the dtype's largest value; NaN kept."""
    x = np.asarray(x, np.float32)
    if x.ndim:
        x = np.moveaxis(x, axis, -1)
    return np.where(np.isinf(x), np.copysign(np.float32(LARGEST[dtype]), x), x)


def encode(
    x: np.ndarray,
    text: str,
    *,
    axis: int = -1,
    rule: str = "floor",
    dtype: str = "float32",
    nonfinite: str = "saturate",
    scales: np.ndarray | None = None,
    zeros: np.ndarray | None = None,
) -> Encoded:
    """Codes and scales of ``x`` (float32 holding values of ``dtype``) in format ``text``. Source: FORMATS.md.

    ``nonfinite``: "saturate", "nan" (formats that have one) or "raise". ``scales`` (and ``zeros``) in storage form
    replace those that the rule would choose. Raises ValueError.
    """
    spec = parse(text)
    shape = np.shape(x)
    moved = _prepare(x, axis, dtype)
    nan = np.isnan(moved)
    if nonfinite == "raise" and not np.all(np.isfinite(x)):
        raise ValueError(f"'{text}': x is not finite")
    if nonfinite == "nan" and not has_nan(spec):
        raise ValueError(f"'{text}' has no NaN")
    layout = moved.shape or (1,)
    groups = _split(moved.reshape(layout), spec)

    levels = _tensor_level(groups) if spec.family == "nvfp4" else None
    if scales is None:
        scales, zeros = choose_scales(spec, groups, rule, levels)
    else:
        scales = np.asarray(scales)
        expected = groups.shape[:-1] + ((spec.levels,) if spec.levels > 1 else ())
        if spec.scale == "none" or scales.shape != expected:
            raise ValueError(f"'{text}': scales have shape {scales.shape}; expected is {expected}")
    if spec.family == "binary":
        codes = _binary_codes(groups, _binary_levels(spec, scales))
    elif spec.family in ("fullrange", "affine"):
        scale = scale_values(spec, scales, levels)
        codes = _affine_codes(spec, groups, scale, np.broadcast_to(offset_values(spec, scales), scale.shape))
    else:
        codes = _element_codes(spec, groups, scale_values(spec, scales, levels), zeros)
    if nonfinite == "nan" and spec.scale == "e8m0":
        lost = np.any(_split(nan.reshape(layout).astype(float), spec) == 1, axis=-1)
        scales = np.where(lost, np.uint8(255), scales)
        codes = np.where(lost[..., None], 0, codes)
    codes = _join(codes, layout, spec).reshape(moved.shape)
    if nonfinite == "nan" and spec.scale == "none":
        codes = np.where(nan, 2 ** (spec.width - 1) - 1, codes)
    return Encoded(codes, scales, zeros, levels, shape, axis % max(len(shape), 1), dtype)


def decode(encoded: Encoded, text: str) -> np.ndarray:
    """float32 values in x's own layout, rounded to the logical dtype; any code is read, also ones no encoder writes."""
    spec = parse(text)
    layout = encoded.codes.shape or (1,)
    # Blocks are padded with code 0 by way of NaN.
    padded = _split(encoded.codes.reshape(layout).astype(float), spec)
    groups = np.nan_to_num(padded, nan=0.0).astype(np.int64)
    if spec.family == "binary":
        values = np.take_along_axis(signed_sums(_binary_levels(spec, encoded.scales)), groups, -1).astype(float)
    else:
        if spec.family == "uint":
            groups = groups - encoded.zeros[..., None]
            values = groups.astype(float)
        else:
            values = code_values(spec, groups)
        values = values * scale_values(spec, encoded.scales, encoded.levels)[..., None]
        if spec.family in ("fullrange", "affine"):
            values = values + offset_values(spec, encoded.scales)[..., None]  # a zero has no sign
    values = to_dtype(_join(values, layout, spec).reshape(encoded.codes.shape), encoded.dtype)
    return np.moveaxis(values, -1, encoded.axis) if values.ndim else values


def quantize(x: np.ndarray, text: str, **options) -> np.ndarray:
    """decode(encode(x)), with NaN where x has NaN."""
    encoded = encode(x, text, **options)
    return np.where(np.isnan(x), np.float32(np.nan), decode(encoded, text))


def in_range(x: np.ndarray, text: str, **options) -> np.ndarray:
    """Mask of the clipped straight-through gradient: lowest <= x <= highest value, given the scale (sections 4 and 6).

    The bounds are exact products. Infinities count as the dtype's largest value; NaN is outside. Scaled binary, and
    formats whose scale was chosen from the largest magnitude, are inside everywhere else.
    """
    spec = parse(text)
    encoded = encode(x, text, **options)
    moved = _prepare(x, encoded.axis, encoded.dtype)
    layout = moved.shape or (1,)
    chosen = options.get("scales") is None
    if spec.family == "binary":
        inside = ~np.isnan(moved) if spec.scale != "none" else np.abs(moved) <= 1
    elif chosen and (spec.family in ("int", "uint", "affine", "nf") or options.get("rule") == "ceil"):
        inside = ~np.isnan(moved)
    else:
        groups = _split(moved.reshape(layout), spec).astype(float)
        scale = scale_values(spec, encoded.scales, encoded.levels)
        lowest, highest = _bounds(spec)
        if encoded.zeros is not None:
            lowest, highest = lowest - encoded.zeros, highest - encoded.zeros
        offset = offset_values(spec, encoded.scales)
        ends = [np.broadcast_to(end * scale + offset, scale.shape) for end in (lowest, highest)]
        low, high = np.minimum(*ends), np.maximum(*ends)
        inside = (low[..., None] <= groups) & (groups <= high[..., None])
        inside = _join(inside, layout, spec).reshape(moved.shape)
    return np.moveaxis(inside, -1, encoded.axis) if inside.ndim else inside


def _bounds(spec: Spec) -> tuple[float, float]:
    """Lowest and highest value at scale 1."""
    if spec.family == "ieee" and spec.width == 32:
        return -F32_MAX, F32_MAX
    if spec.width > 20:
        low, high = (
            (0, 2**spec.width - 1) if spec.family == "ufixed" else (-(2 ** (spec.width - 1)), 2 ** (spec.width - 1) - 1)
        )
        return low * _fixed_step(spec), high * _fixed_step(spec)
    values = table(spec).values
    return values[0], values[-1]


# ---------------------------------------------------------------------------------------------------------- bits, bytes


def pack_bits(codes: np.ndarray, width: int) -> np.ndarray:
    """Little-endian bit stream of each row: uint8 ``[..., ceil(K * width / 8)]`` (section 5)."""
    codes = np.asarray(codes, np.int64)
    bits = (codes[..., None] >> np.arange(width)) & 1
    return np.packbits(bits.reshape(*codes.shape[:-1], -1).astype(np.uint8), axis=-1, bitorder="little")


def unpack_bits(packed: np.ndarray, width: int, length: int) -> np.ndarray:
    """Undo ``pack_bits``; ``length`` is K. Result int64 ``[..., K]``."""
    bits = np.unpackbits(packed, axis=-1, count=length * width, bitorder="little").astype(np.int64)
    return np.sum(bits.reshape(*packed.shape[:-1], length, width) << np.arange(width), axis=-1)


def bits_per_element(text: str, length: int) -> float:
    """Bits for one element, scales included, of a row of ``length`` elements (for ``:tensor``: a tensor of that many).

    Counts whole scales of the last, short block; neither the padding of a row to bytes nor nvfp4's one tensor scale.
    """
    spec = parse(text)
    each = {"none": 0, "F": 8, "float32": 32, "float16": 16, "e8m0": 8, "e4m3": 8}[spec.scale]
    each = each * spec.levels + (spec.width if spec.family == "uint" else 0)
    count = -(-length // spec.block) if spec.scope == "block" else 1
    return spec.width + each * count / length


# ------------------------------------------------------------------------------------------------------------- examples

_EXAMPLE_LINES = (
    "fp32 fp16 bf16",
    "fixed8.4 fixed8.-2 fixed2.0 fixed5.9 fixed16.8 fixed17.3 fixed24.12 fixed25.20 fixed32.16 fixed12.140",
    "ufixed8.8 ufixed6.3 ufixed16.-3 ufixed32.30",
    "fixed8 fixed8:channel fixed8:mse fixed8:channel,mse fixed4 fixed16 fixed32:channel",
    "ufixed8 ufixed5:channel ufixed8:mse",
    "int8 int4 int2 int3:channel int8:channel int16 int2:g3 int4:g32 int5:g7 int8:g128 int16:g32",
    "int4:g32,full int5:g7,full int2:g64,full int8:g32,full int3:g3,full",
    "uint4:g32,offset uint5:g32,offset uint2:g5,offset uint8:g64,offset",
    "uint8 uint4 uint2 uint8:channel uint3:channel uint4:g32 uint7:g5 uint16:g64 uint16",
    "e4m3 e5m2 e4m3:finite e5m2:finite e3m2 e2m3 e2m1 e1m3 e1m0 e3m0 e8m0",
    "e4m3b11 e5m2b16 e2m1b-3 e3m4 e1m10 e5m10 e8m7 e8m10",
    "denorm8e4 denorm8e4b9 denorm4e2 denorm3e1 denorm6e2 denorm9e3 denorm16e8 denorm12e5b-2",
    "log8 log4 log2 log5b3 log9 log6b-4",
    "binary binary:unit binary:channel binary2 binary2:channel binary3 binary4 binary4:channel",
    "ternary ternary:unit ternary:channel",
    "bfp8/16 bfp2/5 bfp4/32 bfp6/7 bfp12/64 bfp16/8",
    "bm8e4/16 bm4e2/32 bm6e5/7 bm5e4/8 bm8e1/32 bm16e8/16 bm13e2/9",
    "blog5/8 blog8/16 blog2/4 blog9/32 blog3/11",
    "mxint8 mxint4 mxint2 mxint6/16 mxint5/7 mxint8/1 mxint12 mxint16/64",
    "mxfp8e4m3 mxfp8e5m2 mxfp6e3m2 mxfp6e2m3 mxfp4 mxfp8e4m3/16 mxfp8e5m2/5 mxfp6e3m2/8 mxfp6e2m3/64 mxfp4/12",
    "nvfp4 nvfp4/8 nvfp4/5",
    "nf4 nf4/16 nf4/7 nf3/64 nf3/32",
)
EXAMPLES = [text for line in _EXAMPLE_LINES for text in line.split()]
