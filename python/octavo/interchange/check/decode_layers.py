"""Values of quantised layers, some rows at a time, as float32. The definitions are those of the formats' own readers.

A layer must not be broken: its sizes were compared by :mod:`octavo.interchange.check.shape_rules`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.errors import ContainerError
from octavo.interchange.check.source import Bytes, Raw, Source
from octavo.interchange.check.stated_settings import Settings
from octavo.interchange.check.stored_layers import (
    AWQ,
    BNB4,
    BNB8,
    FP8,
    FP8_BLOCKS,
    GGML,
    GPT_OSS,
    GPTQ,
    INT8,
    MODELOPT_NVFP4,
    MXFP4,
    MXFP6,
    MXFP8,
    NVFP4,
    OCTAVO,
    PLAIN,
    WORDS,
    Layer,
)
from octavo.storage.reading import parse_json

Floats = NDArray[np.float32]

_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
E2M1_PAIRS = np.stack([_E2M1[np.arange(256) & 15], _E2M1[np.arange(256) >> 4]], 1)
"""The two values of a byte."""
_AWQ_ORDER = np.array([0, 4, 1, 5, 2, 6, 3, 7])  # nibble of column 8c + i in word c


def _small_float(codes: NDArray[Any], exponent_bits: int, fraction_bits: int, bias: int) -> Floats:
    sign = np.where(codes >> (exponent_bits + fraction_bits) & 1, -1.0, 1.0)
    exponent = codes >> fraction_bits & ((1 << exponent_bits) - 1)
    fraction = (codes & ((1 << fraction_bits) - 1)) / (1 << fraction_bits)
    value = np.where(exponent == 0, fraction * 2.0 ** (1 - bias), (1 + fraction) * 2.0 ** (exponent - bias))
    return (sign * value).astype(np.float32)


E4M3 = _small_float(np.arange(256), 4, 3, 7)
E4M3[[0x7F, 0xFF]] = np.nan
E5M2 = _small_float(np.arange(256), 5, 2, 15)
E5M2[[0x7C, 0xFC]] = np.inf, -np.inf
E5M2[[0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF]] = np.nan
E2M3 = _small_float(np.arange(64), 2, 3, 1)
E8M0 = np.append(np.ldexp(np.float32(1), np.arange(255) - 127), np.nan).astype(np.float32)


def floats_of(raw: Raw, start: int = 0, stop: int | None = None) -> Floats:
    """Return elements of a plain tensor as float32, flat: a copy of those from ``start`` to ``stop``."""
    words = raw.words()[start:stop]
    return float_values(words, raw.dtype)


def float_values(words: NDArray[Any], dtype: str) -> Floats:
    """Return bit patterns of a dtype of safetensors as float32. Raises ContainerError for a dtype without values."""
    words = np.ascontiguousarray(words)
    if dtype == "F32":
        return words.view(np.float32)
    if dtype == "BF16":
        return (words.astype(np.uint32) << 16).view(np.float32)
    if dtype == "F16":
        return words.view(np.float16).astype(np.float32)
    if dtype == "F64":
        with np.errstate(over="ignore"):
            return words.view(np.float64).astype(np.float32)
    if dtype == "F8_E4M3":
        return E4M3[words]
    if dtype == "F8_E5M2":
        return E5M2[words]
    if dtype in ("U8", "F8_E8M0"):
        return E8M0[words]
    if dtype == "I8":
        return words.view(np.int8).astype(np.float32)
    raise ContainerError(f"values of {dtype} are not read; accepted are floats")


def scale_values(layer: Layer) -> Floats:
    """Return all scales, in the order of the file."""
    if "scales" not in layer.unpacked:
        raw = layer.scales
        assert raw is not None
        layer.unpacked["scales"] = floats_of(raw)
    scales: Floats = layer.unpacked["scales"]
    return scales


def rows_of(layer: Layer, source: Source, settings: Settings, start: int, stop: int) -> Floats:
    """Return rows of the weight.

    Args:
        layer: not broken.
        source: of the layer.
        settings: say which zero points GPTQ has.
        start: first row.
        stop: row after the last.

    Returns:
        ``[stop - start, columns]``.
    """
    if layer.layout == PLAIN:
        raw, columns = layer.codes, layer.columns
        return floats_of(raw, start * columns, stop * columns).reshape(stop - start, columns)
    if layer.layout == GGML:
        return _ggml_rows(layer, start, stop)
    if layer.layout == OCTAVO:
        return _octavo_rows(layer, source, start, stop)
    if layer.layout == BNB4:
        return _bnb4_rows(layer, start, stop)
    if layer.layout in (GPTQ, AWQ):
        return _column_words(layer, settings, start, stop)
    if layer.layout == WORDS:
        return _word_rows(layer, start, stop)
    width = layer.codes.nbytes // layer.rows
    codes = layer.codes.data().reshape(layer.rows, width)[start:stop]
    if layer.layout in (NVFP4, MXFP4, MODELOPT_NVFP4, GPT_OSS):
        values = E2M1_PAIRS[codes].reshape(len(codes), -1)
        return _scaled(layer, values, start, stop) * global_factor(layer, start, stop)
    if layer.layout in (FP8, MXFP8, FP8_BLOCKS):
        values = float_values(codes, layer.codes.dtype)
        if layer.layout != FP8_BLOCKS:
            return _scaled(layer, values, start, stop)
        raw = layer.parts["scales_block"]
        grid = floats_of(raw).reshape(raw.shape)
        scales = grid[np.arange(start, stop) // layer.block_rows]
        return values * np.repeat(scales, layer.group, 1)[:, : layer.columns]
    if layer.layout == MXFP6:
        values = E2M3[stream_codes(np.ascontiguousarray(codes), 6, layer.columns)]
        return _scaled(layer, values, start, stop)
    values = codes.view(np.int8).astype(np.float32)
    if layer.layout == BNB8:
        steps: Floats = floats_of(layer.parts["row_maxima"], start, stop) / np.float32(127)
        return values * steps[:, None]
    assert layer.layout == INT8
    zeros = layer.parts.get("zeros")
    if zeros is not None and zeros.dtype == "I8":
        points = zeros.data().view(np.int8).astype(np.float32).reshape(-1)
        values = values - _spread(points, layer, start, stop)
    return _scaled(layer, values, start, stop)


def global_factor(layer: Layer, start: int, stop: int) -> Floats:
    """Return what rows of an NVFP4 tensor are multiplied by, ``[rows or 1, 1]``: one factor, or one for each expert."""
    raw = layer.factor
    if raw is None:
        return np.ones((1, 1), np.float32)
    factors = floats_of(raw)
    if "divisor" in layer.parts:
        with np.errstate(divide="ignore"):
            factors = np.float32(1) / factors
    if factors.size > 1 and layer.rows % factors.size == 0:
        return factors[np.arange(start, stop) // (layer.rows // factors.size)][:, None]
    return factors[:1].reshape(1, 1)


def _spread(flat: Floats, layer: Layer, start: int, stop: int) -> Floats:
    """Return one number for each element of rows, from one a group, a row, a matrix or the tensor."""
    if flat.size == 1:
        return flat.reshape(1, 1)
    if flat.size < layer.rows:  # experts, a scale each
        return flat[np.arange(start, stop) // (layer.rows // flat.size)][:, None]
    grid = flat.reshape(layer.rows, -1)[start:stop]
    return grid if grid.shape[1] == 1 else np.repeat(grid, layer.group, 1)[:, : layer.columns]


def _scaled(layer: Layer, values: Floats, start: int, stop: int) -> Floats:
    with np.errstate(invalid="ignore", over="ignore"):
        return values * _spread(scale_values(layer), layer, start, stop)


def stream_codes(data: Bytes, bits: int, count: int) -> NDArray[np.uint8]:
    """Return codes of rows of dense little-endian streams, ``[rows, bytes]`` to ``[rows, count]``."""
    import torch

    from octavo.interchange.packed_words import unpack_codes

    rows = np.array(data[:, : -(-count * bits // 8)], order="C")  # torch shares writable memory alone
    codes: NDArray[np.uint8] = unpack_codes(torch.from_numpy(rows), count, bits).numpy()
    return codes


def word_codes(layer: Layer, start: int, stop: int) -> NDArray[np.uint8]:
    """Return codes of rows of compressed-tensors' words, as they are stored: offset by half of their range."""
    packed = layer.parts["packed"]
    rows = packed.data().reshape(layer.rows, -1)[start:stop]
    if layer.dense:
        return stream_codes(np.ascontiguousarray(rows), layer.bits, layer.columns)
    words = np.ascontiguousarray(rows).view("<u4")
    shifts = np.arange(32 // layer.bits, dtype=np.uint32) * layer.bits
    codes = words[:, :, None] >> shifts & np.uint32((1 << layer.bits) - 1)
    return codes.reshape(len(words), -1)[:, : layer.columns].astype(np.uint8)


def _word_rows(layer: Layer, start: int, stop: int) -> Floats:
    codes = word_codes(layer, start, stop).astype(np.float32)
    groups = layer.columns // layer.group
    zeros = layer.parts.get("zeros")
    points = np.full((stop - start, groups), 1 << layer.bits - 1, np.float32)
    if zeros is not None:
        if "zeros" not in layer.unpacked:
            streams = np.ascontiguousarray(zeros.words().reshape(zeros.shape).T).view(np.uint8)
            layer.unpacked["zeros"] = stream_codes(streams, layer.bits, layer.rows)
        points = layer.unpacked["zeros"].T[start:stop].astype(np.float32)
    scales = scale_values(layer)
    grid = (
        np.full((stop - start, groups), scales[0])
        if scales.size == 1
        else scales.reshape(layer.rows, groups)[start:stop]
    )
    if "g_idx" in layer.parts:
        of = layer.parts["g_idx"].words().astype(np.int64).clip(0, groups - 1)
        return (codes - points[:, of]) * grid[:, of]
    return (codes - np.repeat(points, layer.group, 1)) * np.repeat(grid, layer.group, 1)


def gptq_zeros(layer: Layer) -> NDArray[np.uint8]:
    """Return the stored zero points of GPTQ or AWQ, ``[groups, rows]``."""
    if "zeros" not in layer.unpacked:
        raw = layer.parts["qzeros"]
        if layer.layout == AWQ:
            layer.unpacked["zeros"] = _awq_codes(raw.words().reshape(raw.shape))
        else:
            layer.unpacked["zeros"] = stream_codes(raw.data().reshape(raw.shape[0], -1), layer.bits, layer.rows)
    zeros: NDArray[np.uint8] = layer.unpacked["zeros"]
    return zeros


def _awq_codes(words: NDArray[Any]) -> NDArray[np.uint8]:
    shifts = (4 * _AWQ_ORDER).astype(np.uint32)
    return (words[:, :, None] >> shifts & np.uint32(15)).reshape(len(words), -1).astype(np.uint8)


def is_ordered(layer: Layer) -> bool:
    """Whether columns belong to groups in their order."""
    raw = layer.parts.get("g_idx")
    if raw is None:
        return True
    return raw.itemsize >= 4 and bool((raw.words() == np.arange(layer.columns) // layer.group).all())


def is_v2(settings: Settings) -> bool:
    """Whether zero points are stated to be stored as they are, not less one."""
    return settings.table.get("checkpoint_format") == "gptq_v2"


def _column_words(layer: Layer, settings: Settings, start: int, stop: int) -> Floats:
    raw = layer.parts["qweight"]
    words = raw.words().reshape(raw.shape)
    if layer.layout == AWQ:
        first, last = start // 8, -(-stop // 8)
        codes = _awq_codes(words[:, first:last])[:, start - 8 * first : stop - 8 * first].T
        points = gptq_zeros(layer)[:, start:stop].T.astype(np.float32)
    else:
        streams = np.ascontiguousarray(words[:, start:stop].T).view(np.uint8)
        codes = stream_codes(streams, layer.bits, layer.columns)
        points = gptq_zeros(layer)[:, start:stop].T.astype(np.float32) + (0 if is_v2(settings) else 1)
    scales = layer.parts["qscales"]
    grid = float_values(scales.words().reshape(scales.shape)[:, start:stop].T, scales.dtype)
    groups = scales.shape[0]
    g_idx = layer.parts.get("g_idx")
    of = np.arange(layer.columns) // layer.group if g_idx is None else g_idx.words().astype(np.int64)
    of = of.clip(0, groups - 1)
    return (codes.astype(np.float32) - points[:, of]) * grid[:, of]


@dataclass(frozen=True)
class BnbState:
    """The state of a bitsandbytes weight: its sizes, and the blocks of its maxima."""

    rows: int
    columns: int
    block: int
    nested_block: int
    nested_offset: float


def bnb_state(layer: Layer) -> BnbState | None:
    """Return the state of a 4-bit layer; None where it is not readable."""
    data = layer.parts["state"].data().tobytes()
    if len(data) > 1 << 16:
        return None
    try:
        table = parse_json(data.decode("utf-8"), layer.name)
        shape = table["shape"]
        block, nested, offset = table["blocksize"], table.get("nested_blocksize", 256), table.get("nested_offset", 0.0)
    except (ContainerError, UnicodeDecodeError, KeyError):
        return None
    numbers = [*shape, block, nested] if isinstance(shape, list) else [None]
    if not all(isinstance(one, int) and not isinstance(one, bool) and 0 < one < 1 << 40 for one in numbers):
        return None
    if not isinstance(offset, int | float):
        return None
    elements = int(np.prod([float(one) for one in shape])) if len(shape) else 0
    if len(shape) < 1 or elements > 4 * layer.codes.nbytes + 4:
        return None
    return BnbState(elements // shape[-1], shape[-1], block, nested, float(offset))


def bnb_maxima(layer: Layer, start: int, stop: int) -> Floats:
    """Return the largest magnitudes of blocks of a bitsandbytes weight."""
    raw = layer.parts["absmax"]
    if raw.dtype != "U8":
        return floats_of(raw, start, stop)
    state = bnb_state(layer)
    assert state is not None
    codes = raw.data()[start:stop]
    outer = floats_of(layer.parts["nested_absmax"])[np.arange(start, start + len(codes)) // state.nested_block]
    return floats_of(layer.parts["nested_table"])[codes] * outer + np.float32(state.nested_offset)


def _bnb4_rows(layer: Layer, start: int, stop: int) -> Floats:
    first, last = start * layer.columns, stop * layer.columns
    begin, end = first // 2, -(-last // 2)
    codes = layer.codes.data()[begin:end]
    table = floats_of(layer.parts["table"])
    values = table[np.stack([codes >> 4, codes & 15], 1)].reshape(-1)[first - 2 * begin : last - 2 * begin]
    blocks = np.arange(first, last) // layer.group
    maxima = bnb_maxima(layer, int(blocks[0]), int(blocks[-1]) + 1)
    return (values * maxima[blocks - blocks[0]]).reshape(stop - start, layer.columns)


def _ggml_rows(layer: Layer, start: int, stop: int) -> Floats:
    import torch

    from octavo.interchange.ggml_decode import decode
    from octavo.interchange.ggml_types import TYPES

    kind = next(one for one in TYPES.values() if one.name == layer.codes.dtype)
    data = layer.codes.data().reshape(layer.rows, -1)[start:stop]
    values = decode(torch.from_numpy(data), kind).numpy()
    return values * global_factor(layer, start, stop)


def _octavo_rows(layer: Layer, source: Source, start: int, stop: int) -> Floats:
    from octavo.tensors import container

    entry = source.packed[layer.name]
    packed: Any = container.load(entry.file, mmap=True, names=[layer.name])[layer.name]
    whole = packed.decode().float().movedim(entry.axis, -1).reshape(layer.rows, layer.columns)
    return np.asarray(whole[start:stop].numpy(), dtype=np.float32)
