"""Arguments for the Rust core: addresses of arrays, and checked whole numbers."""

from operator import index
from typing import Any

from numpy.typing import NDArray

from octavo.errors import DataError, DTypeError


def address(array: NDArray[Any]) -> int:
    """Return where the memory of a contiguous array begins."""
    return array.__array_interface__["data"][0]


def whole(name: str, value: int) -> int:
    """Return a whole number that Rust can take; raises DataError for others, DTypeError for what is no number."""
    try:
        number = index(value)
    except TypeError as error:
        raise DTypeError(f"{name} is a {type(value).__name__}; accepted are whole numbers") from error
    if not 0 <= number < 2**64:
        raise DataError(f"{name} {number}; accepted are 0 to 2**64 - 1")
    return number


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
