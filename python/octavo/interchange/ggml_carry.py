"""ggml's blocks in formats of ours: the same codes and scales in another order, never decoded and encoded again.

Values are equal to the bit, and the zeros of either sign are one; but ``nvfp4`` multiplies its two scales first, which
moves a value by up to one unit in the last place where a tensor has a factor of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo import _core
from octavo.interchange.ggml_decode import bits, codes5, nibbles, pairs, ternary_digits, two_bits
from octavo.interchange.ggml_types import GgmlType
from octavo.tensors.formats import Format
from octavo.tensors.packed_tensor import PackedTensor

_CHUNK = 1 << 18  # elements whose codes are unpacked at once, four bytes each


class _NotExactError(Exception):
    """Why the blocks of a tensor have no equal in a format."""


@dataclass(frozen=True)
class _Blocks:
    """The blocks of some rows of a tensor, ``[rows, blocks, bytes]``; ``first``: number of the first row."""

    data: Tensor
    first: int

    def codes(self, unpack: Callable[[Tensor], Tensor]) -> Tensor:
        """Return codes of each row in order; ``unpack`` takes ``[blocks, bytes]``."""
        return unpack(self.data.flatten(0, 1)).reshape(len(self.data), -1)

    def half(self, at: int) -> Tensor:
        """Return the float16 at a byte of each block, ``[rows, blocks]``."""
        scales = self.data[..., at : at + 2].contiguous().view(torch.float16).squeeze(-1)
        self.refuse(~scales.isfinite(), lambda place: f"scale {scales[place].item()}")
        return scales

    def refuse(self, wrong: Tensor, reason_of: Callable[[tuple[int, int]], str]) -> None:
        """Refuse the first block that is wrong; ``wrong``: ``[rows, blocks]``."""
        if wrong.any():
            row, block = (int(one) for one in wrong.nonzero()[0])
            raise _NotExactError(f"row {self.first + row}, block {block}: {reason_of((row, block))}")


@dataclass(frozen=True)
class _Parts:
    """Codes of rows, one a byte, their scales as they are stored, and zero points."""

    codes: Tensor
    scales: Tensor
    zeros: Tensor | None = None


_Taken = Callable[[_Blocks], _Parts]


@dataclass(frozen=True)
class Carrier:
    """A format that holds what a type of ggml does, and how the parts are taken from its blocks."""

    format: str
    parts: _Taken


def carry(data: Tensor, kind: GgmlType, shape: tuple[int, ...], factor: float = 1.0) -> PackedTensor | str:
    """Return the tensor in a format of ours, or why none holds it.

    ``data``: uint8, ``[rows, bytes of a row]``. ``factor``: of an NVFP4 tensor, stored beside it.
    """
    carriers = CARRIERS.get(kind.name)
    if carriers is None:
        return NOT_HELD.get(kind.name, "no format holds its blocks")
    carried: PackedTensor | str = ""
    for carrier in carriers:
        carried = _carried(data, kind, shape, factor, carrier)
        if isinstance(carried, PackedTensor):
            break
    return carried


def _carried(
    data: Tensor, kind: GgmlType, shape: tuple[int, ...], factor: float, carrier: Carrier
) -> PackedTensor | str:
    fmt = Format(carrier.format)
    if fmt.core.has_levels and not (math.isfinite(factor) and factor > 0):
        return f"factor of the tensor is {factor}; accepted are finite numbers above 0"
    pieces: list[_Parts] = []
    step = max(_CHUNK // shape[-1], 1) if shape else 1
    blocks = data.unflatten(1, (-1, kind.nbytes))
    try:
        for first in range(0, len(blocks), step):
            parts = carrier.parts(_Blocks(blocks[first : first + step], first))
            points = None if parts.zeros is None else _packed(parts.zeros, fmt.width)
            pieces.append(_Parts(_packed(parts.codes, fmt.width), parts.scales, points))
    except _NotExactError as error:
        return str(error)
    lead = shape[:-1]
    codes = torch.cat([parts.codes for parts in pieces]).reshape(*lead, -1)
    scales = torch.cat([parts.scales for parts in pieces])
    scales = scales.reshape(*lead, *scales.shape[1:])
    zeros = torch.empty(0, dtype=torch.uint8)
    if fmt.core.has_zeros:
        zeros = torch.cat([parts.zeros for parts in pieces if parts.zeros is not None]).reshape(*lead, -1)
    level = torch.tensor([factor] if fmt.core.has_levels else [], dtype=torch.float32)
    return PackedTensor(fmt, codes, scales, zeros, level, shape=shape, dtype=torch.float32)


def _packed(codes: Tensor, width: int) -> Tensor:
    """Return rows of codes, one a byte, as dense streams of ``width`` bits."""
    rows, count = codes.shape
    if width == 8:
        return codes.contiguous()
    out = torch.empty(rows, (count * width + 7) // 8, dtype=torch.uint8)
    wide = codes.to(torch.int32)
    _core._pack(width, rows, count, wide.data_ptr(), out.data_ptr())
    return out


def _q8_0(blocks: _Blocks) -> _Parts:
    scales = blocks.half(0)
    _refuse_signs(blocks, scales)
    return _Parts(blocks.codes(lambda data: data[:, 2:]), scales)


def _signed(unpack: Callable[[Tensor], Tensor], zero: int, width: int, at: int = 0) -> _Taken:
    """Codes counted from ``zero``, in two's complement, under a scale with a sign."""
    mask = (1 << width) - 1
    return lambda blocks: _Parts((blocks.codes(unpack) - zero) & mask, blocks.half(at))


def _turned(unpack: Callable[[Tensor], Tensor], at: int) -> _Taken:
    """Codes 0 to 3 of -1 to 2 under the scale, as 1 to -2 under the scale with the other sign."""
    return lambda blocks: _Parts(1 - blocks.codes(unpack) & 3, -blocks.half(at))


def _offset(unpack: Callable[[Tensor], Tensor]) -> _Taken:
    """Codes times a scale, plus an offset."""
    return lambda blocks: _Parts(blocks.codes(unpack), torch.stack((blocks.half(0), blocks.half(2)), -1))


def _ternary(unpack: Callable[[Tensor], Tensor], at: int) -> _Taken:
    """Codes 0, 1 and 2 of -1, 0 and 1, in two's complement."""

    def parts(blocks: _Blocks) -> _Parts:
        scales = blocks.half(at)
        _refuse_signs(blocks, scales)
        codes = blocks.codes(unpack)
        blocks.refuse(
            (codes == 3).unflatten(1, (scales.shape[1], -1)).any(2), lambda _: "code 3, which is 2 times the scale"
        )
        return _Parts(codes - 1 & 3, scales)

    return parts


def _k_quant(codes: Callable[[Tensor], Tensor], scales: Callable[[Tensor], Tensor], halves: tuple[int, ...]) -> _Taken:
    """Codes, and the bytes that are none, as ggml orders them. ``halves``: where a block's float16 are."""

    def parts(blocks: _Blocks) -> _Parts:
        for at in halves:
            blocks.half(at)  # refuses those that are not finite
        return _Parts(blocks.codes(codes), scales(blocks.data))

    return parts


def _q3_k_codes(data: Tensor) -> Tensor:
    low = bits(data[:, :32]).transpose(1, 2).flatten(1) ^ 1  # 4 is taken off where the bit is 0
    return two_bits(data[:, 32:96]) | low << 2


def _q5_k_codes(data: Tensor) -> Tensor:
    low = nibbles(data[:, 48:].unflatten(1, (4, 32))).reshape(-1, 8, 32)
    return (low | bits(data[:, 16:48]).transpose(1, 2) << 4).flatten(1)


def _q6_k_codes(data: Tensor) -> Tensor:
    low = nibbles(data[:, :128].unflatten(1, (2, 64))).flatten(1)
    return (low | two_bits(data[:, 128:192]) << 4) - 32 & 63


def _refuse_signs(blocks: _Blocks, scales: Tensor) -> None:
    blocks.refuse(scales.signbit(), lambda place: f"scale {scales[place].item()} has a sign")


def _mxfp4(blocks: _Blocks) -> _Parts:
    scales = blocks.data[..., 0].contiguous()
    blocks.refuse(scales >= 253, lambda place: f"scale code {scales[place].item()}; up to 252 both mean the same")
    return _Parts(blocks.codes(lambda data: nibbles(data[:, 1:])), scales)


def _nvfp4(blocks: _Blocks) -> _Parts:
    scales = blocks.data[..., :4].contiguous()
    blocks.refuse(
        (scales >= 0x7F).any(2), lambda place: f"scale codes {scales[place].tolist()}; up to 126 both mean the same"
    )
    return _Parts(blocks.codes(lambda data: nibbles(data[:, 4:].unflatten(1, (4, 8))).flatten(1)), scales.flatten(1))


CARRIERS = {
    "Q8_0": (
        Carrier("int8:g32", _q8_0),
        Carrier("int8:g32,full", _signed(lambda data: data[:, 2:], 0, 8)),
    ),
    "Q4_0": (Carrier("int4:g32,full", _signed(lambda data: nibbles(data[:, 2:]), 8, 4)),),
    "Q4_1": (Carrier("uint4:g32,offset", _offset(lambda data: nibbles(data[:, 4:]))),),
    "Q5_0": (Carrier("int5:g32,full", _signed(lambda data: codes5(data[:, 2:6], data[:, 6:]), 16, 5)),),
    "Q5_1": (Carrier("uint5:g32,offset", _offset(lambda data: codes5(data[:, 4:8], data[:, 8:]))),),
    "Q2_0": (Carrier("int2:g64,full", _turned(lambda data: pairs(data[:, 2:]).transpose(1, 2).flatten(1), 0)),),
    "TQ1_0": (
        Carrier("int2:g256", _ternary(ternary_digits, 52)),
        Carrier("int2:g256,full", _turned(ternary_digits, 52)),
    ),
    "TQ2_0": (
        Carrier("int2:g256", _ternary(lambda data: two_bits(data[:, :64]), 64)),
        Carrier("int2:g256,full", _turned(lambda data: two_bits(data[:, :64]), 64)),
    ),
    "Q2_K": (
        Carrier(
            "q2_k",
            _k_quant(
                lambda data: two_bits(data[:, 16:80]),
                lambda data: torch.cat([data[..., :16], data[..., 80:]], -1),
                (80, 82),
            ),
        ),
    ),
    "Q3_K": (Carrier("q3_k", _k_quant(_q3_k_codes, lambda data: data[..., 96:], (108,))),),
    "Q4_K": (
        Carrier(
            "q4_k",
            _k_quant(
                lambda data: nibbles(data[:, 16:].unflatten(1, (4, 32))).flatten(1), lambda data: data[..., :16], (0, 2)
            ),
        ),
    ),
    "Q5_K": (Carrier("q5_k", _k_quant(_q5_k_codes, lambda data: data[..., :16], (0, 2))),),
    "Q6_K": (Carrier("q6_k", _k_quant(_q6_k_codes, lambda data: data[..., 192:], (208,))),),
    "MXFP4": (Carrier("mxfp4", _mxfp4),),
    "NVFP4": (Carrier("nvfp4", _nvfp4),),
}
"""Formats that hold types of ggml, in the order in which they are tried; scales without signs make faster products.

A format that comes to hold a type of :data:`NOT_HELD` gets its line here.
"""

NOT_HELD = {
    "IQ4_NL": "no format has its code book",
    "Q1_0": "no format has scales of groups for codes of one bit",
}
"""Why no format holds a type of ggml that can be decoded."""

PLAIN = ("F32", "F16", "BF16")
"""Types without blocks."""
