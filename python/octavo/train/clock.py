"""Three clocks: seconds of training, of evaluation and of compilation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

NAMES = ("train", "evaluate", "compile")


class Clock:
    """Seconds by activity, summed over the continuations of a run.

    The first step of a stage with torch.compile counts as compilation. Checkpoints and logging are not counted.
    """

    def __init__(self) -> None:
        """Start all clocks at 0."""
        self.seconds = dict.fromkeys(NAMES, 0.0)

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """Add the time of the block, even if it raises, to ``train``, ``evaluate`` or ``compile``."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - begin

    def as_dict(self) -> dict[str, float]:
        """Return ``train_s``, ``evaluate_s`` and ``compile_s``."""
        return {f"{name}_s": round(self.seconds[name], 6) for name in NAMES}

    def load(self, saved: dict[str, float]) -> None:
        """Continue from the values of :meth:`as_dict`."""
        self.seconds = {name: float(saved[f"{name}_s"]) for name in NAMES}
