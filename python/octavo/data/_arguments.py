"""Arguments for the Rust core: addresses of arrays, and checked whole numbers."""

import os
from collections.abc import Collection, Iterable, Sequence
from operator import index
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from octavo.errors import DataError, DTypeError
from octavo.storage.reading import shown

T = TypeVar("T")
Paths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A path, or several."""


def address(array: NDArray[Any]) -> int:
    """Return where the memory of a contiguous array begins."""
    return array.__array_interface__["data"][0]


def whole(name: str, value: int) -> int:
    """Return a whole number that Rust can take; raises DataError for others, DTypeError for what is no number."""
    try:
        number = index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise DTypeError(f"{name} is a {type(value).__name__}; accepted are whole numbers")
    if not 0 <= number < 2**64:
        raise DataError(f"{name} {number}; accepted are 0 to 2**64 - 1")
    return number


def listed(name: str, values: Iterable[T], accepted: str) -> list[T]:
    """Return the items of an iterable other than a text; raises DTypeError for what is none."""
    if isinstance(values, str | bytes | bytearray | memoryview):
        raise DTypeError(f"{name} is one {type(values).__name__}; accepted is {accepted}")
    try:
        items = iter(values)
    except TypeError:  # an array without dimensions has the method that iter asks for
        raise DTypeError(f"{name} is a {type(values).__name__}; accepted is {accepted}") from None
    return list(items)


def paths_of(paths: Paths) -> list[Path]:
    """Return a path, or several, as a list."""
    return [Path(path) for path in ([paths] if isinstance(paths, str | os.PathLike) else paths)]


def array_of(name: str, values: object) -> NDArray[Any]:
    """Return an array of what numpy makes one of; raises DTypeError for the rest."""
    try:
        return np.asarray(values)
    except Exception as error:  # of a foreign object, whatever it raises
        raise DTypeError(f"{name} is a {type(values).__name__}, which numpy makes no array of: {error}") from None


def dtype_of(name: str, dtype: DTypeLike, accepted: Collection[type[Any]]) -> np.dtype[Any]:
    """Return one of the accepted dtypes; raises DTypeError for others, and for what is no dtype."""
    try:
        resolved = np.dtype(dtype)
    except Exception:  # of a foreign object, whatever it raises
        resolved = None
    if resolved is None or resolved not in accepted:
        label = shown(dtype) if resolved is None else str(resolved)
        raise DTypeError(f"{name} of dtype {label}; accepted are {', '.join(kind.__name__ for kind in accepted)}")
    return resolved


def flag(name: str, value: object) -> bool:
    """Return a boolean; raises DTypeError for what is none."""
    if not isinstance(value, bool | np.bool_):
        raise DTypeError(f"{name} is a {type(value).__name__}; accepted are True and False")
    return bool(value)


def check_text(name: str, text: str) -> None:
    """Refuse half of a surrogate pair, which no UTF-8 has, by a DataError with its column; DTypeError for no string."""
    if not isinstance(text, str):
        raise DTypeError(f"{name} is a {type(text).__name__}; accepted are strings")
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        column = error.start + 1
        raise DataError(f"{name}: column {column}: half of a surrogate pair, which is no character") from error
