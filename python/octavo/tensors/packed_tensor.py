"""PackedTensor: an encoded tensor - dense codes, scales, Format, logical shape and dtype."""

from __future__ import annotations

import math
from numbers import Integral
from operator import index
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from octavo import _core
from octavo.errors import DTypeError, FormatError, ShapeError
from octavo.late_binding import late
from octavo.storage.arguments import checks_arguments
from octavo.storage.reading import shown
from octavo.tensors.formats import Format
from octavo.tensors.sparse_codes import SparseCodes, compress, count, expand, refuse_others, sparse_bytes
from octavo.tensors.tensor_memory import check_held
from octavo.tensors.tensor_parts import FLOATS as FLOATS
from octavo.tensors.tensor_parts import SCALE_DTYPES as SCALE_DTYPES
from octavo.tensors.tensor_parts import is_plain, not_plain
from octavo.tensors.tensor_parts import part_shapes as part_shapes
from octavo.tensors.tensor_parts import part_specs as part_specs
from octavo.tensors.tensor_parts import symbolic_specs as symbolic_specs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike

Parts: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]
"""Codes, scales, zeros and levels of an encoded tensor."""

_ATTRIBUTES = ("format", "shape", "dtype", "scale", "axis", "_codes", "scales", "zeros", "levels", "sparse")


class PackedTensor:
    """An encoded tensor. Immutable: another format, shape or part makes another PackedTensor.

    Made by :func:`octavo.encode` and :func:`octavo.load`. The bytes of the parts may be written in place; each function
    that reads them checks their sizes again. Source: FORMATS.md section 5.

    Args:
        format: format of the codes.
        codes: uint8, ``[..., row_bytes]``, the axis moved last.
        scales: ``[..., groups]`` in their storage dtype (uint8 codes for shared exponents and E4M3, float32, float16,
            or int8 fraction bits); ``[1]`` for ``:tensor``; empty without scales.
        zeros: packed zero points (``uintW``), else empty.
        levels: float32 ``[1]`` (``nvfp4``), else empty.
        shape: logical shape.
        dtype: logical dtype, float32, float16 or bfloat16.
        axis: axis that rows, groups and blocks run along.
        scale: rule that chose the block scales.

    Raises:
        ShapeError: where a part, the shape or the axis does not fit the format.
        DTypeError: for another dtype or kind of object.

    Example:
        >>> packed = octavo.encode(torch.eye(64), "mxint8")
        >>> packed.nbytes, packed.bits_per_element  # 8 bits, and a byte for each 32
        (4224, 8.25)
        >>> packed[3].decode().argmax()  # rows are read without decoding the others
        tensor(3)
        >>> packed.to_sparse().nbytes  # a bit for each element, and the codes that are not 0
        704
    """

    __slots__ = ("_codes", "axis", "dtype", "format", "levels", "scale", "scales", "shape", "sparse", "zeros")

    format: Format
    shape: tuple[int, ...]
    dtype: torch.dtype
    scale: str
    axis: int
    scales: Tensor
    zeros: Tensor
    levels: Tensor
    sparse: SparseCodes | None
    _codes: Tensor | None

    def __init__(
        self,
        format: Format,
        codes: Tensor,
        scales: Tensor,
        zeros: Tensor,
        levels: Tensor,
        *,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        axis: int = -1,
        scale: str = "floor",
    ) -> None:
        """Check the parts against the format and keep them."""
        if not isinstance(format, Format):
            raise DTypeError(f"format is a {type(format).__name__}; accepted is a Format, such as Format('mxint8')")
        if not isinstance(dtype, torch.dtype) or dtype not in FLOATS:
            raise DTypeError(f"logical dtype {shown(dtype)}; accepted are float32, float16, bfloat16")
        try:
            shape = tuple([index(n) for n in shape])
        except TypeError as error:
            raise ShapeError(f"'{format}': shape {shown(shape)}; accepted is a tuple of whole numbers") from error
        if not isinstance(axis, int) or isinstance(axis, bool) or not isinstance(scale, str):
            raise ShapeError(
                f"'{format}': axis {shown(axis)} and scale rule {shown(scale)}; accepted are an integer and a text"
            )
        specs = part_specs(format.core, shape, axis)
        for part, (name, kind, part_shape) in zip((codes, scales, zeros, levels), specs, strict=True):
            if not is_plain(part):
                raise not_plain(part, f"'{format}' of shape {shape}: {name}")
            if part.dtype != kind or part.shape != part_shape:
                raise ShapeError(
                    f"'{format}' of shape {shape}: {name} are {part.dtype} {tuple(part.shape)}, "
                    f"expected {kind} {tuple(part_shape)}"
                )
        self._hold(format, shape, dtype, scale, axis % max(len(shape), 1), codes, scales, zeros, levels, None)

    def _hold(self, *values: object) -> None:
        for name, value in zip(_ATTRIBUTES, values, strict=True):
            object.__setattr__(self, name, value)

    @classmethod
    def _encoded(
        cls,
        format: Format,
        parts: Parts,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        axis: int,
        scale: str,
    ) -> PackedTensor:
        """Return a PackedTensor of parts that an op has just made for this format and shape."""
        packed = object.__new__(cls)
        packed._hold(format, shape, dtype, scale, axis % max(len(shape), 1), *parts, None)
        return packed

    @classmethod
    @checks_arguments
    def of_sparse(
        cls,
        format: Format,
        sparse: SparseCodes,
        scales: Tensor,
        zeros: Tensor,
        levels: Tensor,
        *,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        axis: int = -1,
        scale: str = "floor",
    ) -> PackedTensor:
        """Return a PackedTensor over sparse codes.

        Args:
            format: format of the codes.
            sparse: the codes that are not 0, and the bitmap of all.
            scales: as for the class.
            zeros: as for the class.
            levels: as for the class.
            shape: logical shape.
            dtype: logical dtype, float32, float16 or bfloat16.
            axis: axis that rows, groups and blocks run along.
            scale: rule that chose the block scales.

        Returns:
            The packed tensor.

        Raises:
            FormatError: for a format without a code to leave out.
            ShapeError: as the class.
            DTypeError: as the class.
        """
        refuse_others(format.core)
        specs = part_specs(format.core, tuple(shape), axis)
        # No memory: an empty tensor stretched to the shape of the dense codes.
        codes = torch.empty((1,) * len(specs[0][2]), dtype=torch.uint8).expand(specs[0][2])
        packed = cls(format, codes, scales, zeros, levels, shape=shape, dtype=dtype, axis=axis, scale=scale)
        object.__setattr__(packed, "_codes", None)
        object.__setattr__(packed, "sparse", sparse)
        return packed

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: the parts fit the format and the shape, as was checked when they were given."""
        raise AttributeError(f"PackedTensor is immutable; cannot set {name!r}, build a new PackedTensor instead")

    def __delattr__(self, name: str) -> None:
        """Refuse: as for setting."""
        raise AttributeError(f"PackedTensor is immutable; cannot delete {name!r}, build a new PackedTensor instead")

    def _with_rule(self, scale: str) -> None:
        """Note the scale rule of what was just encoded into the parts."""
        object.__setattr__(self, "scale", scale)

    @property
    def codes(self) -> Tensor:
        """Dense codes, uint8 ``[..., row_bytes]``; of sparse codes a copy that is made at each reading."""
        if self.sparse is None:
            assert self._codes is not None  # one of both is there
            return self._codes
        codes = expand(self.sparse, self.format.core, *self._matrix())
        return codes.view(part_specs(self.format.core, self.shape, self.axis)[0][2])

    @property
    def parts(self) -> Parts:
        """Codes, scales, zeros and levels; parts the format does not have are empty."""
        return self.codes, self.scales, self.zeros, self.levels

    @property
    def held_parts(self) -> tuple[Tensor, ...]:
        """Parts as they are in memory: of sparse codes those that are not 0, and the bitmap behind the other parts."""
        if self.sparse is None:
            return self.parts
        return self.sparse.codes, self.scales, self.zeros, self.levels, self.sparse.bitmap

    @property
    def is_sparse(self) -> bool:
        """Whether codes that are 0 are left out."""
        return self.sparse is not None

    def _matrix(self) -> tuple[int, int]:
        """Rows and columns of the codes."""
        columns = self.shape[self.axis] if self.shape else 1
        return math.prod(n for i, n in enumerate(self.shape) if i != self.axis), columns

    @checks_arguments
    def to_sparse(self, *, if_smaller: bool = False) -> PackedTensor:
        """Return the same tensor with the codes that are 0 left out, and a bit for each element in their place.

        It decodes to the same bits. Products read sparse codes as they are where a kernel does
        (:func:`octavo.explain`); other functions expand them first. Source: FORMATS.md section 5.

        Args:
            if_smaller: return this tensor where sparse codes take as many bytes or more.

        Returns:
            The sparse tensor.

        Raises:
            FormatError: for a format without a code to leave out (``nf4``, ``uint8``), unless ``if_smaller``.
            DTypeError: on a device other than the CPU.

        Example:
            >>> half = (torch.arange(4096) % 2).float().view(64, 64)
            >>> packed = octavo.encode(half, "int8:g32")
            >>> packed.nbytes, packed.to_sparse().nbytes  # half of the codes, and a bit for each
            (4352, 2816)
        """
        if self.sparse is not None:
            return self
        fmt, (rows, columns) = self.format.core, self._matrix()
        try:
            refuse_others(fmt)
        except FormatError:
            if if_smaller:
                return self
            raise
        if not self.codes.is_cpu:
            raise DTypeError(f"{self!r}: on {self.device}; codes are made sparse on the CPU")
        nonzero = count(self.codes, fmt, rows, columns)
        if if_smaller and sparse_bytes(nonzero, fmt.width, rows, columns) >= self.codes.nbytes:
            return self
        sparse = compress(self.codes, fmt, rows, columns, nonzero)
        return PackedTensor.of_sparse(self.format, sparse, *self.parts[1:], **self._logical())

    def to_dense(self) -> PackedTensor:
        """Return the same tensor with dense codes.

        Returns:
            The dense tensor; this one where it is dense.
        """
        return self if self.sparse is None else PackedTensor(self.format, *self.parts, **self._logical())

    def _logical(self) -> dict[str, Any]:
        return {"shape": self.shape, "dtype": self.dtype, "axis": self.axis, "scale": self.scale}

    @property
    def nbytes(self) -> int:
        """Bytes of all parts, in memory and on disk.

        Sparse codes take 8 bytes more in memory for each 16 rows.
        """
        return sum(part.numel() * part.element_size() for part in self.held_parts)

    @property
    def dense_nbytes(self) -> int:
        """Bytes of all parts with dense codes."""
        return sum(
            size.numel() * dtype.itemsize for _, dtype, size in part_specs(self.format.core, self.shape, self.axis)
        )

    @property
    def zeros_share(self) -> float | None:
        """Share of the codes that are 0, of sparse codes, 0 without elements; else None."""
        if self.sparse is None:
            return None
        return 1 - self.sparse.nonzero / self.numel() if self.numel() else 0.0

    @property
    def ndim(self) -> int:
        """Number of logical dimensions."""
        return len(self.shape)

    @property
    def bits_per_element(self) -> float:
        """Bytes times 8 over the number of elements."""
        return 8 * self.nbytes / max(self.numel(), 1)

    @property
    def device(self) -> torch.device:
        """Device of the parts."""
        return self.held_parts[0].device

    @property
    def is_meta(self) -> bool:
        """Whether the parts have no values."""
        return self.held_parts[0].is_meta

    @property
    def requires_grad(self) -> bool:
        """False: codes have no gradient. Code that knows tensors asks a weight for this."""
        return False

    def size(self, dim: int | None = None) -> torch.Size | int:
        """Return the logical shape, or one of its sizes, as a tensor does.

        Args:
            dim: number of a dimension, from the end if negative; None for all.

        Returns:
            The shape, or a size.

        Raises:
            ShapeError: for a dimension that is not there.
        """
        if dim is None:
            return torch.Size(self.shape)
        if not isinstance(dim, int) or isinstance(dim, bool) or not -self.ndim <= dim < self.ndim:
            raise ShapeError(f"{self!r}: dimension {shown(dim)}; accepted are {-self.ndim} to {self.ndim - 1}")
        return self.shape[dim]

    def numel(self) -> int:
        """Return the number of logical elements.

        Returns:
            The product of the shape.
        """
        return math.prod(self.shape)

    def __len__(self) -> int:
        """Return the length of the first logical dimension."""
        if not self.shape:
            raise TypeError("len() of a 0-d PackedTensor")
        return self.shape[0]

    def decode(self, dtype: torch.dtype | None = None) -> Tensor:
        """Decode to a tensor of the logical shape; see :func:`octavo.decode`.

        Args:
            dtype: float32, float16 or bfloat16; default: the logical dtype.

        Returns:
            A dense tensor.

        Raises:
            DTypeError: as :func:`octavo.decode`.
            ShapeError: as :func:`octavo.decode`.
        """
        return late("decode")(self, dtype=dtype)

    def numpy(self) -> np.ndarray:
        """Decode to a numpy array.

        Returns:
            An array of the logical dtype; float32 where that is bfloat16.
        """
        return self.decode(torch.float32 if self.dtype == torch.bfloat16 else None).numpy()

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        """Support ``np.asarray(packed)``; always a copy."""
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def unpack(self) -> Tensor:
        """Return the codes as bit patterns.

        Returns:
            int32, one an element, with the encoding axis moved last.

        Raises:
            ShapeError: where a part was resized in place or has no data.

        Example:
            >>> octavo.encode(torch.tensor([0.5, -1.0]), "int4").unpack()  # two's complement in 4 bits
            tensor([3, 9], dtype=torch.int32)
        """
        lead = [n for i, n in enumerate(self.shape) if i != self.axis]
        k = self.shape[self.axis] if self.shape else 1
        codes = self._host_part("codes")
        out = torch.empty([*lead, k] if self.shape else [], dtype=torch.int32)
        _core._unpack(self.format.width, math.prod(lead), k, codes.data_ptr(), out.data_ptr())
        return out

    def unpack_zeros(self) -> Tensor | None:
        """Return the zero points.

        Returns:
            int32, shaped like the scales; None for formats without zero points.

        Raises:
            ShapeError: where a part was resized in place or has no data.
        """
        if not self.format.core.has_zeros:
            return None
        zeros = self._host_part("zeros")
        *lead, per_row = part_specs(self.format.core, self.shape, self.axis)[1][2]
        out = torch.empty([*lead, per_row], dtype=torch.int32)
        _core._unpack(self.format.width, math.prod(lead), per_row, zeros.data_ptr(), out.data_ptr())
        return out

    def _host_part(self, name: str) -> Tensor:
        """Return a part where the core reads it. Raises ShapeError where it was resized in place or has no data."""
        part: Tensor = getattr(self, name)
        kind, shape = next(spec[1:] for spec in part_specs(self.format.core, self.shape, self.axis) if spec[0] == name)
        if part.dtype != kind or part.shape != shape or part.is_meta:
            raise ShapeError(
                f"{name} of '{self.format}' of shape {self.shape} are {part.dtype} {tuple(part.shape)} on "
                f"{part.device}, expected {kind} {tuple(shape)} with values; was the part resized in place?"
            )
        check_held(part, f"{name} of '{self.format}' of shape {self.shape}")
        return part.cpu().contiguous()

    @checks_arguments
    def to(self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> PackedTensor:
        """Return the same codes with another logical dtype or on another device; there they are dense.

        Args:
            dtype: float32, float16 or bfloat16; default: as it is.
            device: a device of torch or its name; default: as it is.

        Returns:
            The packed tensor.

        Raises:
            DTypeError: for another dtype, or a device that torch does not know.
        """
        if isinstance(device, str):
            try:
                device = torch.device(device)
            except RuntimeError as error:
                raise DTypeError(f"device is {shown(device)}; accepted are those of torch: {error}") from None
        if self.sparse is not None and (device is None or torch.device(device).type == "cpu"):
            logical = self._logical() | {"dtype": dtype or self.dtype}
            return PackedTensor.of_sparse(self.format, self.sparse, self.scales, self.zeros, self.levels, **logical)
        codes, scales, zeros, levels = (part.to(device) if device is not None else part for part in self.parts)
        return PackedTensor(
            self.format,
            codes,
            scales,
            zeros,
            levels,
            shape=self.shape,
            dtype=dtype or self.dtype,
            axis=self.axis,
            scale=self.scale,
        )

    def __getitem__(self, rows: slice | int) -> PackedTensor:
        """Return rows of the first dimension without decoding: ``packed[3]`` keeps the dimension, ``packed[2:8]``.

        Rows of sparse codes are dense.
        Raises IndexError outside the range, and ShapeError where rows are not stored apart (encoded along axis 0).
        """
        if not self.shape or self.axis == 0:
            raise ShapeError(f"{self!r}: rows are sliced along dimension 0, which must not be the encoding axis")
        if isinstance(rows, Integral) and not isinstance(rows, bool):
            rows = int(rows)
            if not -len(self) <= rows < len(self):
                raise IndexError(f"row {rows} is outside 0..{len(self) - 1}")
            rows = slice(rows % len(self), rows % len(self) + 1)
        if not isinstance(rows, slice):
            raise DTypeError(f"PackedTensor is indexed by an int or a slice of rows, got {type(rows).__name__}")
        parts = self.parts
        for part in parts:
            check_held(part, f"{self!r}: a part to slice")
        per_row = self.format.granularity in ("channel", "block")
        scales = self.scales[rows] if per_row else self.scales
        zeros = self.zeros[rows] if per_row and self.format.core.has_zeros else self.zeros
        codes = parts[0][rows]
        return PackedTensor(
            self.format, codes, scales, zeros, self.levels,
            shape=(codes.shape[0], *self.shape[1:]), dtype=self.dtype, axis=self.axis, scale=self.scale,
        )  # fmt: skip

    def __eq__(self, other: object) -> bool:
        """Compare format, shape, dtype, axis and every byte of the parts; sparse codes as the dense ones they are."""
        if not isinstance(other, PackedTensor):
            return NotImplemented
        alike = self.is_sparse and other.is_sparse
        mine, its = (self.held_parts, other.held_parts) if alike else (self.parts, other.parts)
        for part in (*mine, *its):
            check_held(part, "a part to compare")
        return self._key() == other._key() and all(
            torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
            for a, b in zip(mine, its, strict=True)
        )

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Refuse torch's own functions. Layers of torch that read weights past their modules ask for this, too, and
        then call the modules, which know packed weights.
        """
        name = getattr(func, "__name__", str(func))
        raise DTypeError(f"{name} takes no PackedTensor; decode() it, or call the layer that holds it")

    __hash__ = None  # type: ignore[assignment] # as the language has it for what compares and may change

    def _key(self) -> tuple[object, ...]:
        return self.format, self.shape, self.dtype, self.axis, self.scale

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle through the bytes of a container."""
        return late("loads_one"), (late("dumps")({"tensor": self}),)

    def __repr__(self) -> str:
        """Tell format, shape, dtype, axis, bytes and bits per element."""
        dtype = str(self.dtype).removeprefix("torch.")
        rule = "" if self.scale == "floor" else f", scale={self.scale!r}"
        return (
            f"PackedTensor('{self.format}', shape={self.shape}, dtype={dtype}, axis={self.axis}{rule}, "
            f"nbytes={self.nbytes}, bits_per_element={self.bits_per_element:.4g}"
            f"{'' if self.zeros_share is None else f', zeros={self.zeros_share:.1%}'})"
        )
