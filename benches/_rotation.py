"""Products whose weights take turns, so that they come from memory: octavo's packed ones and torch's dense ones."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median

import _harness as harness
import torch
from torch import Tensor

INTEGER_INPUT = "int8:channel"
"""Inputs of the integer products (W8A8): a scale a row."""
TENSORS = "bfloat16"
"""Stands where a format of inputs does: tensors of that dtype, multiplied as they are."""
WARM_S = 0.08
"""Calls before those that are timed: the cores of an idle virtual machine take tens of milliseconds to come back."""
BURST = 9
"""Calls in a row that are timed."""
READ_BYTES = 1 << 24
"""Bytes of a vector of ``read``: about as many as packed weights have."""
CHECKED = 32
"""Rows of a product that are compared with float64."""


class Rotation:
    """A product whose weights take turns: ``call`` uses the next."""

    def __init__(self, weights: Sequence, product: Callable[..., Tensor], nbytes: int, expected: Tensor) -> None:
        """``nbytes``: of one weight. ``expected``: what the first rows of the product are (see exact)."""
        self._turns = itertools.cycle(weights)
        self._product = product
        self.nbytes = nbytes
        found = self.call()[: len(expected)].double()
        self.error = float((found - expected).norm() / expected.norm())
        """Norm of the error over that of the product."""

    def call(self) -> Tensor:
        """Multiply with the next weight."""
        return self._product(next(self._turns))


def exact(x: Tensor, values: Tensor) -> Tensor:
    """Multiply the first rows of ``x`` in float64 with the transposed values that a packed weight stands for."""
    return x[:CHECKED].double() @ values.double().t()


def copies(nbytes: int, rotate: int) -> int:
    """Weights that are ``rotate`` bytes together, at least two."""
    return max(2, -(-rotate // nbytes))


def dense(x: Tensor, weight: Tensor, dtype: torch.dtype, rotate: int) -> Rotation:
    """torch.nn.functional.linear in a dtype; its error counts the rounding of weights and inputs too."""
    from torch.nn.functional import linear

    expected = exact(x, weight)
    x, weight = x.to(dtype), weight.to(dtype)
    turns = [weight.clone() for _ in range(copies(weight.nbytes, rotate))]
    return Rotation(turns, lambda w: linear(x, w), weight.nbytes, expected)


def packed(x: Tensor, weight: Tensor, kind: str, inputs: Sequence[str], rotate: int) -> Iterator[tuple[str, Rotation]]:
    """octavo's products with weights of a format, and with the same weights ``W x I`` for every I of ``inputs``.

    I: a format that inputs are rounded to, or TENSORS. Errors are counted from inputs that are not rounded.
    """
    import octavo
    from octavo.ops.linear import integer_linear, packed_linear, rounded_linear

    first = octavo.encode(weight, kind)
    turns = [_copy(first) for _ in range(copies(first.nbytes, rotate))]
    expected = exact(x, first.decode())
    narrow = x.to(getattr(torch, TENSORS))
    products: dict[str, Callable[..., Tensor]] = {kind: lambda w: packed_linear(x, w)}
    for text in inputs:
        row = f"{kind} x {text}"
        if text == TENSORS:
            products[row] = lambda w: packed_linear(narrow, w)
        elif text == INTEGER_INPUT:
            products[row] = lambda w: integer_linear(x, w, INTEGER_INPUT)
        else:
            products[row] = lambda w, text=text: rounded_linear(x, w, text)
    for row, product in products.items():
        yield row, Rotation(turns, product, first.nbytes, expected)


def kernel(row: str, m: int, n: int, k: int) -> str:
    """Name the kernel of a row of ``packed``."""
    from octavo.ops import linear

    kind, _, inputs = row.partition(" x ")
    if inputs in ("", TENSORS):
        return linear.kernel(kind, m, n, k, getattr(torch, inputs or "float32"))
    return linear.kernel(kind, m, n, k, torch.float32, inputs, rounded=inputs != INTEGER_INPUT)


def _copy(packed_tensor):
    """Copy to memory of the kind that ``encode`` and ``load_model`` give: large tensors in huge pages."""
    import octavo
    from octavo.tensors.fresh import empty

    parts = (empty(part.shape, part.dtype).copy_(part) for part in packed_tensor.parts)
    return octavo.PackedTensor(
        packed_tensor.format, *parts, shape=packed_tensor.shape, dtype=packed_tensor.dtype, axis=packed_tensor.axis
    )


def burst(call: Callable[[], object]) -> float:
    """Seconds that one of several calls in a row takes, the median: layers do follow each other."""
    time.sleep(harness.PAUSE_S)
    begin = time.perf_counter()
    while time.perf_counter() - begin < WARM_S:
        call()
    times = []
    for _ in range(BURST):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return median(times)


def read(rotate: int) -> Rotation:
    """torch's product of large vectors of ones with themselves, which takes what reading them takes."""
    turns = [torch.ones(READ_BYTES // 4) for _ in range(copies(READ_BYTES, rotate))]
    return Rotation(turns, lambda v: torch.dot(v, v)[None], READ_BYTES, torch.tensor([float(READ_BYTES // 4)]))
