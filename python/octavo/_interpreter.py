"""Refuses subinterpreters, by name and before the core is loaded: it and torch live in the main interpreter only."""

from importlib import import_module
from typing import cast


def in_subinterpreter() -> bool:
    """Whether this is another interpreter than the process began with. Where Python cannot tell, it is not."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # Python 3.13 and later; 3.11 and 3.12
        try:
            module = import_module(name)
            return _number(module.get_current()) != _number(module.get_main())
        except (ImportError, AttributeError):
            continue
    return False


def _number(identity: object) -> int:
    """Return an interpreter's number, which 3.13 gives together with where the interpreter comes from."""
    number = identity[0] if isinstance(identity, tuple) else identity
    return int(cast("int", number))


if in_subinterpreter():
    raise ImportError(
        "octavo cannot be imported in a subinterpreter: its compiled core and PyTorch belong to the main interpreter; "
        "import octavo there, or use processes (multiprocessing, ProcessPoolExecutor)"
    )
