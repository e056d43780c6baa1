"""Three clocks: seconds of training, of evaluation and of compilation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

NAMES = ("train", "evaluate", "compile")


class Clock:
    """Seconds by activity, monotonic and added up over the continuations of a run.

    A step in which torch.compile compiles, the first of a stage, counts as compilation. Checkpoints and
    logging are on no clock.
    """

    def __init__(self) -> None:
        """Start all clocks at 0."""
        self.seconds = dict.fromkeys(NAMES, 0.0)

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """Count the time of the block, whether it ends well or not, for one of ``train``, ``evaluate``, ``compile``."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - begin

    def as_dict(self) -> dict[str, float]:
        """Return ``train_s``, ``evaluate_s`` and ``compile_s``."""
        return {f"{name}_s": round(self.seconds[name], 6) for name in NAMES}

    def load(self, saved: dict[str, float]) -> None:
        """Go on from what :meth:`as_dict` gave."""
        self.seconds = {name: float(saved[f"{name}_s"]) for name in NAMES}
