"""Axes of tensors as products of parts, with a union-find of parts that are identical across tensors.

After a view has split it, the last axis of a query is ``[heads, head]``. A head of the query is identified with a head
of the key if both are multiplied head by head. A part that is normalized, summed or read as a whole is *mixed*: none of
its indices can be removed alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias


class Part:
    """One factor of an axis, of ``size`` indices.

    ``mixed``: why an index cannot be removed, or None. ``is_neutral``: its values are equal for all indices, as after a
    broadcast. ``is_batch``: a batch dimension of a product of two activations. ``is_active``: a nonlinear function was
    applied to it.
    """

    __slots__ = ("_parent", "factors", "is_active", "is_batch", "is_neutral", "mixed", "segments", "size")

    def __init__(self, size: int, *, neutral: bool = False, mixed: str | None = None) -> None:
        """Create a part that is identified with no other."""
        self.size = size
        self.factors: tuple[Part, Part] | None = None
        self.segments: dict[tuple[int, int], Part] = {}
        self.mixed, self.is_neutral = mixed, neutral
        self.is_batch = self.is_active = False
        self._parent: Part | None = None

    def root(self) -> Part:
        """The representative of all parts identified with this one."""
        part = self
        while part._parent is not None:
            part = part._parent
        return part

    def leaves(self) -> list[Part]:
        """The parts that this one was split into, outermost first; the part itself if it was not split."""
        part = self.root()
        if part.factors is None:
            return [part]
        return [leaf for factor in part.factors for leaf in factor.leaves()]

    def mix(self, why: str) -> None:
        """Record why no index of this part can be removed."""
        for leaf in self.leaves():
            if leaf.mixed is None:
                leaf.mixed = why
                for segment in leaf.segments.values():
                    segment.mix(why)

    def _split(self, outer: int) -> None:
        inner = self.size // outer
        if self.segments:
            self.mix("it is sliced in one place and split in another")
        self.factors = (
            Part(outer, neutral=self.is_neutral, mixed=self.mixed),
            Part(inner, neutral=self.is_neutral, mixed=self.mixed),
        )
        for factor in self.factors:
            factor.is_batch, factor.is_active = self.is_batch, self.is_active

    def segment(self, start: int, stop: int) -> Part:
        """Return the part of the indices ``start`` to ``stop`` of a leaf."""
        existing = self.segments.get((start, stop))
        if existing is not None:
            return existing
        part = Part(stop - start, neutral=self.is_neutral, mixed=self.mixed)
        overlaps = any(start < other_stop and other_start < stop for other_start, other_stop in self.segments)
        self.segments[start, stop] = part
        if overlaps:
            self.mix("its slices overlap")
        return part


Axis: TypeAlias = list[Part]
"""The parts of an axis, outermost first; none for a size of 1."""


def leaves(axis: Iterable[Part]) -> list[Part]:
    """Return the parts of an axis, with all splits so far."""
    return [leaf for part in axis for leaf in part.leaves()]


def fresh(size: int, *, neutral: bool = False, mixed: str | None = None) -> Axis:
    """Return an axis that is identified with no other."""
    return [] if size == 1 else [Part(size, neutral=neutral, mixed=mixed)]


def mix(axis: Iterable[Part], why: str) -> None:
    """Record why no index of an axis can be removed."""
    for part in axis:
        part.mix(why)


def join(a: Axis, b: Axis) -> Axis:
    """Identify two axes of equal size and return the result. If their parts cannot be matched, both are mixed."""
    left, right, joined = leaves(a), leaves(b), []
    while left and right:
        x, y = left.pop(0), right.pop(0)
        x, y = x.root(), y.root()
        if x.factors is not None or y.factors is not None:  # split in an earlier iteration: a part may occur twice
            left[:0], right[:0] = x.leaves(), y.leaves()
            continue
        if x.size == y.size:
            joined.append(_union(x, y))
        elif x.size % y.size == 0 and x.size > y.size:
            x._split(y.size)
            left[:0], right[:0] = x.leaves(), [y]
        elif y.size % x.size == 0:
            y._split(x.size)
            left[:0], right[:0] = [x], y.leaves()
        else:
            mix((*a, *b), "axes that are split in different ways meet")
            return a
    return joined


def _union(x: Part, y: Part) -> Part:
    if x is y or y.is_neutral:
        return x
    if x.is_neutral:
        return y
    y._parent = x
    x.is_batch, x.is_active = x.is_batch or y.is_batch, x.is_active or y.is_active
    segments, y.segments = y.segments, {}
    for (start, stop), part in segments.items():
        join([x.segment(start, stop)], [part])
    if why := x.mixed or y.mixed:
        x.mixed = None
        x.mix(why)
    return x


def reshaped(axes: Sequence[Axis], shape: Sequence[int]) -> list[Axis] | None:
    """Return the axes of a view with ``shape``; None if a new axis would begin inside a part that cannot be split."""
    queue = leaves(part for axis in axes for part in axis)
    view: list[Axis] = []
    for size in shape:
        axis: Axis = []
        missing = size
        while missing > 1:
            if not queue:
                return None
            part = queue.pop(0)
            if part.factors is not None or part._parent is not None:
                queue[:0] = part.leaves()
                continue
            if missing % part.size == 0:
                axis.append(part)
                missing //= part.size
            elif part.size % missing == 0:
                part._split(missing)
                queue[:0] = part.leaves()
            else:
                return None
        view.append(axis)
    return view if not queue else None


INSIDE = "it is the inside of a head"
"""The reason of mixed axes inside a head, which are expected and not reported."""


def size_of(axis: Axis) -> int:
    """Number of indices of an axis."""
    return math.prod(part.size for part in axis)
