"""Rows of packed tensors as the codes, zero points and scales that writers of other packages' files take."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo import _core
from octavo.tensors.formats import Format
from octavo.tensors.packed_tensor import PackedTensor

_CHUNK = 1 << 18  # elements whose codes are unpacked at once, four bytes each
_HALVES, _SINGLES = (-24, 15), (-149, 127)  # exponents of powers of two that are float16, and float32


class NoTypeError(Exception):
    """Why a kind of files does not hold a tensor with the same values."""


def rows_of(packed: PackedTensor) -> Iterator[PackedRows]:
    """Yield a tensor as some rows of its matrix after the other."""
    matrix = _matrix(packed)
    step = max(_CHUNK // packed.shape[-1], 1)
    for first in range(0, len(matrix), step):
        yield PackedRows(matrix[first : first + step], first)


@dataclass(frozen=True)
class PackedRows:
    """Some rows of a tensor, ``first`` the number of the first: ``packed``, as a matrix with its groups along rows."""

    packed: PackedTensor
    first: int

    @property
    def format(self) -> Format:
        """Format of the tensor."""
        return self.packed.format

    @property
    def columns(self) -> int:
        """Number of columns."""
        return self.packed.shape[-1]

    def codes(self) -> Tensor:
        """Return the codes as bit patterns, uint8 ``[rows, columns]``."""
        return self.packed.unpack().to(torch.uint8)

    def zeros(self) -> Tensor:
        """Return the zero points, ``[rows, groups]``."""
        zeros = self.packed.unpack_zeros()
        assert zeros is not None  # formats that have them
        return self._per_row(zeros)

    def halves(self) -> Tensor:
        """Return the scales of integers as float16, ``[rows, groups]``. Raises NoTypeError for one that is none."""
        scales = self._floats()
        if scales is not None:
            halves = scales.half()
            wrong = self._with_codes(halves.float() != scales.float())
            self.refuse(wrong, lambda place: f"scale {scales[place].item()} is no finite float16")
            return halves.nan_to_num(posinf=0, neginf=0)
        exponents = self._exponents(*_HALVES, "float16")
        return torch.ldexp(torch.ones(exponents.shape), exponents).half()

    def scales(self) -> Tensor:
        """Return the scales of integers as float32, ``[rows, groups]``. Raises NoTypeError for one that is none."""
        scales = self._floats()
        if scales is not None:
            return scales.float()
        exponents = self._exponents(*_SINGLES, "float32")
        return torch.ldexp(torch.ones(exponents.shape, dtype=torch.float64), exponents).float()

    def _floats(self) -> Tensor | None:
        """Return the scales as they are stored, ``[rows, groups]``; None of powers of two."""
        if self.format.scale_type not in ("float16", "float32"):
            return None
        scales = self._per_row(self.packed.scales)
        self.refuse(~scales.isfinite(), lambda place: f"scale {scales[place].item()} is no finite float16")
        return scales

    def _exponents(self, least: int, most: int, dtype: str) -> Tensor:
        """Return the exponents of scales that are powers of two, ``[rows, groups]``, those of zeros in the bounds."""
        fmt, scales = self.format, self.packed.scales
        if fmt.scale_type is None:
            exponents = torch.full((len(self.packed), 1), _step(fmt))
        elif fmt.scale_type == "int8":
            exponents = -self._per_row(scales).int()
        else:
            exponents = scales.int() - 127 - _step(fmt)
            self.refuse(scales == 255, lambda place: "scale code 255, which is NaN")
        wrong = self._with_codes((exponents < least) | (exponents > most))
        self.refuse(wrong, lambda place: f"scale 2^{exponents[place].item()} is no {dtype}")
        return exponents.clamp(least, most)

    def _per_row(self, groups: Tensor) -> Tensor:
        """Return values of groups as ``[rows, groups]``, where a tensor may have one for all rows."""
        return groups if groups.ndim == 2 else groups.expand(len(self.packed), 1)

    def _with_codes(self, groups: Tensor) -> Tensor:
        """Return which of ``groups`` have codes that are not 0; the scale of others means nothing."""
        if not groups.any():
            return groups
        columns = min(self.format.block or self.columns, self.columns)
        padded = torch.nn.functional.pad(self.integers(), (0, -self.columns % columns))
        return groups & (padded.unflatten(1, (-1, columns)) != 0).any(2)

    def refuse(self, wrong: Tensor, reason_of: Callable[[tuple[int, int]], str]) -> None:
        """Refuse the first group that is wrong; ``wrong``: ``[rows, groups]``."""
        if wrong.any():
            row, group = (int(one) for one in wrong.nonzero()[0])
            raise NoTypeError(f"row {self.first + row}, group {group}: {reason_of((row, group))}")

    def integers(self) -> Tensor:
        """Return the codes as the integers that scales multiply, int16 ``[rows, columns]``."""
        fmt, codes = self.format, self.packed.unpack().to(torch.int16)
        if fmt.core.has_zeros:
            return codes - self.spread(self.zeros().to(torch.int16), 1)
        if fmt.family == "binary":
            return 1 - 2 * codes
        if fmt.family == "bfp":  # sign and magnitude
            magnitude = codes & (1 << fmt.width - 1) - 1
            return torch.where(codes >> fmt.width - 1 == 1, -magnitude, magnitude)
        if is_unsigned(fmt):
            return codes
        return codes - ((codes >> fmt.width - 1) << fmt.width)

    def spread(self, groups: Tensor, span: int) -> Tensor:
        """Return values of groups, of which the last may be short, as those of ``span`` elements, ``[rows, spans]``."""
        each = min(self.format.block or self.columns, self.columns) // span
        return groups.repeat_interleave(each, 1)[:, : self.columns // span]

    def blocks(self, groups: Tensor, span: int) -> Tensor:
        """Return a value of each group as one of each block of ``span`` elements, ``[rows * blocks, 1]``."""
        return self.spread(groups, span).reshape(-1, 1)


def pack_codes(codes: Tensor, width: int) -> Tensor:
    """Return rows of codes, one a byte, as dense streams of ``width`` bits, the first code in the lowest bits."""
    rows, count = codes.shape
    out = torch.empty(rows, (count * width + 7) // 8, dtype=torch.uint8)
    wide = codes.to(torch.int32).contiguous()
    _core._pack(width, rows, count, wide.data_ptr(), out.data_ptr())
    return out


def is_unsigned(fmt: Format) -> bool:
    """Whether a format is of fixed point without a sign."""
    return str(fmt).startswith("ufixed")


def _step(fmt: Format) -> int:
    """Return what is taken off the exponent of a format's scale for its integers, or the exponent of a fixed step."""
    if fmt.scale_type is None:
        return int(math.log2(fmt.smallest))  # of fixed; 0 of :unit
    return fmt.width - 2 if fmt.family == "mxint" else fmt.width - 1


def _matrix(packed: PackedTensor) -> PackedTensor:
    """Return a tensor with all dimensions but the last in one."""
    if packed.ndim == 2 and not packed.is_sparse:
        return packed
    codes, scales, zeros, levels = packed.parts
    rows = math.prod(packed.shape[:-1])
    per_row = packed.format.granularity in ("channel", "block")
    codes, scales, zeros = (
        part.reshape(rows, *part.shape[packed.ndim - 1 :]) if part is codes or (per_row and part.numel()) else part
        for part in (codes, scales, zeros)
    )
    shape = rows, packed.shape[-1]
    return PackedTensor(packed.format, codes, scales, zeros, levels, shape=shape, dtype=packed.dtype)
