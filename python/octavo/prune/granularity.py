"""Granularities: the units of pruning, and the aggregation of element values to unit values.

A layer's weight is treated as the matrix ``[N, K]`` of its product: rows are outputs, columns inputs, kernels flat.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional

from octavo.errors import ModelError
from octavo.prune.target_layers import Target

MATRIX, STRUCTURES = ("element", "row", "column"), ("head", "neuron", "layer")
_ACCEPTED = f"{', '.join(MATRIX)}, N:M such as 2:4, block:RxC such as block:4x4, {', '.join(STRUCTURES)}"


@dataclass(frozen=True)
class Granularity:
    """The unit of pruning: ``kind`` and, for ``N:M`` and blocks, two sizes.

    ``N:M``: N of every M elements along the last dimension remain; of a short last group of r elements ``ceil(r N /
    M)``. ``block:RxC``: blocks of R rows and C columns; blocks at the edges may be smaller.
    """

    kind: str
    sizes: tuple[int, int] | None = None

    @classmethod
    def parse(cls, text: str) -> Granularity:
        """Read a granularity. Raises ModelError with the accepted ones."""
        if text in (*MATRIX, *STRUCTURES):
            return cls(text)
        if isinstance(text, str) and (match := re.fullmatch(r"(\d{1,6}):(\d{1,6})", text)):
            n, m = int(match[1]), int(match[2])
            if 0 < n < m:
                return cls("N:M", (n, m))
            raise ModelError(f"granularity {text!r} keeps {n} of every {m}; accepted are N from 1 to below M")
        block = re.fullmatch(r"block:([1-9]\d{0,5})x([1-9]\d{0,5})", text) if isinstance(text, str) else None
        if block:
            return cls("block", (int(block[1]), int(block[2])))
        raise ModelError(f"unknown granularity {text!r}; accepted are {_ACCEPTED}")

    def __str__(self) -> str:
        """Return the text that :meth:`parse` reads."""
        if self.sizes is None:
            return self.kind
        a, b = self.sizes
        return f"{a}:{b}" if self.kind == "N:M" else f"block:{a}x{b}"

    @property
    def is_structure(self) -> bool:
        """Whether units span several tensors."""
        return self.kind in STRUCTURES


@runtime_checkable
class Units(Protocol):
    """The units of one ranking: units of one tensor, or structures of one module."""

    @property
    def name(self) -> str:
        """The tensor or module, for reports and errors."""
        ...

    @property
    def cohort(self) -> tuple[object, ...]:
        """Units with equal cohorts are isomorphic: the isomorphic scope ranks them together."""
        ...

    @property
    def sparsity(self) -> float:
        """The share to be pruned."""
        ...

    @property
    def sizes(self) -> Tensor:
        """Elements of each unit, int64 ``[count]``."""
        ...

    @property
    def home(self) -> tuple[str, str]:
        """Path of the layer and name of the parameter with which the scores of the units are stored."""
        ...

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """Path of the layer and name of every parameter that contains the units."""
        ...

    def sums(self, values: Callable[[str, str], Tensor]) -> Tensor:
        """Return the sum of each unit's elements, ``[count]``; ``values``: of a parameter, in its shape."""
        ...

    def elements(self, pruned: Tensor) -> dict[tuple[str, str], Tensor]:
        """Return the elements of the ``pruned`` units, bool ``[count]``, in the shape of each parameter."""
        ...

    def whole(self, pruned: Callable[[str, str], Tensor]) -> Tensor:
        """Return the units whose elements are all pruned already, bool ``[count]``."""
        ...


@dataclass(frozen=True, eq=False)
class MatrixUnits:
    """Elements, rows, columns or blocks of one layer's weight."""

    target: Target
    granularity: Granularity

    @property
    def name(self) -> str:
        """The full name of the weight."""
        return self.target.name

    @property
    def sparsity(self) -> float:
        """The share of the units to be pruned."""
        return self.target.sparsity

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix of units."""
        rows, columns = self.target.shape
        block = self._block
        return -(-rows // block[0]), -(-columns // block[1])

    @property
    def _block(self) -> tuple[int, int]:
        """Rows and columns of a unit."""
        rows, columns = self.target.shape
        kinds = {"row": (1, max(columns, 1)), "column": (max(rows, 1), 1), "block": self.granularity.sizes or (1, 1)}
        return kinds.get(self.granularity.kind, (1, 1))

    @property
    def cohort(self) -> tuple[object, ...]:
        """Class and shape of the layer, and its path without numbers: the same part of every repeated block."""
        return (self.target.kind, self.target.shape, re.sub(r"\d+", "*", self.target.path), self.sparsity)

    @property
    def home(self) -> tuple[str, str]:
        """The weight."""
        return self.target.path, "weight"

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """The weight."""
        return (self.home,)

    @property
    def sizes(self) -> Tensor:
        """Elements of each unit; those at an edge may be smaller."""
        (rows, columns), (r, c) = self.target.shape, self._block
        heights = torch.full((self.shape[0],), r)
        widths = torch.full((self.shape[1],), c)
        if rows % r:
            heights[-1] = rows % r
        if columns % c:
            widths[-1] = columns % c
        return (heights[:, None] * widths).flatten()

    def sums(self, values: Callable[[str, str], Tensor]) -> Tensor:
        """Return the sums, in float64 for units of several elements, so that the order of sums matters little."""
        matrix = self.target.matrix(values(*self.home))
        if self._block == (1, 1):
            return matrix.flatten()
        return self._blocks(matrix.double()).sum((1, 3)).flatten()

    def _blocks(self, matrix: Tensor) -> Tensor:
        """Return ``[rows, r, columns, c]``, the matrix padded with zeros."""
        (rows, columns), (r, c) = self.shape, self._block
        padding = (0, columns * c - matrix.shape[1], 0, rows * r - matrix.shape[0])
        return functional.pad(matrix, padding).view(rows, r, columns, c)

    def elements(self, pruned: Tensor) -> dict[tuple[str, str], Tensor]:
        """Return the elements of the weight."""
        (rows, columns), (r, c), (height, width) = self.shape, self._block, self.target.shape
        spread = pruned.view(rows, columns)
        if (r, c) != (1, 1):
            spread = spread.repeat_interleave(r, 0).repeat_interleave(c, 1)[:height, :width]
        return {self.home: self.target.weight_of(spread)}

    def whole(self, pruned: Callable[[str, str], Tensor]) -> Tensor:
        """Return the units that are pruned already."""
        matrix = self.target.matrix(pruned(*self.home))
        if self._block == (1, 1):
            return matrix.flatten()
        return self._blocks(matrix.float()).sum((1, 3)).flatten() == self.sizes.to(matrix.device)
