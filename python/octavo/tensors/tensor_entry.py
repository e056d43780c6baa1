"""TensorEntry: one line of a container's table of contents. Neither torch nor numpy is loaded for it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from octavo import _core


@dataclass(frozen=True)
class TensorEntry:
    """One line of a container's table of contents.

    ``kind``: ``packed`` or ``plain``. ``format``: the format's text, None for a plain tensor. ``shape``: logical shape;
    of a plain tensor the stored one. ``dtype``: logical dtype as torch names it (``float32``); safetensors' own name
    where torch has none. ``nbytes``: bytes of all parts. ``bits_per_element``: nbytes times 8 over elements, 0 for an
    empty tensor. ``axis`` and ``scale``: the encoding axis and the scale rule, None for a plain tensor.
    ``nonzero``: how many codes are not 0, where the others are left out (sparse codes); else None.
    """

    name: str
    kind: str
    format: str | None
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    bits_per_element: float
    axis: int | None = None
    scale: str | None = None
    nonzero: int | None = None

    @property
    def zeros(self) -> float | None:
        """Share of the codes that are 0 and left out; None of dense codes."""
        if self.nonzero is None:
            return None
        count = math.prod(self.shape)
        return 1 - self.nonzero / count if count else 0.0

    @property
    def dense_nbytes(self) -> int | None:
        """Bytes that dense codes would take with the other parts, where codes are sparse; else None."""
        if self.nonzero is None or self.format is None:
            return None
        return _core.Format(self.format).nbytes(self.shape, self.axis or 0)
