"""Packed tensors as weights of compressed-tensors: the same codes and scales in its order, never encoded again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from octavo.interchange import compressed_tensors_layout as layouts
from octavo.interchange.compressed_tensors_config import WeightScheme
from octavo.interchange.compressed_tensors_layout import GLOBAL, PACKED, SCALE, SHAPE, WEIGHT, ZERO, Layout
from octavo.interchange.compressed_tensors_weights import CompressedWeight, nvfp4_divisor
from octavo.interchange.packed_words import flip_top_bits, pack_codes, unpack_codes, words_of_rows
from octavo.tensors.formats import Format
from octavo.tensors.packed_tensor import PackedTensor
from octavo.tensors.tensor_entry import TensorEntry

FORMATS = {
    layouts.WORDS: "pack-quantized", layouts.BYTES: "int-quantized", layouts.FLOATS: "float-quantized",
    layouts.MXFP8: "mxfp8-quantized", layouts.MXFP6: "mxfp6-pack-quantized", layouts.MXFP4: "mxfp4-pack-quantized",
    layouts.NVFP4: "nvfp4-pack-quantized",
}  # fmt: skip
"""What the configuration calls each form; of bytes that is one of two names."""
_MX = {"mxfp4": (layouts.MXFP4, 4), "mxfp6e2m3": (layouts.MXFP6, 6), "mxfp8e4m3": (layouts.MXFP8, 8)}
_INTEGERS = ("int", "uint", "mxint", "bfp", "ternary", "fixed")


class NoFormatError(Exception):
    """Why compressed-tensors has no format with the values of a tensor."""


@dataclass(frozen=True)
class Former:
    """How a weight lay in the folder that it was read from.

    ``layer``: its name there. ``parts``: dtypes and shapes of its tensors. ``fills``: of tensors that say nothing, such
    as zero points of a symmetric weight, the one value that they have, or ``groups`` of ``weight_g_idx``. ``divisor``:
    of ``nvfp4``.
    """

    layer: str
    form: str
    format: str
    scheme: WeightScheme
    dense: bool
    parts: Mapping[str, tuple[str, tuple[int, ...]]]
    fills: Mapping[str, str] = field(default_factory=dict)
    divisor: float | None = None


@dataclass(frozen=True)
class StoredParts:
    """A weight as compressed-tensors stores it.

    ``makers``: make its tensors, by what they are. ``note``: what of the values is not exact.
    """

    form: str
    format: str
    scheme: WeightScheme
    dense: bool
    makers: Mapping[str, Callable[[], Tensor]]
    note: str | None = None

    def weight(self, layer: str, file: str) -> CompressedWeight:
        """Return the weight that a reader finds in these tensors."""
        tensors = {part: make() for part, make in self.makers.items()}
        entries = {
            part: TensorEntry(
                f"{layer}.{part}", "plain", None, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."),
                tensor.nbytes, 0.0,
            )
            for part, tensor in tensors.items()
        }  # fmt: skip
        codes = tensors[PACKED] if PACKED in tensors else tensors[WEIGHT]
        shape = tuple(map(int, tensors[SHAPE])) if SHAPE in tensors else tuple(codes.shape)
        if SHAPE not in tensors and PACKED in tensors:
            shape = shape[0], shape[1] * 8 // self.scheme.bits
        layout = Layout(layer, self.form, (shape[0], shape[1]), entries, file)
        version = "0.18" if self.dense else "0.1"
        return CompressedWeight(layouts.settle(layout, self.scheme, self.format, version), tensors.__getitem__)


def parts_of(packed: PackedTensor, dtype: torch.dtype, former: Former | None = None) -> StoredParts:
    """Return a matrix as compressed-tensors stores it. Raises NoFormatError where it has no format with its values.

    ``dtype``: of the model, in which scales are stored where they are its numbers. ``former``: how the weight lay in
    the folder that it was read from; where its codes and scales are others now, that counts for nothing.
    """
    if former is not None:
        again = _again(packed, dtype, former)
        if again is not None:
            return again
    text = str(packed.format)
    check_format(packed.format, packed.shape[1])
    if packed.format.family in _INTEGERS:
        stored = _integers(packed, dtype, None)
    elif text in _MX:
        form, bits = _MX[text]
        stored = _mx(packed, form, bits)
    elif text == "nvfp4":
        stored = _nvfp4(packed, None)
    else:
        scheme = WeightScheme(8, "float", True, "tensor")
        stored = StoredParts(
            layouts.FLOATS, FORMATS[layouts.FLOATS], scheme, True,
            {WEIGHT: lambda: packed.codes.view(torch.float8_e4m3fn), SCALE: lambda: torch.ones(1)},
        )  # fmt: skip
    if stored.note is None:
        _check_values(packed, dtype, stored)
    return stored


def check_format(fmt: Format, columns: int) -> None:
    """Refuse a format that compressed-tensors has not, and columns that its groups do not divide.

    Raises NoFormatError.
    """
    text = str(fmt)
    is_integer = fmt.family in _INTEGERS and fmt.width <= 8 and not text.startswith("ufixed")
    if not is_integer and text not in (*_MX, "nvfp4", "e4m3"):
        raise NoFormatError("compressed-tensors has no such format")
    if fmt.block is not None and columns % fmt.block:
        raise NoFormatError(f"{columns} columns, which groups of {fmt.block} do not divide")


def _check_values(packed: PackedTensor, dtype: torch.dtype, stored: StoredParts) -> None:
    """Refuse values that a reader would not find again in the dtype that it decodes to."""
    read, own = stored.weight("", "").decode(), packed.to_dense()
    expected = own.decode(read.dtype if stored.form == layouts.NVFP4 else dtype)
    wrong = read.to(expected.dtype) != expected
    wrong &= ~(read.isnan() & expected.isnan())
    if wrong.any():
        row, column = (int(one) for one in wrong.nonzero()[0])
        raise NoFormatError(
            f"row {row}, column {column}: {float(expected[row, column])}, where readers have {float(read[row, column])}"
        )


def _again(packed: PackedTensor, dtype: torch.dtype, former: Former) -> StoredParts | None:
    """Return a weight as it lay in its former folder, None where it is another one now."""
    try:
        if former.form in (layouts.WORDS, layouts.BYTES):
            stored = _integers(packed, dtype, former)
        elif former.form == layouts.NVFP4:
            stored = _nvfp4(packed, former.divisor)
        elif former.form == layouts.FLOATS:
            stored = _floats(packed, former)
        else:
            stored = _mx(packed, former.form, former.scheme.bits)
        makers = {**stored.makers, **_fills(former, packed.numel())}
        if makers.keys() != former.parts.keys():
            return None
        shaped = {part: partial(_shaped, makers[part], *former.parts[part]) for part in former.parts}
        again = replace(
            stored, makers=shaped, format=former.format, scheme=former.scheme, dense=former.dense, form=former.form
        )
        carried = again.weight(former.layer, "").carry(packed.dtype)
    except (NoFormatError, RuntimeError, ValueError, TypeError, LookupError, ArithmeticError):  # another format or size
        return None
    return again if isinstance(carried, PackedTensor) and carried == packed.to_dense() else None


def _shaped(make: Callable[[], Tensor], dtype: str, shape: tuple[int, ...]) -> Tensor:
    tensor, kind = make(), getattr(torch, dtype)
    is_same = tensor.dtype == kind or {str(tensor.dtype), str(kind)} == {"torch.uint8", "torch.float8_e8m0fnu"}
    return (tensor.view(kind) if is_same else tensor.to(kind)).reshape(shape)


def _fills(former: Former, elements: int) -> dict[str, Callable[[], Tensor]]:
    """Return the tensors that say nothing; ``elements``: of the weight, which none of them has more of."""
    makers: dict[str, Callable[[], Tensor]] = {}
    for part, fill in former.fills.items():
        dtype, shape = former.parts[part]
        if math.prod(shape) > max(elements, 1):
            raise NoFormatError("other sizes")
        if fill == "groups":
            size = former.scheme.group_size or 1
            makers[part] = partial(_groups, shape, size, getattr(torch, dtype))
        else:
            makers[part] = partial(_full, shape, int(fill), getattr(torch, dtype))
    return makers


def _groups(shape: tuple[int, ...], size: int, dtype: torch.dtype) -> Tensor:
    return (torch.arange(shape[0]) // size).to(dtype)


def _full(shape: tuple[int, ...], fill: int, dtype: torch.dtype) -> Tensor:
    return torch.full(shape, fill).to(dtype)


# --- families ---------------------------------------------------------------------------------------------------------


def _integers(packed: PackedTensor, dtype: torch.dtype, former: Former | None) -> StoredParts:
    """Integers in words, or in bytes where they were read from bytes."""
    fmt, (rows, columns) = packed.format, packed.shape
    if fmt.family not in _INTEGERS:
        raise NoFormatError("no integers")
    symmetric, bits = not fmt.core.has_zeros, fmt.width
    strategy = {"block": "group", "none": "tensor"}.get(fmt.granularity, fmt.granularity)
    group = fmt.block if strategy == "group" else None
    scheme = WeightScheme(bits, "int", symmetric, strategy, group)
    if former is not None:
        scheme = former.scheme
    else:
        check_format(fmt, columns)
    rows_each = 1 if scheme.block is None else scheme.block[0]
    scales = _scales_of(packed)
    kind = _scale_dtype(scales, dtype) if former is None else getattr(torch, former.parts[SCALE][0])
    if not torch.equal(scales.to(kind).float(), scales):
        raise NoFormatError("other scales")
    makers: dict[str, Callable[[], Tensor]] = {SCALE: lambda: _scales_of(packed)[::rows_each].to(kind)}
    dense = former is None or former.dense
    if former is not None and former.form == layouts.BYTES:
        makers[WEIGHT] = partial(_bytes, packed, symmetric)
    else:
        makers[PACKED] = partial(_words, packed, scheme.bits, dense)
        makers[SHAPE] = lambda: torch.tensor([rows, columns])
    if not symmetric:
        makers[ZERO] = partial(_zeros, packed, scheme, rows, dense, former is not None and former.form == layouts.BYTES)
    form = layouts.WORDS if former is None else former.form
    return StoredParts(form, FORMATS[form], scheme, dense, makers)


def _scales_of(packed: PackedTensor) -> Tensor:
    """Return the steps of integers as float32, shaped as scales."""
    fmt = packed.format
    if fmt.family in ("int", "uint"):
        return packed.scales.float()
    if fmt.family == "ternary":
        return torch.ones(1) if fmt.granularity == "none" else packed.scales
    if fmt.family == "fixed":
        fraction = packed.scales.double() if fmt.granularity != "none" else _fraction(str(fmt))
        steps = (2.0**-fraction).float()
    else:
        if (packed.scales == 255).any():
            raise NoFormatError("scale code 255, which is NaN")
        steps = (2.0 ** (packed.scales.double() - 127 - (fmt.width - (2 if fmt.family == "mxint" else 1)))).float()
    if not (steps.isfinite() & (steps > 0)).all():
        raise NoFormatError("steps beyond float32")
    return steps


def _fraction(text: str) -> Tensor:
    return torch.tensor([int(text.partition(".")[2])], dtype=torch.float64)


def _scale_dtype(scales: Tensor, dtype: torch.dtype) -> torch.dtype:
    """Return the model's dtype where every scale is a number of it, else float32."""
    return dtype if torch.equal(scales.to(dtype).float(), scales) else torch.float32


def _stream(packed: PackedTensor) -> Tensor:
    """Return offset codes as rows of code streams."""
    codes, fmt, columns = packed.to_dense().codes, packed.format, packed.shape[1]
    if fmt.family == "uint":
        return codes
    if fmt.family != "bfp":
        return flip_top_bits(codes, columns, fmt.width)
    parts = unpack_codes(codes, columns, fmt.width).to(torch.int16)  # sign and magnitude
    most = 1 << fmt.width - 1
    numbers = torch.where(parts >= most, most - parts, parts)
    return pack_codes(numbers + most, fmt.width)


def _words(packed: PackedTensor, bits: int, dense: bool) -> Tensor:
    stream, columns = _stream(packed), packed.shape[1]
    if bits != packed.format.width:  # one bit, which lies in two here
        wide = unpack_codes(stream, columns, packed.format.width).to(torch.int16)
        narrow = wide - 1 if packed.format.family == "int" else wide
        if bits != 1 or (narrow < 0).any() or (narrow > 1).any():
            raise NoFormatError("codes of other widths")
        stream = pack_codes(narrow, 1)
    return words_of_rows(stream, columns, bits, dense=dense)


def _bytes(packed: PackedTensor, symmetric: bool) -> Tensor:
    if packed.format.width != 8:
        raise NoFormatError("codes of other widths")
    codes = packed.to_dense().codes
    return (codes if symmetric else codes ^ 0x80).view(torch.int8)


def _zeros(packed: PackedTensor, scheme: WeightScheme, rows: int, dense: bool, in_bytes: bool) -> Tensor:
    points = packed.unpack_zeros()
    assert points is not None  # the format has them
    if scheme.block is not None:
        points = points[:: scheme.block[0]]
    if in_bytes or scheme.strategy not in ("group", "channel"):
        return (points - (1 << (8 if in_bytes else scheme.bits) - 1)).to(torch.int8)
    stream = pack_codes(points.t().contiguous(), scheme.bits)
    return words_of_rows(stream, rows, scheme.bits, dense=dense).t().contiguous()


def _mx(packed: PackedTensor, form: str, bits: int) -> StoredParts:
    if _MX.get(str(packed.format)) != (form, bits):
        raise NoFormatError("another format")
    is_plain = form == layouts.MXFP8
    codes = packed.to_dense().codes
    makers: dict[str, Callable[[], Tensor]] = {
        WEIGHT if is_plain else PACKED: lambda: codes.view(torch.float8_e4m3fn) if is_plain else codes,
        SCALE: lambda: packed.scales,
    }
    return StoredParts(form, FORMATS[form], WeightScheme(bits, "float", True, "group", 32), True, makers)


def _floats(packed: PackedTensor, former: Former) -> StoredParts:
    """E4M3 codes with the scales that they had, which are powers of two, or 1."""
    codes, text = packed.to_dense().codes, str(packed.format)
    dtype, shape = former.parts[SCALE]
    scheme = former.scheme
    if text == "e4m3":
        scales = torch.ones(shape)
    elif text == "mxfp8e4m3":
        scales = (2.0 ** (packed.scales.double() - 127)).float()
        group = scheme.group_size if scheme.block is None else scheme.block[1]
        rows = scales if scheme.block is None else scales[:: scheme.block[0]]
        scales = {"tensor": scales[:1, :1], "channel": scales[:, :1]}.get(
            scheme.strategy, rows[:, :: (group or 32) // 32]
        )
    else:
        raise NoFormatError("another format")
    kind: torch.dtype = getattr(torch, dtype)
    makers = {WEIGHT: lambda: codes.view(torch.float8_e4m3fn), SCALE: lambda: scales.to(kind)}
    return StoredParts(layouts.FLOATS, former.format, scheme, True, makers)


def _nvfp4(packed: PackedTensor, divisor: float | None) -> StoredParts:
    if str(packed.format) != "nvfp4":
        raise NoFormatError("another format")
    codes, scales = packed.to_dense().codes, packed.scales
    if (scales >= 0x7F).any():
        raise NoFormatError(f"scale code {int(scales.max())}; numbers without sign are 0 to 126")
    if divisor is None:
        divisor = nvfp4_divisor(float(packed.levels), scales)
    note = None
    if divisor is None:
        level = packed.levels[0]
        divisor, note = float(1 / level), "codes and scales are; values within one unit in the last place of bfloat16"
        if not 0 < divisor < float("inf") or not level > 0:
            raise NoFormatError(f"factor {float(level)}, which no divisor gives")
    value = torch.tensor([divisor])
    makers: dict[str, Callable[[], Tensor]] = {
        PACKED: lambda: codes, SCALE: lambda: scales.view(torch.float8_e4m3fn), GLOBAL: lambda: value,
    }  # fmt: skip
    scheme = WeightScheme(4, "float", True, "tensor_group", 16)
    return StoredParts(layouts.NVFP4, FORMATS[layouts.NVFP4], scheme, True, makers, note)
