"""AdamW whose moments are codes, of a format or the dynamic map, as one operation over parts in the nearest cache."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from octavo import _core
from octavo.errors import ConfigError
from octavo.ops._checks import check_out
from octavo.tensors.formats import core
from octavo.tensors.packed_tensor import part_specs

DYNAMIC = "dynamic8"
"""The form of moments in codes of the dynamic map (:mod:`octavo.train.moments_8bit`), which is no format."""
BLOCK = 256
"""Numbers that share a scale on the dynamic map, and the most of a block format."""


def adamw_in_codes(
    weights_N: Tensor,
    gradients_N: Tensor,
    first: tuple[Tensor, Tensor],
    second: tuple[Tensor, Tensor],
    format: str,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> None:
    """Update ``weights_N`` and both moments in place.

    ``weights_N`` and ``gradients_N``: float32 ``[N]``, contiguous, on the CPU. ``first`` and ``second``: codes and
    scales of a moment, as :func:`octavo.encode` makes them of ``N`` values; ``format``: blocks that divide 256 values,
    without zero points or second-level scales. Or ``dynamic8``: codes uint8 ``[N]``, and the largest magnitude of every
    256 values, float32; a block with a value that is not finite becomes NaN. ``step``: the number of this update, from
    1 on; the others are those of :class:`torch.optim.AdamW`. Every operation on a value is float32, rounded once: the
    first moment becomes ``m + (1 - betas[0]) (g - m)``, which for ``betas[0]`` below a half loses what of g is smaller
    than the last bit of m. Raises ConfigError for a step or betas outside of their range, FormatError and ShapeError.
    Source: Loshchilov and Hutter 2019, algorithm 2; Dettmers et al. 2021, section 2.2.
    """
    if step < 1:
        raise ConfigError(f"step is {step!r}; updates are numbered from 1 on: give step=1 for the first")
    if not all(0 <= beta < 1 for beta in betas):
        raise ConfigError(f"betas are {betas!r}; accepted are two numbers of at least 0 and below 1")
    count = weights_N.numel()
    if format == DYNAMIC:
        fmt = None
        sizes = (("codes", torch.uint8, count), ("scales", torch.float32, -(-count // BLOCK)))
        specs = [(name, dtype, torch.Size([size])) for name, dtype, size in sizes]
    else:
        fmt = core(format)
        specs = part_specs(fmt, (count,), -1)[:2]
    for what, parts in (("first", first), ("second", second)):
        for (name, dtype, shape), part in zip(specs, parts, strict=True):
            check_out(part, shape, dtype, f"AdamW in '{format}': {name} of the {what} moment")
    for what, values in (("weights", weights_N), ("gradients", gradients_N)):
        check_out(values, (count,), torch.float32, f"AdamW in '{format}': {what}")
    settings = (
        1 - lr * weight_decay,
        1 - betas[0],
        1 - betas[1],
        lr / (1 - betas[0] ** step),
        (1 - betas[1] ** step) ** -0.5,
        eps,
    )
    addresses = [(codes.data_ptr(), scales.data_ptr()) for codes, scales in (first, second)]
    _core._adamw(fmt, count, weights_N.data_ptr(), gradients_N.data_ptr(), addresses[0], addresses[1], settings)
    for written in (weights_N, *first, *second):
        increment_version(written)
