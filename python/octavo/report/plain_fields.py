"""Checks plain values, such as those of a report, against a table of their fields."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from octavo.errors import DataError
from octavo.storage.reading import shown

NUMBER = (int, float)
_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false", dict: "an object",
          list: "a list", type(None): "null"}  # fmt: skip


def check_fields(value: object, kind: Any, label: str) -> None:
    """Refuse a value that is not of its kind. Raises DataError that names the place, the value and what is accepted.

    ``kind``: a class, or a tuple of classes and None of which one fits; ``[kind]``, a list of them; ``{name: kind}``,
    an object: a name that ends in ``?`` may be missing or null, ``*`` stands for all others, which are free without
    it. Booleans are no numbers, and numbers are finite.
    """
    if isinstance(kind, list):
        _check_class(value, list, label)
        for number, item in enumerate(value if isinstance(value, list) else ()):
            check_fields(item, kind[0], f"{label}[{number}]")
    elif isinstance(kind, Mapping):
        _check_class(value, dict, label)
        _check_object(value if isinstance(value, dict) else {}, kind, label)
    else:
        _check_class(value, kind, label)


def _check_object(value: dict[str, Any], kind: Mapping[str, Any], label: str) -> None:
    for name, one in kind.items():
        key = name.removesuffix("?")
        if name == "*":
            for other in value.keys() - {known.removesuffix("?") for known in kind}:
                check_fields(value[other], one, f"{label}.{shown(other)[1:-1]}")
        elif key in value and not (name.endswith("?") and value[key] is None):
            check_fields(value[key], one, f"{label}.{key}")
        elif not name.endswith("?"):
            raise DataError(f"{label}.{key} is missing; accepted is {_accepted(one)}")


def _check_class(value: object, kind: Any, label: str) -> None:
    kinds = tuple(type(None) if one is None else one for one in (kind if isinstance(kind, tuple) else (kind,)))
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise DataError(f"{label} is {shown(value)}; accepted is {_accepted(kind)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise DataError(f"{label} is {value}; accepted are finite numbers, write null and say why")


def _accepted(kind: Any) -> str:
    if isinstance(kind, list):
        return "a list"
    if isinstance(kind, Mapping):
        return "an object"
    alternatives = kind if isinstance(kind, tuple) else (kind,)
    kinds = [one for one in alternatives if not (one is int and float in alternatives)]
    parts = ("null" if one is None else _NAMES[one] if isinstance(one, type) else _accepted(one) for one in kinds)
    return " or ".join(parts)
