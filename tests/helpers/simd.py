"""SIMD levels, forced one by one: results of every level are compared on one machine."""

import functools
import os
import platform
from contextlib import contextmanager, suppress

SIMD_LEVELS = ("scalar", "neon") if platform.machine() in ("aarch64", "arm64") else ("scalar", "avx2", "avx512")


@contextmanager
def at_level(name: str):
    """Force one SIMD level; ValueError for one that this machine lacks."""
    from octavo import _core

    _core.force_simd(name)
    try:
        yield
    finally:
        _core.force_simd(os.environ.get("OCTAVO_SIMD") or None)


@functools.cache
def available_levels() -> list[str]:
    """SIMD levels of this machine: tests whose inputs or wanted results take time to make try all of them in one go."""
    levels = []
    for name in SIMD_LEVELS:
        with suppress(ValueError), at_level(name):
            levels.append(name)
    return levels
