"""What a writer of another package's files did: every tensor, its type in the target, and whether it is exact."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

Progress: TypeAlias = Callable[[str, int], None]
"""Called with the name of a finished tensor and its bytes."""
Bar: TypeAlias = Callable[[str, int], AbstractContextManager[Progress]]
"""Shows progress: called with the name of the work and all of its bytes; :func:`octavo.display.progress.progress`."""


def progress_of(bar: Bar | None, work: str, nbytes: int) -> AbstractContextManager[Progress]:
    """Return what shows progress of some work of ``nbytes`` in all; without a bar, what shows nothing."""
    return nullcontext(_ignore) if bar is None else bar(work, nbytes)


def _ignore(name: str, nbytes: int) -> None:
    """Show nothing."""


def left_out(names: Sequence[str], holder: str) -> list[str]:
    """Return the sentence on tensors of the source that the target lacks; none where there are none.

    ``holder``: what has no place for them, such as ``a BertModel has``.
    """
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return [f"left out, for {holder} no place for them: {', '.join(names[:3])}{more}"] if names else []


@dataclass(frozen=True)
class WrittenTensor:
    """A tensor of a file that was written.

    ``name``: in the target. ``source``: its name in the model. ``origin``: format or dtype there. ``type``: in the
    target. ``exact``: whether its values, or codes and scales, are those of the model. ``note``: what was done beyond
    another order of the same bits, or why it is not exact.
    """

    name: str
    source: str
    origin: str
    type: str
    shape: tuple[int, ...]
    nbytes: int
    exact: bool = True
    note: str | None = None

    @property
    def bits_per_element(self) -> float:
        """Bits per element in the target, scales included."""
        return 8 * self.nbytes / max(math.prod(self.shape), 1)


@dataclass(frozen=True)
class ConversionReport:
    """What was written to ``path``, and what of the model is not in it (``notes``)."""

    path: Path
    nbytes: int
    tensors: Sequence[WrittenTensor]
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the report for programs."""
        return {
            "file": str(self.path),
            "bytes": self.nbytes,
            "exact": sum(tensor.exact for tensor in self.tensors),
            "tensors": [
                {
                    "name": tensor.name,
                    "source": tensor.source,
                    "from": tensor.origin,
                    "type": tensor.type,
                    "shape": list(tensor.shape),
                    "bytes": tensor.nbytes,
                    "exact": tensor.exact,
                    "note": tensor.note,
                }
                for tensor in self.tensors
            ],
            "notes": self.notes,
        }
