"""What a quick run of the tests leaves to `pytest -m slow`."""

import sys
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

_calls: Counter[str] = Counter()


def spread(values: Iterable[Any], share: int = 4) -> list[Any]:
    """Return values of `parametrize`, all but every `share`-th marked slow.

    Each call in a file keeps others, so that several laws over one list of formats see all of it in a quick run.
    """
    file = sys._getframe(1).f_code.co_filename
    first = _calls[file] % share
    _calls[file] += 1
    return [
        value if place % share == first else pytest.param(*_arguments(value), marks=pytest.mark.slow)
        for place, value in enumerate(values)
    ]


def _arguments(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, tuple | list) else (value,)
