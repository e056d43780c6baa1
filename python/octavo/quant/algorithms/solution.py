"""The result of the weight solvers (GPTQ, HQQ), and the scales that they share with the Rust core."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from octavo.errors import DTypeError, FormatError, ShapeError
from octavo.ops.codec import encode
from octavo.storage.arguments import checks_arguments
from octavo.tensors.formats import Format
from octavo.tensors.packed_tensor import FLOATS, PackedTensor

RULES = ("floor", "ceil", "mse")


class Solution(NamedTuple):
    """A quantized weight and what encodes it: ``encode(weight, format, scales=.., zeros=.., levels=..)``.

    ``weight``: float, shape and dtype of the weight it came from, every element representable. ``scales``: as
    :func:`octavo.encode` stores them, None without. ``zeros``: int32 zero points, shaped like the scales (``uintW``),
    else None. ``levels``: nvfp4's tensor scale ``[1]``, else None.
    """

    weight: Tensor
    scales: Tensor | None
    zeros: Tensor | None
    levels: Tensor | None

    @checks_arguments
    def encode(self, format: Format | str) -> PackedTensor:
        """Return the codes, which decode to ``weight`` bit for bit.

        Args:
            format: the format that the weight was solved for.

        Returns:
            The packed weight.

        Raises:
            FormatError: for an unknown format.
            ShapeError: for a format that the scales do not fit.
        """
        return encode(self.weight, format, scales=self.scales, zeros=self.zeros, levels=self.levels)

    @classmethod
    @checks_arguments
    def of(cls, packed: PackedTensor) -> Solution:
        """Return the values and parts of a packed tensor.

        Args:
            packed: any.

        Returns:
            The solution.
        """
        core = packed.format.core
        return cls(
            packed.decode(),
            packed.scales if core.scale_type else None,
            packed.unpack_zeros(),
            packed.levels if core.has_levels else None,
        )


def checked_weight(weight: Tensor, algorithm: str) -> Tensor:
    """Return the weight, detached. Raises DTypeError or ShapeError for what no solver takes."""
    if not isinstance(weight, Tensor):
        raise DTypeError(f"{algorithm}: weight is a {type(weight).__name__}; accepted is a torch tensor")
    if weight.dtype not in FLOATS or not weight.is_cpu or weight.layout is not torch.strided:
        raise DTypeError(
            f"{algorithm}: weight is {weight.dtype} on {weight.device}; "
            "accepted are float32, float16, bfloat16 on the CPU"
        )
    if weight.ndim == 0:
        raise ShapeError(f"{algorithm}: weight has no dimensions; its last one is the one that products sum over")
    return weight.detach()


class Table:
    """Scales of a matrix as the Rust core works on them; begins with those that a codec's rule chose."""

    def __init__(self, packed: PackedTensor) -> None:
        """Copy the scales of ``packed``, whose axis is the last one."""
        self.format, self._shape = packed.format, packed.shape
        self.scales, self.zeros, self.levels = packed.scales.clone(), _zeros(packed), packed.levels

    @property
    def per_row(self) -> int:
        """Groups of a row; 1 for one scale a tensor."""
        block = self.format.block
        return -(-self._shape[-1] // block) if block else 1

    @property
    def groups(self) -> int:
        """Groups of the tensor."""
        core = self.format.core
        return self.scales.numel() // core.scales_per_group if core.scale_type else 0

    @property
    def addresses(self) -> tuple[int, int, float]:
        """The arguments of the Rust core."""
        level = self.levels.item() if self.format.core.has_levels else 0.0
        return self.scales.data_ptr(), self.zeros.data_ptr(), level

    def spread(self, rows: int) -> Table:
        """Return a table with a scale for each row: itself, or copies of the one scale of a tensor."""
        if self.format.granularity != "tensor":
            return self
        spread = object.__new__(Table)
        spread.format, spread._shape, spread.levels = self.format, self._shape, self.levels
        spread.scales = self.scales.expand(rows, *self.scales.shape).contiguous()
        spread.zeros = self.zeros.expand(rows, -1).contiguous() if self.zeros.numel() else self.zeros
        return spread

    def take(self, packed: PackedTensor, rows: Tensor) -> None:
        """Take the scales of some rows (a mask over all) from ``packed``; all of them where the tensor has one."""
        for mine, other in ((self.scales, packed.scales), (self.zeros, _zeros(packed))):
            if self.format.granularity == "tensor" and rows.any():
                mine.copy_(other)
            elif self.format.granularity != "tensor" and mine.numel():
                mine.view(len(rows), -1)[rows] = other.view(len(rows), -1)[rows]

    def equals(self, packed: PackedTensor) -> bool:
        """Tell whether ``packed`` has the same scales."""
        return torch.equal(self.scales, packed.scales) and torch.equal(self.zeros, _zeros(packed))

    def encode(self, values: Tensor, dtype: torch.dtype) -> PackedTensor:
        """Return the codes of ``values`` under these scales, with ``dtype`` as the logical dtype."""
        core = self.format.core
        packed = encode(
            values,
            self.format,
            scales=self.scales if core.scale_type else None,
            zeros=self.zeros if core.has_zeros else None,
            levels=self.levels if core.has_levels else None,
        )
        return packed.to(dtype=dtype)


def _zeros(packed: PackedTensor) -> Tensor:
    zeros = packed.unpack_zeros()
    return torch.empty(0, dtype=torch.int32) if zeros is None else zeros


def checked_rule(format: Format, scale: str) -> str:
    """Return the codec's rule to begin with. Raises FormatError for a rule that does not fit the format."""
    if scale not in RULES:
        raise FormatError(f"unknown scale rule {scale!r}; accepted are {', '.join(RULES)}")
    if scale == "ceil" and not format.is_block:
        raise FormatError(f"'{format}' has no block scale for the rule 'ceil'; accepted are floor, mse")
    return scale if format.is_block else "floor"
