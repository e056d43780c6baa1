"""Blocks of ggml from packed and plain tensors: codes and scales in ggml's order, the inverse of :mod:`ggml_carry`.

Nothing is rounded. A tensor whose codes or scales a type does not hold is refused by :func:`type_for`, with the row and
the group. Source: ggml, ``ggml-common.h`` (fields of the blocks).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.interchange.ggml_types import TYPES, GgmlType
from octavo.interchange.packed_rows import NoTypeError, PackedRows, is_unsigned, rows_of
from octavo.tensors.formats import Format
from octavo.tensors.packed_tensor import PackedTensor

_NAMED = {kind.name: kind for kind in TYPES.values()}
_MXFP4_MOST, _NVFP4_MOST = 252, 126  # scale codes that ggml and FORMATS.md read alike
_SPAN = 32  # elements of a block of all types with integers but the ternary ones
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


# --- codes of bits, the inverses of ggml_decode -----------------------------------------------------------------------


def join_nibbles(codes: Tensor) -> Tensor:
    """Return ``[..., n]`` codes of 4 bits in ``n / 2`` bytes: the first half below the second."""
    low, high = codes.chunk(2, -1)
    return low | high << 4


def join_pairs(codes: Tensor) -> Tensor:
    """Return ``[..., 4, n]`` codes of 2 bits in ``n`` bytes, the first the lowest."""
    first, second, third, fourth = codes.unbind(-2)
    return first | second << 2 | third << 4 | fourth << 6


def join_bits(bits: Tensor) -> Tensor:
    """Return ``[..., n, 8]`` bits in ``n`` bytes, the first the lowest."""
    shifted = bits << torch.arange(8, dtype=torch.uint8)
    return shifted.sum(-1, dtype=torch.uint8)


def join_fives(codes: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``[blocks, 32]`` codes of 5 bits as their high bits, 4 bytes, and their low ones, 16 bytes."""
    return join_bits((codes >> 4).unflatten(1, (4, 8))), join_nibbles(codes & 15)


def join_ternary(codes: Tensor) -> Tensor:
    """Return ``[blocks, 256]`` codes 0, 1, 2 as TQ1_0 has them, in 52 bytes: five digits of base 3 in a byte.

    A byte is the number of the digits over 243, rounded up to parts of 256; the last 4 bytes have four digits.
    """
    parts = []
    for begin, end, width, digits in ((0, 160, 32, 5), (160, 240, 16, 5), (240, 256, 4, 4)):
        number = torch.zeros(len(codes), width, dtype=torch.int32)
        for digit in codes[:, begin:end].unflatten(1, (digits, width)).unbind(1):
            number = 3 * number + digit
        number *= 3 ** (5 - digits)
        parts.append(((number * 256 + 242) // 243).to(torch.uint8))
    return torch.cat(parts, 1)


def join_two_bits(codes: Tensor) -> Tensor:
    """Return ``[blocks, 256]`` codes of 2 bits as TQ2_0 has them, in 64 bytes."""
    return join_pairs(codes.unflatten(1, (2, 4, 32))).flatten(1)


def _bytes_of(halves: Tensor) -> Tensor:
    """Return ``[blocks, 1]`` float16 as ``[blocks, 2]`` bytes."""
    return halves.contiguous().view(torch.uint8)


# --- blocks -----------------------------------------------------------------------------------------------------------


def _q8_0(rows: PackedRows) -> Tensor:
    codes = rows.integers().to(torch.int8).reshape(-1, _SPAN).view(torch.uint8)
    return torch.cat([_bytes_of(rows.blocks(rows.halves(), _SPAN)), codes], 1)


def _centred(rows: PackedRows, zero: int, span: int) -> tuple[Tensor, Tensor]:
    """Return scales ``[blocks, 1]`` and codes ``[blocks, span]`` around ``zero``.

    The inverse of what :mod:`ggml_carry` does: a zero point one below counts codes of a negative scale from the other
    end. Without zero points codes are integers, and ``zero`` is added.
    """
    scales = rows.blocks(rows.halves(), span)
    if not rows.format.core.has_zeros:
        return scales, (rows.integers() + zero).to(torch.uint8).reshape(-1, span)
    turned, codes = rows.blocks(_turned(rows, zero), span), rows.codes().reshape(-1, span)
    most = (1 << rows.format.width) - 1
    return torch.where(turned, -scales, scales), torch.where(turned, most - codes, codes)


def _turned(rows: PackedRows, zero: int) -> Tensor:
    """Return which groups count codes from the other end, ``[rows, groups]``. Raises NoTypeError for other zeros."""
    most, zeros = (1 << rows.format.width) - 1, rows.zeros()
    rows.refuse(
        (zeros != zero) & (zeros != most - zero),
        lambda place: f"zero point {zeros[place].item()}; blocks have {zero} or {most - zero}",
    )
    return zeros != zero


def _check_zeros(zero: int) -> Callable[[PackedRows], object]:
    return lambda rows: (_turned(rows, zero), rows.halves())


def _q4_0(rows: PackedRows) -> Tensor:
    scales, codes = _centred(rows, 8, _SPAN)
    return torch.cat([_bytes_of(scales), join_nibbles(codes)], 1)


def _q5_0(rows: PackedRows) -> Tensor:
    scales, codes = _centred(rows, 16, _SPAN)
    return torch.cat([_bytes_of(scales), *join_fives(codes)], 1)


def _q2_0(rows: PackedRows) -> Tensor:
    scales, codes = _centred(rows, 1, 64)
    return torch.cat([_bytes_of(scales), join_pairs(codes.unflatten(1, (16, 4)).transpose(1, 2))], 1)


def _turned_codes(rows: PackedRows, span: int) -> tuple[Tensor, Tensor]:
    """Return scales and codes of 2 bits of integers from 1 to -2 under scales with the other sign."""
    return -rows.blocks(rows.halves(), span), (1 - rows.integers()).to(torch.uint8).reshape(-1, span)


def _q2_0_turned(rows: PackedRows) -> Tensor:
    scales, codes = _turned_codes(rows, 64)
    return torch.cat([_bytes_of(scales), join_pairs(codes.unflatten(1, (16, 4)).transpose(1, 2))], 1)


def _tq1_0_turned(rows: PackedRows) -> Tensor:
    wrong = (rows.integers() < -1).unflatten(1, (-1, 256)).any(2)
    rows.refuse(wrong, lambda place: "code -2, which blocks of -1, 0 and 1 lack")
    scales, codes = _turned_codes(rows, 256)
    return torch.cat([join_ternary(codes), _bytes_of(scales)], 1)


def _tq2_0_turned(rows: PackedRows) -> Tensor:
    scales, codes = _turned_codes(rows, 256)
    return torch.cat([join_two_bits(codes), _bytes_of(scales)], 1)


def _pairs(rows: PackedRows) -> tuple[Tensor, Tensor]:
    """Return scales and offsets of blocks, uint8 ``[blocks, 4]``, and their codes."""
    pairs = rows.packed.scales
    rows.refuse(~pairs.isfinite().all(2), lambda place: f"scale and offset {pairs[place].tolist()} are not finite")
    both = torch.stack([rows.blocks(one, _SPAN) for one in pairs.unbind(2)], 1).squeeze(2)
    return _bytes_of(both), rows.codes().reshape(-1, _SPAN)


def _q4_1(rows: PackedRows) -> Tensor:
    scales, codes = _pairs(rows)
    return torch.cat([scales, join_nibbles(codes)], 1)


def _q5_1(rows: PackedRows) -> Tensor:
    scales, codes = _pairs(rows)
    return torch.cat([scales, *join_fives(codes)], 1)


def _k_parts(rows: PackedRows) -> tuple[Tensor, Tensor]:
    """Return the bytes of a K-quant's blocks that are no codes, and the codes, ``[blocks, 256]``."""
    return rows.packed.scales.flatten(0, 1), rows.codes().reshape(-1, 256)


def _planes(bit: Tensor) -> Tensor:
    """Return a bit of each of 256 codes as 32 bytes: byte ``l`` has those of ``l``, ``l + 32`` and so on."""
    return join_bits(bit.unflatten(1, (8, 32)).transpose(1, 2))


def _fours(codes: Tensor) -> Tensor:
    """Return 256 codes of 4 bits as 128 bytes: in each quarter, a nibble of two times 32."""
    return join_nibbles(codes.unflatten(1, (4, 64))).flatten(1)


def _q2_k(rows: PackedRows) -> Tensor:
    scales, codes = _k_parts(rows)
    return torch.cat([scales[:, :16], join_two_bits(codes), scales[:, 16:]], 1)


def _q3_k(rows: PackedRows) -> Tensor:
    scales, codes = _k_parts(rows)
    return torch.cat([_planes(codes >> 2 ^ 1), join_two_bits(codes & 3), scales], 1)


def _q4_k(rows: PackedRows) -> Tensor:
    scales, codes = _k_parts(rows)
    return torch.cat([scales, _fours(codes)], 1)


def _q5_k(rows: PackedRows) -> Tensor:
    scales, codes = _k_parts(rows)
    return torch.cat([scales, _planes(codes >> 4), _fours(codes & 15)], 1)


def _q6_k(rows: PackedRows) -> Tensor:
    scales, codes = _k_parts(rows)
    codes = codes + 32 & 63
    low = join_nibbles((codes & 15).unflatten(1, (2, 128))).flatten(1)
    return torch.cat([low, join_two_bits(codes >> 4), scales], 1)


def _ternary(rows: PackedRows) -> tuple[Tensor, Tensor]:
    integers = rows.integers()
    wrong = (integers < -1).unflatten(1, (-1, 256)).any(2)
    rows.refuse(wrong, lambda place: "code -2, which blocks of -1, 0 and 1 lack")
    return rows.blocks(rows.halves(), 256), (integers + 1).to(torch.uint8).reshape(-1, 256)


def _tq1_0(rows: PackedRows) -> Tensor:
    scales, codes = _ternary(rows)
    return torch.cat([join_ternary(codes), _bytes_of(scales)], 1)


def _tq2_0(rows: PackedRows) -> Tensor:
    scales, codes = _ternary(rows)
    return torch.cat([join_two_bits(codes), _bytes_of(scales)], 1)


def _scale_codes(rows: PackedRows, most: int) -> Tensor:
    """Return the scale codes of floats, ``[rows, groups]``. Raises NoTypeError for those above ``most``."""
    scales = rows.packed.scales
    rows.refuse(scales > most, lambda place: f"scale code {scales[place].item()}; up to {most} both mean the same")
    return scales


def _mxfp4(rows: PackedRows) -> Tensor:
    scales = _scale_codes(rows, _MXFP4_MOST)
    return torch.cat([scales.reshape(-1, 1), join_nibbles(rows.codes().reshape(-1, _SPAN))], 1)


def _nvfp4(rows: PackedRows) -> Tensor:
    scales = _scale_codes(rows, _NVFP4_MOST)
    codes = join_nibbles(rows.codes().reshape(-1, 4, 16)).flatten(1)
    return torch.cat([scales.reshape(-1, 4), codes], 1)


_INTEGERS = ("int", "fullrange", "mxint", "bfp", "fixed", "ternary")


def _is_integer(most: int) -> Callable[[Format], bool]:
    """Formats of signed integers of up to ``most`` bits, each times the scale of a group of whole blocks."""

    def takes(fmt: Format) -> bool:
        if fmt.family == "uint" or is_unsigned(fmt):
            return fmt.width < 8 <= most
        return (fmt.family in _INTEGERS and fmt.width <= most) or (fmt.family == "binary" and fmt.width == 1)

    return takes


def _is_named(text: str) -> Callable[[Format], bool]:
    return lambda fmt: str(fmt) == text


def _is_uint(width: int) -> Callable[[Format], bool]:
    return lambda fmt: fmt.family == "uint" and fmt.width == width


def _has_offset(least: int, most: int) -> Callable[[Format], bool]:
    return lambda fmt: fmt.family == "affine" and least <= fmt.width <= most


def _is_full(width: int) -> Callable[[Format], bool]:
    return lambda fmt: fmt.family == "fullrange" and fmt.width == width


def _is_ternary(fmt: Format) -> bool:
    return fmt.width == 2 and fmt.family in ("int", "ternary")


@dataclass(frozen=True)
class Packer:
    """A type of ggml, the formats that it holds, and how its blocks are made of rows.

    ``takes``: whether it may hold a format; ``check``: refuses rows whose scales, zero points or codes it lacks, as
    ``pack`` does.
    """

    type: str
    takes: Callable[[Format], bool]
    pack: Callable[[PackedRows], Tensor]
    check: Callable[[PackedRows], object] = PackedRows.halves


PACKERS = (
    Packer("MXFP4", _is_named("mxfp4"), _mxfp4, lambda rows: _scale_codes(rows, _MXFP4_MOST)),
    Packer("NVFP4", _is_named("nvfp4"), _nvfp4, lambda rows: _scale_codes(rows, _NVFP4_MOST)),
    Packer("TQ2_0", _is_ternary, _tq2_0, _ternary),
    Packer("TQ1_0", _is_ternary, _tq1_0, _ternary),
    Packer("TQ2_0", _is_full(2), _tq2_0_turned),
    Packer("TQ1_0", _is_full(2), _tq1_0_turned, _tq1_0_turned),
    Packer("Q2_0", _is_full(2), _q2_0_turned),
    Packer("Q4_1", _has_offset(2, 4), _q4_1, _pairs),
    Packer("Q5_1", _has_offset(5, 5), _q5_1, _pairs),
    Packer("Q2_K", _is_named("q2_k"), _q2_k, _k_parts),
    Packer("Q3_K", _is_named("q3_k"), _q3_k, _k_parts),
    Packer("Q4_K", _is_named("q4_k"), _q4_k, _k_parts),
    Packer("Q5_K", _is_named("q5_k"), _q5_k, _k_parts),
    Packer("Q6_K", _is_named("q6_k"), _q6_k, _k_parts),
    Packer("Q2_0", _is_uint(2), _q2_0, _check_zeros(1)),
    Packer("Q4_0", _is_uint(4), _q4_0, _check_zeros(8)),
    Packer("Q5_0", _is_uint(5), _q5_0, _check_zeros(16)),
    Packer("Q4_0", _is_integer(4), _q4_0),
    Packer("Q5_0", _is_integer(5), _q5_0),
    Packer("Q8_0", _is_integer(8), _q8_0),
)
"""Types that hold formats, the first that takes a tensor is written. A format that comes to hold blocks of another type
(:data:`octavo.interchange.ggml_carry.CARRIERS`) gets its line here."""


def type_for(packed: PackedTensor, wanted: str | None = None) -> GgmlType:
    """Return the type that holds a packed tensor with the same values; ``wanted``: that one, if it does.

    Raises NoTypeError with the reason where none does.
    """
    reasons: list[str] = []
    fmt = packed.format
    if packed.axis != max(packed.ndim, 1) - 1:
        raise NoTypeError(f"packed along dimension {packed.axis}; blocks run along the last")
    rows = [packer for packer in PACKERS if packer.takes(fmt)]
    for packer in sorted(rows, key=lambda packer: packer.type != wanted):
        kind = _NAMED[packer.type]
        try:
            check_groups(fmt, packed.shape[-1] if packed.shape else 1, kind)
            for part in rows_of(packed):
                packer.check(part)
            return kind
        except NoTypeError as error:
            reasons.append(str(error))
    raise NoTypeError(reasons[-1] if reasons else f"no type of ggml holds '{fmt}'")


def check_format(fmt: Format, columns: int) -> None:
    """Refuse a format that no type holds for rows of so many columns, by the format alone. Raises NoTypeError."""
    reason = f"no type of ggml holds '{fmt}'"
    for packer in PACKERS:
        if packer.takes(fmt):
            try:
                check_groups(fmt, columns, _NAMED[packer.type])
                return
            except NoTypeError as error:
                reason = str(error)
    raise NoTypeError(reason)


def check_groups(fmt: Format, columns: int, kind: GgmlType) -> None:
    """Refuse rows and groups that are no whole blocks of a type. Raises NoTypeError."""
    if columns % kind.elements:
        raise NoTypeError(f"{columns} columns; {kind.name} has blocks of {kind.elements}")
    if fmt.granularity == "block" and fmt.block is not None:
        own = 16 if kind.name == "NVFP4" else kind.elements
        if fmt.block % own and fmt.block < columns:
            raise NoTypeError(f"scales for each {fmt.block} elements; {kind.name} has one for {own}")


def blocks_of(packed: PackedTensor, kind: GgmlType) -> Iterator[Tensor]:
    """Yield the blocks of a tensor in ``kind``, which :func:`type_for` gave, as uint8 ``[rows, bytes of a row]``."""
    packer = next(one for one in PACKERS if one.type == kind.name and one.takes(packed.format))
    yield from _blocks(packed, packer)


def _blocks(packed: PackedTensor, packer: Packer) -> Iterator[Tensor]:
    for rows in rows_of(packed):
        yield packer.pack(rows).reshape(len(rows.packed), -1)


# --- floats -----------------------------------------------------------------------------------------------------------


def holds(values: Tensor, kind: str) -> bool:
    """Whether a float type holds every value of a tensor, to the bit."""
    dtype = _DTYPES[kind]
    if values.dtype == dtype:
        return True
    wide = values.float()
    back = wide.to(dtype).float()
    return torch.equal(back.view(torch.int32), wide.view(torch.int32))


def smallest_float(values: Tensor) -> str:
    """Return the smallest float type that holds every value: F16, BF16 or F32."""
    return next(kind for kind in ("F16", "BF16", "F32") if holds(values, kind))


def float_bytes(values: Tensor, kind: str) -> Tensor:
    """Return the bytes of values in a float type, uint8 ``[rows, bytes of a row]``."""
    rows = values.to(_DTYPES[kind]).contiguous()
    return rows.reshape(math.prod(rows.shape[:-1]) if rows.ndim else 1, -1).view(torch.uint8)
