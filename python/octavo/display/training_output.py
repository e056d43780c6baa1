"""Output of a training run: a bar on a terminal, plain lines elsewhere; only rank 0 prints."""

from __future__ import annotations

import sys
from typing import Any

from octavo.display.progress import Bar


class Display:
    """Speaks of a run on stderr, if ``enabled``: not in other processes than the first, nor where no one listens."""

    def __init__(self, steps: int, *, step: int, enabled: bool) -> None:
        """Begin at ``step`` of ``steps``; a bar appears if stderr is a terminal."""
        self._enabled, self._steps = enabled, steps
        self._bar = Bar("", steps, done=step, kept=True) if enabled else None

    def step(self, step: int, status: str = "") -> None:
        """Move the bar to ``step``, with a new status if there is one."""
        if self._bar is not None:
            self._bar.move(step, text=status or None)

    def line(self, line: dict[str, Any]) -> None:
        """Show a line of metrics: in the bar's status, or as text."""
        text = describe(line)
        if self._bar is not None and self._bar.is_shown and line["kind"] == "train":
            self.step(line["step"], text)
        else:
            self.say(f"step {line['step']}/{self._steps}  {text}")

    def say(self, text: str) -> None:
        """Print one line."""
        if not self._enabled:
            return
        if self._bar is not None and self._bar.is_shown:
            self._bar.say(text)
        else:
            print(text, file=sys.stderr, flush=True)

    def __enter__(self) -> Display:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()


def describe(line: dict[str, Any]) -> str:
    """Return a line of metrics as people read it."""
    if line["kind"] == "train":
        rate = line["clock"]["samples_per_s"]
        return f"loss {line['loss']:.4f}  lr {line['learning_rate']:.3g}  {rate:,.0f} samples/s"
    values = "  ".join(f"{name} {value:.4f}" for name, value in line["metrics"].items())
    return f"evaluation: {values}{'  (best)' if line['best'] else ''}"
