"""Sums and logarithms of torch that depend neither on the number of threads nor on the processor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_LOG_2, _ROOT = math.log(2), math.sqrt(0.5)
_TERMS = 12  # of the series of a logarithm


_outside: ContextVar[int] = ContextVar("outside", default=1)


@contextmanager
def one_thread() -> Iterator[None]:
    """Have torch work in one thread inside: how it shares out sums depends on the number of its threads.

    Kernels of Octavo go on with all of theirs: their results depend on none.
    """
    before = torch.get_num_threads()
    token = _outside.set(max(before, _outside.get()))
    if before > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        _outside.reset(token)
        if before > 1:
            torch.set_num_threads(before)


@contextmanager
def every_thread() -> Iterator[None]:
    """Have torch work in all of its threads inside of :func:`one_thread`, for operations that sum nothing."""
    if (count := _outside.get()) < 2:
        yield
        return
    token = _outside.set(1)
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(1)
        _outside.reset(token)


def threads_outside() -> int:
    """Return the threads that torch has outside of :func:`one_thread`; 1 where it is not inside of one."""
    return _outside.get()


def ordered_sum(x: Tensor, dim: int = -1) -> Tensor:
    """Return the sum along a dimension: the second half is added to the first until one is left.

    ``torch.sum`` adds in an order that depends on the width of the processor's registers and on threads.
    """
    if not x.shape[dim]:
        return x.sum(dim)
    while (count := x.shape[dim]) > 1:
        half = (count + 1) // 2
        first, second = x.narrow(dim, 0, half), x.narrow(dim, half, count - half)
        if count % 2:
            first = first.clone()
            first.narrow(dim, 0, count - half).add_(second)
            x = first
        else:
            x = first + second
    return x.squeeze(dim)


def logarithm(x: Tensor) -> Tensor:
    """Return the natural logarithm of float64 above 0, within 2e-16 of its size or of 1, by operations that round alike
    everywhere; those of libraries differ from one instruction set to the other.
    """
    mantissa, exponent = torch.frexp(x)
    low = mantissa < _ROOT
    mantissa, exponent = torch.where(low, 2 * mantissa, mantissa), exponent - low.int()
    # log m = 2 artanh((m - 1) / (m + 1)), of which the terms fall by a factor of 33 at least.
    s = (mantissa - 1) / (mantissa + 1)
    square = s * s
    series = torch.full_like(x, 1 / (2 * _TERMS + 1))
    for term in range(_TERMS - 1, -1, -1):
        series = series * square + 1 / (2 * term + 1)
    return exponent.to(x.dtype) * _LOG_2 + 2 * s * series
