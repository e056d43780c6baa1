"""AdamW whose moments are codes of a block format, as one operation over parts that the nearest cache holds."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from octavo import _core
from octavo.formats import core
from octavo.ops._checks import check_out
from octavo.tensor import part_specs


def adamw_in_codes(
    weights_N: Tensor,
    gradients_N: Tensor,
    first: tuple[Tensor, Tensor],
    second: tuple[Tensor, Tensor],
    format: str,
    step: tuple[float, float, float, float, float, float],
) -> None:
    """Update ``weights_N`` and both moments in place.

    ``weights_N`` and ``gradients_N``: float32 ``[N]``, contiguous, on the CPU. ``first`` and ``second``: codes and
    scales of a moment, as :func:`octavo.encode` makes them of ``N`` values; ``format``: blocks that divide 256 values,
    without zero points or second-level scales. ``step``: ``1 - lr * decay``, ``1 - beta1``, ``1 - beta2``,
    ``lr / (1 - beta1 ** t)``, ``(1 - beta2 ** t) ** -0.5`` and epsilon. Every operation is float32, rounded once.
    Raises FormatError and ShapeError. Source: Loshchilov and Hutter 2019, algorithm 2.
    """
    fmt, count = core(format), weights_N.numel()
    specs = part_specs(fmt, (count,), -1)[:2]
    for what, parts in (("first", first), ("second", second)):
        for (name, dtype, shape), part in zip(specs, parts, strict=True):
            check_out(part, shape, dtype, f"AdamW in '{format}': {name} of the {what} moment")
    for what, values in (("weights", weights_N), ("gradients", gradients_N)):
        check_out(values, (count,), torch.float32, f"AdamW in '{format}': {what}")
    addresses = [(codes.data_ptr(), scales.data_ptr()) for codes, scales in (first, second)]
    _core._adamw(fmt, count, weights_N.data_ptr(), gradients_N.data_ptr(), addresses[0], addresses[1], step)
    for written in (weights_N, *first, *second):
        increment_version(written)
