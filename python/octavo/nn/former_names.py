"""Names that state had in Octavo 0.1: ``weight_quantiser`` and its like are spelled with a z since."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

_PARTS = {f"{role}_quantiser": f"{role}_quantizer" for role in ("weight", "input", "output", "bias", "a", "b")}


def current_name(name: str) -> str:
    """Return the name that a tensor or part of a layer has today: ``a.b.weight_quantizer.scale``."""
    return ".".join(_PARTS.get(part, part) for part in name.split(".")) if "_quantiser" in name else name


def current_names(state: Mapping[str, T]) -> dict[str, T]:
    """Return the same values under the names they have today."""
    return {current_name(name): value for name, value in state.items()}
