"""Conversion of arguments and results of a user's functions to numbers."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.errors import DataError, DTypeError, OctavoError


def number_array(values: Any, label: str, *, whole: bool = False, error: type[OctavoError] = DataError) -> NDArray[Any]:
    """Return a copy of ``values`` as an array of float64 or, with ``whole``, int64.

    Raises ``error``, with ``label`` in its message, for values that are no numbers, for fractions with ``whole``, and
    for numbers beyond 64 bits.
    """
    accepted = "whole numbers of 64 bits" if whole else "numbers"
    try:
        array = np.array(values)
        if array.size and array.dtype.kind not in "biuf":
            raise error(f"{label} is a {type(values).__name__} of {array.dtype}; accepted are arrays of {accepted}")
        if whole and array.dtype.kind in "uf":
            fits = (np.floor(array) == array) & (array >= -(2.0**63)) & (array < 2.0**63)  # NaN is equal to nothing
            if not fits.all():
                raise error(f"{label} has the value {array[~fits].flat[0]}; accepted are arrays of {accepted}")
        return array.astype(np.int64 if whole else np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError) as wrong:
        if isinstance(wrong, OctavoError):
            raise
        raise error(f"{label} is a {type(values).__name__}; accepted are arrays of {accepted}: {wrong}") from None


def returned_number(value: Any, function: str, accepted: str = "a number") -> float:
    """Return the number that a user's function returned: a number of Python or numpy, or a tensor of one value.

    Raises DTypeError, naming the ``function``, for anything else.
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if is_number or math.prod(getattr(value, "shape", (0,))) == 1:
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            pass
    raise DTypeError(f"{function} returned a {type(value).__name__}; accepted are {accepted}")
