"""A limit on steps of Python code, for code that runs loops over the sizes in a stranger's file."""

from __future__ import annotations

import opcode
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

_BACKWARD = {code for name, code in opcode.opmap.items() if "JUMP_BACKWARD" in name}


class _Beyond(BaseException):
    """Ends the code that took too many steps; no Exception, which that code might catch."""


@contextmanager
def limited(steps: int, refuse: Callable[[], None]) -> Iterator[None]:
    """Let this thread take ``steps`` steps of Python code: calls, and lines of code with loops. Beyond that, end it.

    ``refuse``: raises the error that the caller gets. Other tracers of this thread rest meanwhile.
    """
    left = steps
    loops: dict[int, tuple[CodeType, bool]] = {}

    def count() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise _Beyond

    def on_call(frame: FrameType, event: str, argument: Any) -> Any:
        count()
        code = frame.f_code
        known = loops.get(id(code))
        if known is None:
            known = loops[id(code)] = code, not _BACKWARD.isdisjoint(code.co_code[::2])
        return on_line if known[1] else None

    def on_line(frame: FrameType, event: str, argument: Any) -> Any:
        count()
        return on_line

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        yield
    except _Beyond:
        sys.settrace(before)
        refuse()
    finally:
        sys.settrace(before)
