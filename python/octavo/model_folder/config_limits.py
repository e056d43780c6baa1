"""Limits of a stranger's configuration while transformers makes its object: no field is known by name.

Configurations make lists of their layers and labels. Loops of Python code are counted; what the interpreter itself
repeats, as in ``["attention"] * num_hidden_layers``, is tried with smaller numbers first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from octavo.errors import ContainerError
from octavo.model_folder.config_numbers import blame, numbers
from octavo.model_folder.step_limit import limited

# Entries of a list that a configuration makes, and steps of making one: beside those of its own file.
_ENTRIES = 1 << 19
_STEPS_A_VALUE = 64
# Lists of as many entries cost 8 MB. Real configurations have larger numbers, such as bases of rotary embeddings.
_PROBE = 1 << 20


def build_config(file: Path, values: dict[str, Any], make: Callable[[dict[str, Any]], Any]) -> Any:
    """Return what ``make`` makes of the values of a configuration.

    Raises ContainerError, naming a field, where the sizes in it make lists or loops that no model has.
    """

    def refuse() -> NoReturn:
        raise ContainerError(
            f"{file}: {blame(values)}the configuration makes lists of more than {_ENTRIES} entries; write the number "
            "that the model has"
        )

    steps = _ENTRIES + _STEPS_A_VALUE * _count(values)
    largest = max((value for _, value in numbers(values)), default=0)
    if largest > _PROBE:
        with limited(steps, refuse):
            probe = make(_clipped(values))
        if _longest(vars(probe)) > _ENTRIES:
            refuse()
    with limited(steps, refuse):
        return make(values)


def _count(value: Any) -> int:
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return 1 + sum(map(_count, items))


def _clipped(value: Any) -> Any:
    """Return values with whole numbers of at most ``_PROBE``."""
    if isinstance(value, Mapping):
        return {key: _clipped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clipped(item) for item in value]
    return min(value, _PROBE) if type(value) is int else value


def _longest(values: Mapping[Any, Any]) -> int:
    """Return the length of the longest list or object in a configuration, and in configurations inside it."""
    longest = len(values)
    for value in values.values() if longest <= _ENTRIES else ():
        if isinstance(value, Mapping):
            longest = max(longest, _longest(value))
        elif isinstance(value, list | tuple):
            longest = max(longest, len(value))
        elif hasattr(value, "model_type"):
            longest = max(longest, _longest(vars(value)))
    return longest
