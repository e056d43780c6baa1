"""Formats numbers for people: bytes, shapes, ratios."""

from __future__ import annotations

import math


def size(nbytes: int) -> str:
    """Return bytes as people read them, in decimal units: ``90.87 MB``."""
    value, units = float(nbytes), ["B", "kB", "MB", "GB", "TB"]
    while value >= 999.995 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{nbytes} B" if units[0] == "B" else f"{value:.2f} {units[0]}"


def shape_text(shape: tuple[int, ...]) -> str:
    """Return ``384 x 1536``, or ``scalar``."""
    return " x ".join(map(str, shape)) or "scalar"


def decibels(value: float) -> str:
    """Return a ratio in decibels: ``41.66``, or ``exact`` where there is no error."""
    return "exact" if value == math.inf else f"{value:.2f}"


def finite(value: float) -> float | None:
    """Return the value for JSON: None where it is not finite."""
    return value if math.isfinite(value) else None
