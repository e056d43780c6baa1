"""SparseCodes: the codes of a packed tensor without those that are 0, and a bitmap that tells where they were."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from octavo import _core
from octavo.errors import FormatError, ShapeError
from octavo.tensors.tensor_memory import check_held

PANEL = 16
"""Rows of a panel: the bitmap has a word for four columns of so many rows."""
_QUAD = 4
_EXPANDED = 4 << 20
"""Bytes of dense codes that are expanded at a time, about."""
_ALIGNED = 64
"""Rows that expanded pieces are a multiple of: units of work of every kernel."""


_BITS = torch.tensor([byte.bit_count() for byte in range(256)])


class SparseCodes(NamedTuple):
    """Codes that are not 0, of rows of codes. Source: FORMATS.md section 5, "Sparse codes".

    ``codes``: uint8, a stream of bits. ``bitmap``: int64 ``[panels, quads]``, a bit for each element, in words of 4
    columns of 16 rows. ``starts``: int64 ``[panels + 1]``, codes before each panel, and all.
    """

    codes: Tensor
    bitmap: Tensor
    starts: Tensor

    @property
    def nonzero(self) -> int:
        """Number of codes that are not 0."""
        return int(self.starts[-1])

    @property
    def nbytes(self) -> int:
        """Bytes of codes and bitmap: what a file holds. The starts follow from the bitmap."""
        return self.codes.nbytes + self.bitmap.nbytes

    def map(self, of: Callable[[Tensor], Tensor]) -> SparseCodes:
        """Return what ``of`` makes of each part."""
        return SparseCodes(*(of(part) for part in self))


def bitmap_shape(rows: int, columns: int) -> tuple[int, int]:
    """Return the shape of the bitmap of a matrix of codes; ``(0, 0)`` where there is no element."""
    return (-(-rows // PANEL), -(-columns // _QUAD)) if rows and columns else (0, 0)


@lru_cache(maxsize=1024)
def takes(format: _core.Format) -> bool:
    """Whether codes of a format that are 0 may be left out: at most 8 bits, 0 the code of +0, no zero points."""
    return _core._sparse_takes(format)


def refuse_others(format: _core.Format) -> None:
    """Refuse a format without a code to leave out. Raises FormatError."""
    if not takes(format):
        raise FormatError(
            f"'{format}' has no sparse codes; accepted are formats of up to 8 bits whose code 0 is +0 and that have no "
            "zero points, such as int8:g32, mxint8, mxfp6e2m3, int4:g32"
        )


def count(codes: Tensor, format: _core.Format, rows: int, columns: int) -> int:
    """Count the dense ``codes``, uint8 on the CPU, that are not 0. Raises FormatError, ShapeError."""
    refuse_others(format)
    codes = _dense(codes, format, rows, columns)
    return _core._sparse_count(format.width, rows, columns, codes.data_ptr())


def compress(codes: Tensor, format: _core.Format, rows: int, columns: int, nonzero: int | None = None) -> SparseCodes:
    """Leave out the dense ``codes`` that are 0. ``nonzero``: how many are not, where that is known.

    Raises FormatError for a format without a code to leave out, ShapeError.
    """
    nonzero = count(codes, format, rows, columns) if nonzero is None else nonzero
    codes = _dense(codes, format, rows, columns)
    nonzero_codes = torch.empty(code_bytes(nonzero, format.width), dtype=torch.uint8)
    bitmap = torch.empty(bitmap_shape(rows, columns), dtype=torch.int64)
    out = nonzero_codes.data_ptr(), bitmap.data_ptr()
    _core._sparse_compress(format.width, rows, columns, nonzero, codes.data_ptr(), out)
    return of_parts(nonzero_codes, bitmap, nonzero, rows, columns)


def code_bytes(nonzero: int, width: int) -> int:
    """Return the bytes of so many codes of ``width`` bits."""
    return (nonzero * width + 7) // 8


def sparse_bytes(nonzero: int, width: int, rows: int, columns: int) -> int:
    """Return the bytes of codes and bitmap of a matrix with so many codes that are not 0."""
    panels, quads = bitmap_shape(rows, columns)
    return code_bytes(nonzero, width) + 8 * panels * quads


def of_parts(codes: Tensor, bitmap: Tensor, nonzero: int, rows: int, columns: int) -> SparseCodes:
    """Return the sparse codes of what a file holds, the bitmap checked. Raises ShapeError for one that does not fit."""
    panels, quads = bitmap_shape(rows, columns)
    if bitmap.dtype != torch.int64 or tuple(bitmap.shape) != (panels, quads):
        raise ShapeError(
            f"sparse codes: the bitmap is {bitmap.dtype} {tuple(bitmap.shape)}, expected torch.int64 {(panels, quads)}"
        )
    check_held(bitmap, "sparse codes: the bitmap")
    bitmap = bitmap.contiguous()
    starts = torch.empty(panels + 1, dtype=torch.int64)
    _core._sparse_starts(rows, columns, nonzero, bitmap.data_ptr(), starts.data_ptr())
    starts[panels] = nonzero
    return SparseCodes(codes, bitmap, starts)


def popcount(bitmap: Tensor) -> int:
    """Return the bits of a bitmap, int64, that are set."""
    return int(_BITS[bitmap.contiguous().view(-1).view(torch.uint8).int()].sum()) if bitmap.numel() else 0


def addresses(sparse: SparseCodes, format: _core.Format, rows: int, columns: int) -> tuple[int, int, int, int]:
    """Return address and bytes of the codes, and the addresses of bitmap and starts. Raises ShapeError."""
    panels, quads = bitmap_shape(rows, columns)
    wanted = (torch.uint8, tuple(sparse.codes.shape)), (torch.int64, (panels, quads)), (torch.int64, (panels + 1,))
    for name, part, (dtype, shape) in zip(sparse._fields, sparse, wanted, strict=True):
        if part.dtype != dtype or part.ndim != len(shape) or tuple(part.shape) != shape or not part.is_contiguous():
            raise ShapeError(
                f"sparse '{format}' of shape ({rows}, {columns}): {name} are {part.dtype} {tuple(part.shape)}, "
                f"expected {dtype} {shape}, contiguous"
            )
        if not part.is_cpu:
            raise ShapeError(f"sparse '{format}': {name} are on {part.device}; sparse codes are read on the CPU")
        check_held(part, f"sparse '{format}': {name}")
    codes, bitmap, starts = sparse
    return codes.data_ptr(), codes.nbytes, bitmap.data_ptr(), starts.data_ptr()


def expand(
    sparse: SparseCodes, format: _core.Format, rows: int, columns: int, first: int = 0, some: int | None = None
) -> Tensor:
    """Return dense codes of ``some`` rows from ``first`` on, a multiple of 16: uint8 ``[some, row_bytes]``.

    Raises ShapeError where the parts do not fit, and for rows that the matrix does not have.
    """
    some = rows - first if some is None else some
    if first < 0 or first % PANEL or not 0 <= some <= rows - first:
        raise ShapeError(
            f"sparse '{format}' of shape ({rows}, {columns}): {some} rows from row {first} on; accepted are rows of "
            f"the matrix, from a multiple of {PANEL} on"
        )
    at = addresses(sparse, format, rows, columns)
    out = torch.empty(some, code_bytes(columns, format.width), dtype=torch.uint8)
    _core._sparse_expand(format.width, rows, columns, first, some, at, out.data_ptr())
    return out


def pieces(format: _core.Format, rows: int, columns: int) -> list[tuple[int, int]]:
    """Return first rows and numbers of rows of the pieces that a matrix is expanded in, all about as large."""
    most = max(_EXPANDED // max(code_bytes(columns, format.width), 1) // _ALIGNED, 1) * _ALIGNED
    parts = max(-(-rows // most), 1)
    each = max(-(-rows // parts // _ALIGNED), 1) * _ALIGNED
    return [(first, min(each, rows - first)) for first in range(0, rows, each)] or [(0, 0)]


def _dense(codes: Tensor, format: _core.Format, rows: int, columns: int) -> Tensor:
    if codes.dtype != torch.uint8 or codes.numel() != rows * code_bytes(columns, format.width) or not codes.is_cpu:
        raise ShapeError(
            f"'{format}' of shape ({rows}, {columns}): codes are {codes.dtype} {tuple(codes.shape)} on {codes.device}, "
            "expected dense codes on the CPU"
        )
    check_held(codes, f"'{format}': codes")
    return codes.contiguous()
