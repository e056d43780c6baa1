"""SIGINT and SIGTERM: the run finishes its step, writes a checkpoint and ends. A second SIGINT ends it at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class Interrupt:
    """A context that records the first SIGINT or SIGTERM instead of ending the process.

    ``number``: number of the first signal, or None. ``seen()``: whether there was one. Outside the main thread, where
    Python handles no signals, it has no effect.
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __enter__(self) -> Interrupt:
        """Install the handlers."""
        self.number: int | None = None
        self._handlers = {}
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._note) for number in self._SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the former handlers."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def seen(self) -> bool:
        """Whether the process was asked to stop."""
        return self.number is not None

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.number = number
