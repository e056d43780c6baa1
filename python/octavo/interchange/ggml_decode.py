"""Decoding of ggml's blocks to float32, equal to ggml to the bit; the zeros of either sign are one.

Products and sums are rounded one by one to float32, from left to right, as ggml's reference does.
Source: ggml, ``ggml-common.h`` (fields of the blocks) and ``ggml-quants.c``, the functions ``dequantize_row_*``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from octavo.errors import DTypeError, FormatError, ShapeError
from octavo.interchange.ggml_types import GgmlType

_Decoder: TypeAlias = Callable[[Tensor], Tensor]
# Elements decoded at once: the float32 values and codes of a chunk stay in a core's L2 cache.
_CHUNK = 1 << 17

_IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def decode(data: Tensor, kind: GgmlType) -> Tensor:
    """Return the values of rows of blocks.

    NVFP4 files may have another factor for a whole tensor, which is not applied here.

    Args:
        data: uint8, ``[rows, bytes of a row]``.
        kind: type of the blocks.

    Returns:
        float32, ``[rows, elements of a row]``.

    Raises:
        FormatError: for a type without a definition here; names it.
        DTypeError: for data that is not uint8.
        ShapeError: for rows that are not whole blocks.
    """
    decoder = decoder_of(kind)
    if data.dtype != torch.uint8:
        raise DTypeError(f"{kind.name}: data has dtype {data.dtype}; accepted is uint8")
    if data.ndim != 2 or data.shape[1] % kind.nbytes:
        raise ShapeError(
            f"{kind.name}: data has shape {tuple(data.shape)}; accepted are rows of blocks of {kind.nbytes} bytes"
        )
    out = torch.empty(data.shape[0], data.shape[1] // kind.nbytes * kind.elements)
    blocks, values = data.reshape(-1, kind.nbytes), out.view(-1, kind.elements)
    step = max(_CHUNK // kind.elements, 1)
    for start in range(0, len(blocks), step):
        values[start : start + step] = decoder(blocks[start : start + step].clone())
    return out


def decoder_of(kind: GgmlType) -> _Decoder:
    """Return the function that decodes ``[blocks, bytes]``. Raises FormatError for a type without a definition."""
    if kind.name not in DECODERS:
        raise FormatError(f"no definition of blocks of {kind.name}; decoded are {', '.join(DECODERS)}")
    return DECODERS[kind.name]


def half(blocks: Tensor, at: int) -> Tensor:
    """Return the float16 at byte ``at`` of each block, ``[blocks, 1]`` in float32."""
    return blocks[:, at : at + 2].contiguous().view(torch.float16).float()


def nibbles(packed: Tensor) -> Tensor:
    """Return codes of 4 bits: all low halves of ``[..., bytes]``, then all high ones."""
    return torch.cat([packed & 15, packed >> 4], -1)


def pairs(packed: Tensor) -> Tensor:
    """Return codes of 2 bits of ``[..., bytes]``: the lowest of all bytes, then those above, ``[..., 4, bytes]``."""
    return torch.stack([packed & 3, packed >> 2 & 3, packed >> 4 & 3, packed >> 6], -2)


def bits(packed: Tensor) -> Tensor:
    """Return the bits of ``[..., bytes]``, from the lowest of each, ``[..., bytes, 8]``."""
    return torch.stack([packed >> bit & 1 for bit in range(8)], -1)


def codes5(high: Tensor, low: Tensor) -> Tensor:
    """Return codes of 5 bits: the high bit of element ``i`` is bit ``i`` of ``high``."""
    return nibbles(low) | bits(high).flatten(1) << 4


def ternary_digits(blocks: Tensor) -> Tensor:
    """Return the codes 0, 1, 2 of TQ1_0, ``[blocks, 256]``: five digits of base 3 in a byte, the first on top."""
    parts = []
    for begin, end, digits in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        packed = blocks[:, begin:end]
        for digit in range(digits):
            parts.append(((packed * 3**digit).to(torch.int16) * 3 >> 8).to(torch.uint8))  # bytes wrap
    return torch.cat(parts, 1)


def two_bits(packed: Tensor) -> Tensor:
    """Return the codes of TQ2_0, Q2_K and Q3_K, ``[blocks, 256]``: two halves of 32 bytes."""
    return pairs(packed.unflatten(1, (2, 32))).flatten(1)


def e4m3_scales(codes: Tensor) -> Tensor:
    """Return the scales of NVFP4, without sign; 0x7F is 0."""
    return _table(_E4M3, codes)


def _table(values: list[float] | tuple[int, ...], codes: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)[codes.int()]


def _e4m3(code: int) -> float:
    exponent, fraction = code >> 3 & 15, code & 7
    if code == 0x7F:
        return 0.0
    return fraction * 2.0**-9 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7)


_E4M3 = [_e4m3(code) for code in range(256)]


def _q8_0(blocks: Tensor) -> Tensor:
    return blocks[:, 2:].view(torch.int8) * half(blocks, 0)


def _q4_0(blocks: Tensor) -> Tensor:
    return (nibbles(blocks[:, 2:]).float() - 8) * half(blocks, 0)


def _q4_1(blocks: Tensor) -> Tensor:
    return nibbles(blocks[:, 4:]) * half(blocks, 0) + half(blocks, 2)


def _q5_0(blocks: Tensor) -> Tensor:
    return (codes5(blocks[:, 2:6], blocks[:, 6:]).float() - 16) * half(blocks, 0)


def _q5_1(blocks: Tensor) -> Tensor:
    return codes5(blocks[:, 4:8], blocks[:, 8:]) * half(blocks, 0) + half(blocks, 2)


def _iq4_nl(blocks: Tensor) -> Tensor:
    return half(blocks, 0) * _table(_IQ4_NL, nibbles(blocks[:, 2:]))


def _mxfp4(blocks: Tensor) -> Tensor:
    exponent = blocks[:, :1].int()  # of twice the scale's half, which is subnormal at 0 and 1
    scale = torch.where(exponent < 2, 0x0020_0000 << exponent.clamp(max=1), (exponent - 1) << 23).view(torch.float32)
    return scale * _table(_E2M1_DOUBLED, nibbles(blocks[:, 1:]))


def _nvfp4(blocks: Tensor) -> Tensor:
    scale = (e4m3_scales(blocks[:, :4]) / 2).unsqueeze(2)
    return (scale * _table(_E2M1_DOUBLED, nibbles(blocks[:, 4:].unflatten(1, (4, 8))))).flatten(1)


def _q2_k(blocks: Tensor) -> Tensor:
    scales = blocks[:, :16]
    step, least = half(blocks, 80) * (scales & 15), half(blocks, 82) * (scales >> 4)
    codes = two_bits(blocks[:, 16:80]).unflatten(1, (16, 16))
    return (step.unsqueeze(2) * codes - least.unsqueeze(2)).flatten(1)


def _q3_k(blocks: Tensor) -> Tensor:
    packed = blocks[:, 96:108]
    scales = nibbles(packed[:, :8]) | pairs(packed[:, 8:]).flatten(1) << 4
    step = half(blocks, 108) * (scales.float() - 32)
    has_high = bits(blocks[:, :32]).transpose(1, 2).flatten(1)  # of 0, 4 is taken off
    codes = two_bits(blocks[:, 32:96]).float() - 4 * (1 - has_high.float())
    return (step.unsqueeze(2) * codes.unflatten(1, (16, 16))).flatten(1)


def _k_scales(packed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eight scales and minima of 6 bits in 12 bytes."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat([first & 63, third & 15 | first >> 2 & 0x30], 1)
    return scales, torch.cat([second & 63, third >> 4 | second >> 2 & 0x30], 1)


def _k_with_minimum(blocks: Tensor, codes: Tensor) -> Tensor:
    scales, minima = _k_scales(blocks[:, 4:16])
    step, least = half(blocks, 0) * scales, half(blocks, 2) * minima
    return (step.unsqueeze(2) * codes - least.unsqueeze(2)).flatten(1)


def _q4_k(blocks: Tensor) -> Tensor:
    return _k_with_minimum(blocks, nibbles(blocks[:, 16:].unflatten(1, (4, 32))).reshape(-1, 8, 32))


def _q5_k(blocks: Tensor) -> Tensor:
    low = nibbles(blocks[:, 48:].unflatten(1, (4, 32))).reshape(-1, 8, 32)
    return _k_with_minimum(blocks, low | bits(blocks[:, 16:48]).transpose(1, 2) << 4)


def _q6_k(blocks: Tensor) -> Tensor:
    low = nibbles(blocks[:, :128].unflatten(1, (2, 64))).flatten(1)
    codes = (low | two_bits(blocks[:, 128:192]) << 4).float() - 32
    step = half(blocks, 208) * blocks[:, 192:208].view(torch.int8)
    return (step.unsqueeze(2) * codes.unflatten(1, (16, 16))).flatten(1)


def _tq1_0(blocks: Tensor) -> Tensor:
    return half(blocks, 52) * (ternary_digits(blocks).float() - 1)


def _tq2_0(blocks: Tensor) -> Tensor:
    return half(blocks, 64) * (two_bits(blocks[:, :64]).float() - 1)


def _q1_0(blocks: Tensor) -> Tensor:
    scale = half(blocks, 0)
    return torch.where(bits(blocks[:, 2:]).flatten(1) == 1, scale, -scale)


def _q2_0(blocks: Tensor) -> Tensor:
    return (pairs(blocks[:, 2:]).transpose(1, 2).flatten(1).float() - 1) * half(blocks, 0)


DECODERS: dict[str, _Decoder] = {
    "F32": lambda blocks: blocks.view(torch.float32),
    "F16": lambda blocks: blocks.view(torch.float16).float(),
    "BF16": lambda blocks: blocks.view(torch.bfloat16).float(),
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "IQ4_NL": _iq4_nl,
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
    "Q1_0": _q1_0,
    "Q2_0": _q2_0,
}
"""Decoders of blocks, ``[blocks, bytes]`` to float32 ``[blocks, elements]``, by the names of their types."""
