"""The whole numbers in a configuration, by name, for the errors of limits."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from octavo.storage.reading import shown


def numbers(values: Mapping[str, Any], where: str = "") -> Iterator[tuple[str, int]]:
    """Yield the whole numbers of a configuration with their names, those of lists and of objects inside it, too."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from numbers(value, f"{where}{key}.")
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, int) and not isinstance(item, bool):
                yield f"{where}{key}", item


def blame(values: Mapping[str, Any], sizes: Collection[int | float] = (), known: Collection[int] = ()) -> str:
    """Return ``with NAME = NUMBER `` for the number that may have asked for too much; empty where there is none.

    It is the largest among those in ``sizes``, else among those that are not ``known`` to be sizes of tensors.
    """
    found = {name: value for name, value in numbers(values) if value > 1}
    exact = {name: value for name, value in found.items() if value in sizes}
    unknown = {name: value for name, value in found.items() if value not in known}
    for among in (exact, unknown, found):
        if among:
            name = max(among, key=lambda name: among[name])
            return f"with {name} = {shown(among[name])} "
    return ""
