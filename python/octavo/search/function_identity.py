"""The identity of a function for a journal: its name and the hash of its source."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from hashlib import sha256
from typing import Any


def function_identity(function: Callable[..., Any]) -> tuple[str, bool]:
    """Return the module, name and SHA-256 of the source of a function, and whether there was a source.

    Of an object that is called it is the source of its class. What the function calls or closes over is not part of it.
    """
    named = function if hasattr(function, "__qualname__") else type(function)
    name = f"{named.__module__}.{named.__qualname__}"
    try:
        source = inspect.getsource(named)
    except (OSError, TypeError):
        return name, False
    return f"{name} {sha256(source.encode()).hexdigest()}", True
