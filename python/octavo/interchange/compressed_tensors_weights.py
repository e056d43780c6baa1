"""Weights of compressed-tensors in formats of ours, and their values as the package decodes them.

Values of a carried weight are exact products of codes and scales; the package rounds them to the dtype of the scales,
and those of ``mx*`` and ``nvfp4`` to bfloat16. Of that dtype ours are equal to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from octavo.errors import FormatError
from octavo.interchange import compressed_tensors_layout as layouts
from octavo.interchange.compressed_tensors_config import WeightScheme
from octavo.interchange.compressed_tensors_layout import GLOBAL, ORDER, PACKED, SCALE, WEIGHT, ZERO, Layout
from octavo.interchange.packed_words import flip_top_bits, pack_codes, rows_of_words, unpack_codes
from octavo.tensors.formats import Format
from octavo.tensors.packed_tensor import PackedTensor

_CHUNK = 1 << 20  # elements that are decoded at once
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M3 = (*(number / 8 for number in range(8)), *((1 + m / 8) * 2**e for e in range(3) for m in range(8)))
_MX = {layouts.MXFP4: "mxfp4", layouts.MXFP6: "mxfp6e2m3", layouts.MXFP8: "mxfp8e4m3"}
# Scale codes from which the largest element leaves bfloat16, where the package has infinity.
_MX_LIMIT = {layouts.MXFP4: 253, layouts.MXFP6: 253, layouts.MXFP8: 247}
_NO_ORDER = -1
_NEIGHBOURS = 16  # of an inverse that are tried: values near the middle of two bfloat16 ask for one


class _NotExactError(Exception):
    """Why a weight has no equal in a format."""


@dataclass(frozen=True)
class CompressedWeight:
    """A weight of a file. ``layout``: settled. ``read``: returns a part of it."""

    layout: Layout
    read: Callable[[str], Tensor]

    @property
    def scheme(self) -> WeightScheme:
        """How the weight is stored."""
        assert self.layout.scheme is not None  # settled
        return self.layout.scheme

    @property
    def type(self) -> str:
        """Form and scheme, for people."""
        names = {layouts.WORDS: "pack-quantized", layouts.BYTES: "int-quantized", layouts.FLOATS: "float-quantized"}
        form = self.layout.form
        return f"{names.get(form, form)} ({self.scheme})" if form in names else form

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the values."""
        return self.layout.shape

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return self.layout.nbytes

    @property
    def dtype(self) -> torch.dtype:
        """Dtype that the package decodes to: that of the scales, or bfloat16."""
        is_int = self.layout.form in (layouts.WORDS, layouts.BYTES, layouts.FLOATS)
        return getattr(torch, self.layout.parts[SCALE].dtype) if is_int else torch.bfloat16

    def matrices(self) -> Sequence[CompressedWeight]:
        """Return nothing: a weight is that of one layer."""
        return ()

    # --- carried ------------------------------------------------------------------------------------------------------

    def carry(self, dtype: torch.dtype) -> PackedTensor | str:
        """Return the weight of a logical dtype in a format of ours, or why none holds it."""
        try:
            if self._order is not None:
                return f"{ORDER} has groups of other columns than those beside each other"
            if self.layout.form in (layouts.WORDS, layouts.BYTES):
                return self._carry_integers(dtype)
            if self.layout.form == layouts.NVFP4:
                return self._carry_nvfp4(dtype)
            if self.layout.form == layouts.FLOATS:
                return self._carry_floats(dtype)
            return self._carry_mx(_MX[self.layout.form], self._codes, self._e8m0, dtype)
        except _NotExactError as error:
            return str(error)

    def _carry_integers(self, dtype: torch.dtype) -> PackedTensor:
        scheme, (rows, columns) = self.scheme, self.layout.shape
        bits = max(scheme.bits, 2) if self.layout.form == layouts.WORDS else 8
        stream = self._codes
        if self.layout.form == layouts.WORDS and scheme.bits == 1:  # no format has 1 bit: codes 0 and 1, or -1 and 0
            ones = unpack_codes(stream, columns, 1)
            stream = pack_codes(ones - 1 & 3 if scheme.symmetric else ones, 2)
        elif (self.layout.form == layouts.WORDS) == scheme.symmetric:
            stream = flip_top_bits(stream, columns, bits)
        scales = self._checked_scales()
        sizes = {"tensor": ":tensor", "channel": ":channel"}
        group = scheme.group_size if scheme.block is None else scheme.block[1]
        text = f"{'' if scheme.symmetric else 'u'}int{bits}{sizes.get(scheme.strategy, f':g{group}')}"
        fmt = self._format(text)
        if fmt.scale_type == "float16":
            halves = scales.half()
            if not torch.equal(halves.float(), scales.float()):
                raise _NotExactError(f"scales of groups are float16 here, and among these are others ({scales.dtype})")
            scales = halves
        else:
            scales = scales.float()
        most = float(scales.max()) * (1 << bits) if scales.numel() else 0.0
        if dtype == torch.float16 and most > torch.finfo(dtype).max:
            raise _NotExactError("values beyond those of float16, where the package has infinity")
        zeros = torch.empty(0, dtype=torch.uint8)
        points = self._zeros
        if points is not None:
            offset = 1 << (scheme.bits if self.layout.form == layouts.WORDS else 8) - 1
            unsigned = self._rows_of(points, rows) + offset
            packed = pack_codes(unsigned.view(1, -1) if unsigned.ndim == 1 else unsigned, bits)
            zeros = packed.view(-1) if unsigned.ndim == 1 else packed
        return self._packed(fmt, stream, scales, zeros, dtype)

    def _carry_floats(self, dtype: torch.dtype) -> PackedTensor:
        """E4M3 codes with float scales: held where all are 1, or powers of two."""
        scales = self._checked_scales().float()
        if not (scales != 1).any():
            empty = torch.empty(0, dtype=torch.uint8)
            return self._packed(Format("e4m3"), self._codes, empty, empty, dtype)
        mantissa, exponent = torch.frexp(scales)
        if (mantissa != 0.5).any():
            raise _NotExactError("no format has E4M3 codes with scales that are no powers of two")
        codes = exponent + 126
        group = self.scheme.group_size if self.scheme.block is None else self.scheme.block[1]
        if group and group % 32:
            raise _NotExactError(f"groups of {group} columns, which blocks of 32 do not divide")
        self._refuse((codes < 0) | (codes > 254), lambda place: f"scale {scales[place].item()} is no E8M0")
        rows, columns = self.layout.shape
        blocks = -(-columns // 32)
        codes = codes.to(torch.uint8)
        codes = codes.expand(rows, -1).expand(-1, blocks) if codes.shape[-1] == 1 else codes
        if group and codes.shape[1] != blocks:
            codes = codes.repeat_interleave(group // 32, 1)[:, :blocks]
        largest = torch.finfo(dtype).max / 448
        self._refuse(scales > largest, lambda place: f"scale {scales[place].item()}, by which values overflow")
        return self._carry_mx("mxfp8e4m3", self._codes, codes.contiguous(), dtype, limit=255)

    def _carry_mx(
        self, text: str, codes: Tensor, scales: Tensor, dtype: torch.dtype, *, limit: int | None = None
    ) -> PackedTensor:
        limit = _MX_LIMIT[self.layout.form] if limit is None else limit
        self._refuse(
            scales >= limit, lambda place: f"scale code {scales[place].item()}; up to {limit - 1} both mean the same"
        )
        return self._packed(Format(text), codes, scales, torch.empty(0, dtype=torch.uint8), dtype)

    def _carry_nvfp4(self, dtype: torch.dtype) -> PackedTensor:
        scales = self.read(SCALE).view(torch.uint8)
        self._refuse(
            scales >= 0x7F,
            lambda place: f"scale code {scales[place].item()}; numbers without sign are 0 to 126",
        )
        level = nvfp4_level(self.read(GLOBAL) if GLOBAL in self.layout.parts else None, scales)
        if level is None:
            divisor = self.read(GLOBAL).flatten()[0].item()
            raise _NotExactError(f"{GLOBAL} {divisor}, by which no factor gives the same values")
        return self._packed(
            Format("nvfp4"), self._codes, scales, torch.empty(0, dtype=torch.uint8), dtype, torch.tensor([level])
        )

    def _format(self, text: str) -> Format:
        try:
            return Format(text)
        except FormatError as error:
            raise _NotExactError(f"no format has its groups: {error}") from None

    def _packed(
        self,
        fmt: Format,
        codes: Tensor,
        scales: Tensor,
        zeros: Tensor,
        dtype: torch.dtype,
        levels: Tensor | None = None,
    ) -> PackedTensor:
        nothing = torch.empty(0, dtype=torch.float32)
        return PackedTensor(
            fmt, codes.contiguous(), scales.contiguous(), zeros, nothing if levels is None else levels,
            shape=self.layout.shape, dtype=dtype,
        )  # fmt: skip

    def _refuse(self, wrong: Tensor, reason_of: Callable[[tuple[int, ...]], str]) -> None:
        if wrong.any():
            place = tuple(int(one) for one in wrong.nonzero()[0])
            where = ", ".join(f"{name} {one}" for name, one in zip(("row", "group"), place, strict=False))
            raise _NotExactError(f"{f'{where}: ' if where else ''}{reason_of(place)}")

    # --- decoded ------------------------------------------------------------------------------------------------------

    def decode(self) -> Tensor:
        """Return the values, to the bit those of the package."""
        rows, columns = self.layout.shape
        out = torch.empty(rows, columns, dtype=self.dtype)
        codes, scales, points, divisor = self._codes, self._factors(), self._zeros, None
        zeros = None if points is None else self._rows_of(points, rows)
        if self.layout.form == layouts.NVFP4 and GLOBAL in self.layout.parts:
            divisor = self.read(GLOBAL)
        for chunk in self._chunks():
            steps = scales[chunk] if scales.ndim == 2 else scales
            step = self._along(steps if divisor is None else steps / divisor)
            values = self._elements(codes[chunk]).to(step.dtype)
            if zeros is not None:
                values = values - self._along(zeros[chunk] if zeros.ndim == 2 else zeros).to(step.dtype)
            out[chunk] = (values * step).to(out.dtype)
        return out

    def _factors(self) -> Tensor:
        """Return the scales as the package multiplies with them, a row of them for each row of the weight."""
        rows = self.layout.shape[0]
        if self.layout.form == layouts.NVFP4:
            return self.read(SCALE).to(torch.bfloat16)
        if self.layout.form in _MX:
            return 2.0 ** (self._e8m0.to(torch.int32) - 127).to(torch.bfloat16)
        return self._rows_of(self.read(SCALE), rows)

    def _along(self, values: Tensor) -> Tensor:
        """Return scales or zero points of groups as those of elements; one of a row or tensor stays one."""
        columns, group = self.layout.shape[1], self.scheme.group_size
        if self._order is not None:
            return values[:, self._order]
        size = group if self.scheme.block is None else self.scheme.block[1]
        return values if size is None or values.ndim < 2 else values.repeat_interleave(size, 1)[:, :columns]

    def _elements(self, codes: Tensor) -> Tensor:
        """Return the numbers that codes stand for, before zero point and scale."""
        columns, form = self.layout.shape[1], self.layout.form
        if form == layouts.BYTES:
            return codes.view(torch.int8)
        if form in (layouts.FLOATS, layouts.MXFP8):
            return codes.view(torch.float8_e4m3fn)
        if form == layouts.WORDS:
            return unpack_codes(codes, columns, self.scheme.bits).to(torch.int16) - (1 << self.scheme.bits - 1)
        bits, table = (6, _E2M3) if form == layouts.MXFP6 else (4, _E2M1)
        values = torch.tensor([*table, *(-one for one in table)])
        return values[unpack_codes(codes, columns, bits).int()]

    def _chunks(self) -> Iterator[slice]:
        rows, columns = self.layout.shape
        step = max(_CHUNK // max(columns, 1), 1)
        for first in range(0, rows, step):
            yield slice(first, first + step)

    # --- parts --------------------------------------------------------------------------------------------------------

    @property
    def _codes(self) -> Tensor:
        """Rows of code streams, uint8, as the file has them: offset codes in words, two's complement in bytes."""
        if self.layout.form == layouts.WORDS:
            words = self.read(PACKED)
            return rows_of_words(words, self.layout.shape[1], self.scheme.bits, dense=self.layout.dense)
        return self.read(WEIGHT if WEIGHT in self.layout.parts else PACKED).view(torch.uint8)

    @property
    def _e8m0(self) -> Tensor:
        return self.read(SCALE).view(torch.uint8)

    @property
    def _zeros(self) -> Tensor | None:
        """Zero points of integers as int16, in the way that codes count; None of a symmetric weight."""
        if ZERO not in self.layout.parts:
            return None
        points, rows = self.read(ZERO), self.layout.shape[0]
        if self.scheme.symmetric:
            if points.to(torch.float32).any():
                raise self.layout.error(ZERO, "not 0, and symmetric is true")
            return None
        if points.dtype == torch.int32:
            stream = rows_of_words(points.t().contiguous(), rows, self.scheme.bits, dense=self.layout.dense)
            unsigned = unpack_codes(stream, rows, self.scheme.bits).t()
            return unsigned.to(torch.int16) - (1 << self.scheme.bits - 1)
        return points.to(torch.int16)

    @cached_property
    def _order(self) -> Tensor | None:
        """Groups of the columns where they are not those beside each other."""
        if ORDER not in self.layout.parts:
            return None
        order, size = self.read(ORDER), self.scheme.group_size
        if size is None:
            raise self.layout.error(ORDER, f"the strategy is {self.scheme.strategy!r}, which has no groups")
        columns = self.layout.shape[1]
        groups = -(-columns // size)
        if bool((order == _NO_ORDER).all()) or torch.equal(order.long(), torch.arange(columns) // size):
            return None
        if columns and not 0 <= int(order.min()) <= int(order.max()) < groups:
            raise self.layout.error(ORDER, f"groups {int(order.min())} to {int(order.max())}; there are {groups}")
        return order.long()

    def _checked_scales(self) -> Tensor:
        """Return float scales, a row of them for each row of the weight; those that no format has are refused."""
        scales = self.read(SCALE)
        self._refuse(~scales.isfinite(), lambda place: f"scale {scales[place].item()}")
        self._refuse(scales.signbit(), lambda place: f"scale {scales[place].item()} has a sign")
        return self._rows_of(scales, self.layout.shape[0])

    def _rows_of(self, values: Tensor, rows: int) -> Tensor:
        """Return scales or zero points of blocks as those of rows; of one scale ``[1]``."""
        if self.scheme.strategy == "tensor":
            return values.reshape(1)
        return values if self.scheme.block is None else values.repeat_interleave(self.scheme.block[0], 0)[:rows]


def nvfp4_level(divisor: Tensor | None, scales: Tensor) -> float | None:
    """Return the factor of a tensor that gives the package's values; None where none does.

    The package divides scales by a divisor and rounds products to bfloat16. ``scales``: E4M3 codes below 127, of which
    those that there are count.
    """
    if divisor is None:
        return 1.0
    steps, elements = _nvfp4_numbers(scales)
    expected = _divided(divisor, steps, elements)
    levels = _near_inverses(divisor.flatten()[0].float())
    return next((level for level in levels if torch.equal(_multiplied(level, steps, elements), expected)), None)


def nvfp4_divisor(level: float, scales: Tensor) -> float | None:
    """Return a divisor by which the package has the values of a factor; None where none does.

    One that is read as the very factor comes first. ``scales``: as for :func:`nvfp4_level`.
    """
    steps, elements = _nvfp4_numbers(scales)
    expected = _multiplied(level, steps, elements)
    equal = [
        divisor
        for divisor in _near_inverses(torch.tensor(level))
        if torch.equal(_divided(torch.tensor([divisor]), steps, elements), expected)
    ]
    same = (one for one in equal if nvfp4_level(torch.tensor([one]), scales) == level)
    return next(same, equal[0] if equal else None)


def _near_inverses(value: Tensor) -> list[float]:
    """Return the inverse of a float32 and its neighbours, the nearest first; none of a number that is not above 0."""
    inverse = 1 / value
    if not (value.isfinite() and value > 0 and inverse.isfinite() and inverse > 0):
        return []
    places = sorted(range(-_NEIGHBOURS, _NEIGHBOURS + 1), key=abs)
    bits = inverse.view(torch.int32) + torch.tensor(places, dtype=torch.int32)
    return [one for one in bits.view(torch.float32).tolist() if 0 < one < float("inf")]


def _divided(divisor: Tensor, steps: Tensor, elements: Tensor) -> Tensor:
    """Return the values of the package: elements times the quotients of scales, in bfloat16."""
    quotients = steps.to(torch.bfloat16) / divisor
    return (elements.to(quotients.dtype) * quotients).to(torch.bfloat16)


def _multiplied(level: float, steps: Tensor, elements: Tensor) -> Tensor:
    """Return the values of ``nvfp4``: elements times the float32 products of scales and factor, in bfloat16."""
    return (elements * (steps * torch.tensor(level))).to(torch.bfloat16)


def _nvfp4_numbers(scales: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scales that there are, a column of them, and all elements."""
    codes = torch.bincount(scales.flatten().int(), minlength=127).nonzero().flatten().to(torch.uint8)
    return codes.view(torch.float8_e4m3fn).float().unsqueeze(1), torch.tensor(_E2M1)
