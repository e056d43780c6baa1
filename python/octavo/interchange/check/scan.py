"""Passes over raw tensors, a chunk at a time in their own dtype: a pass copies a megabyte, never a tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.interchange.check.findings import PLACES, Place
from octavo.interchange.check.source import Raw

CHUNK = 1 << 20
"""Bytes of a chunk; two of them stay in a core's L2 cache."""
PAGE = 4096

_MASKS = {
    # Bits of the magnitude, and the magnitude of infinity: whatever is larger is NaN.
    "F64": (0x7FFF_FFFF_FFFF_FFFF, 0x7FF0_0000_0000_0000),
    "F32": (0x7FFF_FFFF, 0x7F80_0000),
    "BF16": (0x7FFF, 0x7F80),
    "F16": (0x7FFF, 0x7C00),
    "F8_E5M2": (0x7F, 0x7C),
    "F8_E4M3": (0x7F, 0x7F),  # no infinity; its NaN counts as one
    "F8_E8M0": (0xFF, 0xFF),
}


@dataclass
class Bits:
    """What the bit patterns of a tensor are: how many are NaN, infinite and negative, and whether all are zero."""

    nan: int = 0
    infinite: int = 0
    negative: int = 0
    largest: int = 0
    smallest: int = 1 << 64
    wrong: list[int] | None = None

    @property
    def is_zero(self) -> bool:
        """Whether every element is zero."""
        return self.largest == 0


def bits_of(raw: Raw, dtype: str | None = None) -> Bits:
    """Return the facts about the elements of a float tensor.

    Args:
        raw: the tensor.
        dtype: as which its bytes are read; None for its own.

    Returns:
        Counts and the positions of the first elements that are not finite.
    """
    dtype = dtype or raw.dtype
    mask, infinity = _MASKS[dtype]
    words = raw.words()
    kind = words.dtype.type
    facts = Bits(wrong=[])
    assert facts.wrong is not None
    step = CHUNK // words.itemsize
    room = np.empty(min(step, len(words)), words.dtype)
    for start in range(0, len(words), step):
        part = words[start : start + step]
        magnitudes = np.bitwise_and(part, kind(mask), out=room[: len(part)])
        largest = int(magnitudes.max())
        facts.largest = max(facts.largest, largest)
        facts.smallest = min(facts.smallest, int(magnitudes.min()))
        if largest >= infinity:
            exact = infinity if dtype not in ("F8_E4M3", "F8_E8M0") else -1
            odd = np.flatnonzero(magnitudes >= infinity)
            facts.infinite += int((magnitudes[odd] == exact).sum()) if exact >= 0 else 0
            facts.wrong += [start + int(one) for one in odd[: PLACES - len(facts.wrong)]]
            facts.nan += len(odd)
    facts.nan -= facts.infinite
    return facts


def places(
    raw: Raw, positions: list[int], blocks: int, texts: list[str], *, turned: bool = False, step: int = 0
) -> list[Place]:
    """Return elements of a grid of scales as places.

    Args:
        raw: tensor of the scales, which begins at the first of them.
        positions: which elements.
        blocks: how many a row has, or ``turned``, how many rows there are.
        texts: the value of each element.
        turned: rows lie along the last axis.
        step: bytes from an element to the next; 0 for its size.

    Returns:
        A place for each element.
    """
    step = step or raw.itemsize
    listed = []
    for position, text in zip(positions, texts, strict=True):
        row, block = divmod(position, max(blocks, 1))
        if turned:
            row, block = block, row
        listed.append(Place(raw.offset + position * step, row, block, text))
    return listed


def sample(data: NDArray[Any], most: int = 1 << 18) -> NDArray[Any]:
    """Return up to ``most`` elements of a flat array, in 16 runs spread over it."""
    if len(data) <= most:
        return data
    run = most // 16
    starts = np.linspace(0, len(data) - run, 16).astype(np.int64)
    return np.concatenate([data[start : start + run] for start in starts])


def constant_pages(data: NDArray[np.uint8]) -> tuple[int, int, int]:
    """Return how many pages of 4 KiB repeat one word of 8 bytes, how many there are, and the first of them; -1: none.

    Memory that nobody wrote to comes in pages. Data of less than a page is one.
    """
    page = PAGE if len(data) >= PAGE else len(data) // 8 * 8
    if page == 0:
        return 0, 0, -1
    words = data[: len(data) // page * page].reshape(-1, page).view(np.uint64)
    step = max(CHUNK // page, 1)
    count, first = 0, -1
    for start in range(0, len(words), step):
        part = words[start : start + step]
        same = np.flatnonzero((part == part[:, :1]).all(1))
        count += len(same)
        if first < 0 and len(same):
            first = start + int(same[0])
    return count, len(words), first
