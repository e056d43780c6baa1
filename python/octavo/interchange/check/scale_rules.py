"""Rules of scales of blocks: their bits, their signs, and zero scales over codes that are not zero."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.interchange.check.decode_layers import floats_of, is_ordered
from octavo.interchange.check.findings import PLACES, ByteEdit, Findings, rule
from octavo.interchange.check.scan import bits_of, places, sample
from octavo.interchange.check.source import ITEMS, PackedEntry, Raw
from octavo.interchange.check.stated_settings import Settings
from octavo.interchange.check.stored_layers import (
    AWQ,
    BNB4,
    E2M1_LAYOUTS,
    FLOATS,
    FP8,
    FP8_BLOCKS,
    GGML,
    GPT_OSS,
    GPTQ,
    INT8,
    MODELOPT_NVFP4,
    MXFP4,
    NVFP4,
    OCTAVO,
    WORDS,
    Layer,
    Model,
)

NAN = rule(
    "scale-nan", "error",
    "a scale is NaN or infinite (E4M3 0x7F or 0xFF, E8M0 255, floats)",
    "GPU kernels turn the block and every output of its row into NaN; ggml refuses the file, or reads 0",
    "export again with scales that saturate; over a block of zeros, --fix makes the scale 0",
)  # fmt: skip
ZERO = rule(
    "scale-zero", "error",
    "a scale is zero over a block whose codes are not zero",
    "every reader decodes the block to zeros",
    "export the layer again; the scale was below the smallest number of its type",
)  # fmt: skip
RANGE = rule(
    "scale-range", "error",
    "a scale is beyond the format that readers store it in: above 448 for E4M3, codes 253 and 254 of E8M0 for ggml",
    "the cast to E4M3 makes NaN, or the product overflows",
    "export again with a global scale of absmax / (6 * 448)",
)  # fmt: skip
NEGATIVE = rule(
    "scale-negative", "warning",
    "a scale is negative in a format whose scales have no sign",
    "ggml ignores the sign of NVFP4 scales, other readers use it: the block changes sign between readers",
    "export the layer again; sound writers make no such scale",
)  # fmt: skip
SPREAD = rule(
    "scale-spread", "suspect",
    "the scales of a tensor span more than 2^40, the outer tenth left out",
    "memory that was never filled reads so; every reader computes with it",
    "compare with the original: --base FOLDER",
)  # fmt: skip
SATURATED = rule(
    "blocks-saturated", "suspect",
    "blocks whose E4M3 scale is the largest, 448, consist of the largest codes: their values were cut off",
    "every reader decodes values that are too small; the global scale was too small for the tensor",
    "export again with a global scale of the tensor's own absmax; compare with the original: --base FOLDER",
)  # fmt: skip
VANISHED = rule(
    "blocks-vanished", "suspect",
    "more than a tenth of the E4M3 scales of a layer are 0 or the smallest number, over blocks of zeros or nearly so",
    "every reader decodes the blocks to zeros: the global scale was too large for them",
    "export again with a global scale of the tensor's own absmax; compare with the original: --base FOLDER",
)  # fmt: skip
_MOST_RATIO = 40  # binades between the 5th and the 95th percentile of scales
_BLOCKS_AT_ONCE = 1 << 14
_NVFP4_BLOCK, _LARGEST_E4M3 = 16, 0x7E
_MOST_LARGEST, _LEAST_SATURATED = 12, 4  # codes of a block, and blocks of a tensor
# Scales of our formats as dtypes; int8 of calibrated `fixedW` is always finite.
_OCTAVO_SCALES = {"e8m0": "F8_E8M0", "e4m3": "F8_E4M3", "float32": "F32", "float16": "F16"}
# Where the float16 scales of a group of 256 are, in the bytes of its scales (FORMATS.md section 3).
_NESTED_HALVES = {"q2_k": (16, 18), "q3_k": (12,), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (16,)}


def check_scales(layer: Layer, model: Model, settings: Settings, findings: Findings) -> None:
    """Check the scales of a layer that is not broken."""
    if layer.layout == OCTAVO:
        _check_octavo(layer, model, findings)
    elif layer.layout != GGML:
        _check_grid(layer, settings, findings)


def _scale_dtype(layer: Layer, raw: Raw) -> str | None:
    """Return as which dtype scales are read; None where their bits cannot be wrong."""
    if raw.dtype in ("U8", "F8_E8M0"):
        return None if layer.layout == BNB4 else "F8_E8M0"
    return raw.dtype if raw.dtype in (*FLOATS, "F8_E4M3", "F8_E5M2") else None


def _check_grid(layer: Layer, settings: Settings, findings: Findings) -> None:
    raw = layer.scales
    if raw is None:
        return
    if layer.layout == BNB4 and raw.dtype == "U8":
        raw = layer.parts["nested_absmax"]
    dtype = _scale_dtype(layer, raw)
    if dtype is None:
        return
    turned = layer.layout in (GPTQ, AWQ)
    blocks = raw.shape[-1] if raw.shape else 1
    bits = bits_of(raw, dtype)
    words = raw.words()
    if bits.nan or bits.infinite:
        assert bits.wrong is not None
        texts = [f"0x{int(words[one]):0{2 * raw.itemsize}X}" for one in bits.wrong]
        findings.add(
            NAN,
            layer.name,
            f"{bits.nan + bits.infinite} of {raw.elements} scales ({dtype}) are not finite",
            file=raw.file.name,
            places=places(raw, bits.wrong, blocks, texts, turned=turned),
            count=bits.nan + bits.infinite,
            edits=_zero_edits(layer, raw, dtype),
        )
    if dtype != "F8_E8M0":
        sign = words.dtype.type(1 << 8 * raw.itemsize - 1)
        if layer.layout in (NVFP4, MODELOPT_NVFP4, BNB4, INT8, FP8, FP8_BLOCKS, GPTQ, AWQ, WORDS):
            _check_signs(layer, raw, sign, blocks, turned, findings)
        if bits.smallest == 0:
            _check_zero(layer, raw, words & ~sign == 0, blocks, turned, findings)
        if layer.layout in (NVFP4, MODELOPT_NVFP4) and dtype == "F8_E4M3" and layer.group == _NVFP4_BLOCK:
            _check_saturated(layer, raw, blocks, findings)
        if dtype == "F8_E4M3" and (small := int((words & 0x7F <= 1).sum())) * 10 > raw.elements:
            findings.add(VANISHED, layer.name, f"{small} of {raw.elements} scales", file=raw.file.name, count=small)
        if dtype in FLOATS:
            _check_width(layer, raw, settings, blocks, findings)
    _check_spread(layer, raw, dtype, findings)


def _check_signs(layer: Layer, raw: Raw, sign: Any, blocks: int, turned: bool, findings: Findings) -> None:
    words = raw.words()
    if int(words.max()) <= int(sign):  # the sign is the highest bit; negative zero is none
        return
    negative = np.flatnonzero(words > sign)
    values = floats_of(raw)[negative[:PLACES]]
    if np.isnan(values).all():
        return
    findings.add(
        NEGATIVE,
        layer.name,
        f"{len(negative)} of {raw.elements} scales are negative",
        file=raw.file.name,
        places=places(
            raw, [int(one) for one in negative[:PLACES]], blocks, [f"{one:g}" for one in values], turned=turned
        ),
        count=len(negative),
    )


def _check_zero(layer: Layer, raw: Raw, zero: NDArray[np.bool_], blocks: int, turned: bool, findings: Findings) -> None:
    positions = np.flatnonzero(zero)
    wrong = [positions[:0]]
    for start in range(0, len(positions), _BLOCKS_AT_ONCE):
        part = positions[start : start + _BLOCKS_AT_ONCE]
        wrong.append(part[_not_zero(layer, part)])
    filled = np.concatenate(wrong)
    if len(filled):
        findings.add(
            ZERO,
            layer.name,
            f"{len(filled)} of {raw.elements} scales are zero over codes that are not",
            file=raw.file.name,
            count=len(filled),
            places=places(
                raw, [int(one) for one in filled[:PLACES]], blocks, ["0"] * min(len(filled), PLACES), turned=turned
            ),
        )


def _not_zero(layer: Layer, positions: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which of the blocks of some scales have codes that are not zero; False where the layout does not tell."""
    none = np.zeros(len(positions), bool)
    codes = layer.codes
    if layer.layout in E2M1_LAYOUTS and layer.group % 2 == 0:
        blocks = codes.data().reshape(-1, layer.group // 2)
        return (blocks[positions] & 0x77).any(1)
    if layer.layout == WORDS and layer.bits in (2, 4, 8) and layer.dense and layer.group * layer.bits % 8 == 0:
        if layer.columns * layer.bits % 32 or layer.parts["scales"].elements == 1 or not is_ordered(layer):
            return none
        blocks = codes.data().reshape(-1, layer.group * layer.bits // 8)[positions]
        if "zeros" in layer.parts:
            return (blocks != blocks[:, :1]).any(1)
        return (blocks != {2: 0xAA, 4: 0x88, 8: 0x80}[layer.bits]).any(1)
    if (
        layer.layout in (FP8, INT8)
        and layer.scales is not None
        and layer.scales.elements == layer.rows
        and "zeros" not in layer.parts
    ):
        mask = 0x7F if layer.layout == FP8 else 0xFF
        rows = codes.data().reshape(layer.rows, -1)
        return np.array([bool((rows[one] & mask).any()) for one in positions], bool)
    if layer.layout in (GPTQ, AWQ) and is_ordered(layer):
        return _not_zero_words(layer, positions)
    return none


def _not_zero_words(layer: Layer, positions: NDArray[Any]) -> NDArray[np.bool_]:
    """Of GPTQ and AWQ: whether the codes of a group are not all the same."""
    raw = layer.parts["qweight"]
    words = raw.words().reshape(raw.shape)
    odd = np.zeros(len(positions), bool)
    if layer.bits == 3:
        return odd
    groups, rows = np.divmod(positions, layer.rows)
    for group in np.unique(groups):
        mine = np.flatnonzero(groups == group)
        first, last = int(group) * layer.group, min((int(group) + 1) * layer.group, layer.columns)
        if layer.layout == AWQ:
            shifts = np.array([0, 16, 4, 20, 8, 24, 12, 28], np.uint32)[rows[mine] % 8]
            codes = words[first:last, rows[mine] // 8] >> shifts & np.uint32(15)
            odd[mine] = (codes != codes[0]).any(0)
        else:
            a_word = 32 // layer.bits
            part = words[first // a_word : last // a_word, rows[mine]]
            repeated = np.uint32(sum(1 << layer.bits * one for one in range(a_word)))
            if len(part):
                odd[mine] = (part != (part[0] & np.uint32((1 << layer.bits) - 1)) * repeated).any(0)
    return odd


def _zero_edits(layer: Layer, raw: Raw, dtype: str) -> tuple[ByteEdit, ...]:
    """Return the edits that make scales 0 whose blocks are all zeros; none where one NaN is over another block."""
    if dtype not in ("F8_E4M3", "F8_E8M0") or layer.layout not in (NVFP4, MODELOPT_NVFP4, MXFP4, GPT_OSS):
        return ()
    words = raw.words()
    odd = np.flatnonzero(words & 0x7F == 0x7F) if dtype == "F8_E4M3" else np.flatnonzero(words == 255)
    if len(odd) > 1 << 16 or any(
        _not_zero(layer, odd[start : start + _BLOCKS_AT_ONCE]).any() for start in range(0, len(odd), _BLOCKS_AT_ONCE)
    ):
        return ()
    return tuple(ByteEdit(raw.file, raw.offset + int(one), b"\0") for one in odd)


def _check_saturated(layer: Layer, raw: Raw, blocks: int, findings: Findings) -> None:
    """Count blocks at the largest scale, most of whose codes are the largest: of a sound block one or two are."""
    positions = np.flatnonzero(raw.words() == _LARGEST_E4M3)[: 1 << 16]
    codes = layer.codes.data().reshape(-1, _NVFP4_BLOCK // 2)[positions]
    largest = (codes & 0x07 == 0x07).sum(1) + (codes & 0x70 == 0x70).sum(1)
    cut = positions[largest >= _MOST_LARGEST]
    if len(cut) >= _LEAST_SATURATED:
        findings.add(
            SATURATED,
            layer.name,
            f"{len(cut)} of {raw.elements} blocks",
            file=raw.file.name,
            places=places(raw, [int(one) for one in cut[:PLACES]], blocks, ["448"] * PLACES),
            count=len(cut),
        )


def _check_width(layer: Layer, raw: Raw, settings: Settings, blocks: int, findings: Findings) -> None:
    """Find scales in wide floats that the stated dtype cannot hold."""
    group = settings.group_of(layer.module) if layer.layout in (NVFP4, MODELOPT_NVFP4) else None
    stated = "" if group is None else str(group.weights.get("scale_dtype"))
    if layer.layout != MODELOPT_NVFP4 and "e4m3" not in stated:
        return
    values = floats_of(raw)
    wrong = np.flatnonzero(np.abs(values) > 448)
    if len(wrong):
        findings.add(
            RANGE,
            layer.name,
            f"{len(wrong)} of {raw.elements} scales are above 448 ({raw.dtype})",
            file=raw.file.name,
            places=places(
                raw, [int(one) for one in wrong[:PLACES]], blocks, [f"{values[one]:g}" for one in wrong[:PLACES]]
            ),
            count=len(wrong),
        )


def _check_spread(layer: Layer, raw: Raw, dtype: str, findings: Findings) -> None:
    if raw.elements < 64 or dtype == "F8_E4M3" or findings.of(NAN, layer.name):
        return
    from octavo.interchange.check.decode_layers import float_values

    values = np.abs(float_values(sample(raw.words()), dtype))
    values = values[values > 0]
    if len(values) < 64:
        return
    low, high = np.quantile(np.log2(values.astype(np.float64)), (0.05, 0.95))
    if high - low > _MOST_RATIO:
        findings.add(
            SPREAD, layer.name, f"5% of the scales are below 2^{low:.0f}, 5% above 2^{high:.0f}", file=raw.file.name
        )


def _check_octavo(layer: Layer, model: Model, findings: Findings) -> None:
    entry = model.source.packed[layer.name]
    for scales, groups, step in _octavo_scales(layer, entry):
        bits = bits_of(scales)
        if bits.nan or bits.infinite:
            assert bits.wrong is not None
            words = scales.words()
            texts = [f"0x{int(words[one]):0{2 * scales.itemsize}X}" for one in bits.wrong]
            findings.add(
                NAN,
                layer.name,
                f"{bits.nan + bits.infinite} of {scales.elements} scales of {entry.format} are not finite",
                file=scales.file.name,
                places=places(scales, bits.wrong, groups, texts, step=step),
                count=bits.nan + bits.infinite,
            )


def _octavo_scales(layer: Layer, entry: PackedEntry) -> Iterator[tuple[Raw, int, int]]:
    """Yield the scales of a packed tensor, their number in a row, and the bytes from one to the next.

    Where groups have several scales, those at the same place of each group come together.
    """
    from octavo.tensors.formats import core
    from octavo.tensors.packed_tensor import part_specs

    format = core(entry.format)
    shape = next(part for name, _, part in part_specs(format, entry.shape, entry.axis) if name == "scales")
    parts = []
    if format.scale_type == "nested":
        parts.append(("scales", "F16", shape[-2], shape[-1], _NESTED_HALVES[entry.format]))
    elif dtype := _OCTAVO_SCALES.get(str(format.scale_type)):
        size, count = ITEMS[dtype], format.scales_per_group
        parts.append(
            ("scales", dtype, shape[-2 if count > 1 else -1], size * count, tuple(range(0, size * count, size)))
        )
    if format.has_levels:
        parts.append(("levels", "F32", 1, ITEMS["F32"], (0,)))
    for part, dtype, groups, step, offsets in parts:
        raw = layer.parts[part]
        data = raw.data().reshape(-1, step)
        for at in offsets:
            own = np.ascontiguousarray(data[:, at : at + ITEMS[dtype]]).reshape(-1)
            yield (
                replace(raw, dtype=dtype, shape=(len(data),), offset=raw.offset + at, load=partial(_itself, own)),
                groups,
                step,
            )


def _itself(data: NDArray[Any]) -> NDArray[Any]:
    return data
