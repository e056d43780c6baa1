"""Weight formats of ggml: rounded values and bytes, as its reference encoders without an importance matrix.

For comparison only: matrices are rounded and stay float. Blocks of 32 values have one scale, and in some formats a
minimum. K formats have blocks of 256 values with quantized scales of sub-blocks. Scales are float16; codes are computed
with the scale before it is rounded.
Source: ggml, ``ggml-quants.c``, the functions ``quantize_row_*_ref``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.errors import ShapeError

_NEAR_ZERO = 1e-15  # ggml encodes groups whose largest magnitude is below as zeros


@dataclass(frozen=True)
class Block:
    """A format: ``elements`` of a row in ``nbytes`` bytes, and a function that rounds ``[blocks, elements]``.

    ``smaller``: the fallback format of llama.cpp for rows whose length is no multiple of the block.
    """

    elements: int
    nbytes: int
    round: Callable[[Tensor], Tensor]
    smaller: str | None = None


def nbytes(shape: tuple[int, int], name: str) -> int | None:
    """Return the bytes of a matrix in a format or its fallback.

    Args:
        shape: rows and columns.
        name: of the format.

    Returns:
        Bytes; None where no block divides the rows.

    Raises:
        ShapeError: for an unknown name.
    """
    block = _block(name, shape[1])
    return None if block is None else shape[0] * (shape[1] // block.elements) * block.nbytes


def rounded(matrix: Tensor, name: str) -> Tensor:
    """Return the values of a float matrix in a format or its fallback.

    Args:
        matrix: ``[rows, columns]``.
        name: of the format.

    Returns:
        float32, of the same shape.

    Raises:
        ShapeError: for rows that no block divides.
    """
    block = _block(name, matrix.shape[1])
    if block is None:
        raise ShapeError(f"{name}: rows of {matrix.shape[1]} values; accepted are multiples of 32")
    return block.round(matrix.float().reshape(-1, block.elements)).reshape(matrix.shape)


def _block(name: str, columns: int) -> Block | None:
    if name not in FORMATS:
        raise ShapeError(f"unknown format of ggml {name!r}; accepted are {', '.join(FORMATS)}")
    fitting: str | None = name
    while fitting is not None and columns % FORMATS[fitting].elements:
        fitting = FORMATS[fitting].smaller
    return None if fitting is None else FORMATS[fitting]


def _inverse(x: Tensor) -> Tensor:
    return torch.where(x == 0, torch.zeros_like(x), 1 / x)


def _half(x: Tensor) -> Tensor:
    return x.half().float()


def _q8_0(x: Tensor) -> Tensor:
    scale = x.abs().amax(1, keepdim=True) / 127
    scaled = x * _inverse(scale)
    return torch.trunc(scaled + torch.copysign(torch.full_like(scaled, 0.5), scaled)) * _half(scale)


def _symmetric(levels: int) -> Callable[[Tensor], Tensor]:
    """Codes from minus ``levels`` to ``levels - 1``; the value of largest magnitude has the code minus ``levels``."""

    def round_blocks(x: Tensor) -> Tensor:
        largest = x.gather(1, x.abs().argmax(1, keepdim=True))
        scale = largest / -levels
        codes = torch.trunc(x * _inverse(scale) + (levels + 0.5)).clamp(max=2 * levels - 1)
        return (codes - levels) * _half(scale)

    return round_blocks


def _with_minimum(most: int) -> Callable[[Tensor], Tensor]:
    """Codes from 0 to ``most``, from the least value to the largest."""

    def round_blocks(x: Tensor) -> Tensor:
        least = x.amin(1, keepdim=True)
        scale = (x.amax(1, keepdim=True) - least) / most
        codes = torch.trunc((x - least) * _inverse(scale) + 0.5).clamp(max=most)
        return codes * _half(scale) + _half(least)

    return round_blocks


def _q6_k(x: Tensor) -> Tensor:
    """Sixteen groups of 16 with codes of 6 bits; scales have 8 bits, relative to one float16."""
    groups = x.reshape(-1, 16, 16)
    scales = _least_squares_scale(groups, 32)
    largest = scales.gather(1, scales.abs().argmax(1, keepdim=True))
    inverse = -128 * _inverse(largest)
    small = torch.round(inverse * scales).clamp(max=127)
    step = (_half(_inverse(inverse)) * small)[:, :, None]
    codes = torch.round(groups * _inverse(step)).clamp(-32, 31)
    return torch.where(largest.abs()[:, :, None] < _NEAR_ZERO, torch.zeros_like(groups), codes * step)


def _least_squares_scale(x: Tensor, levels: int) -> Tensor:
    """Return the scale of each group with the least squared error, weighted by the squares of the values.

    Candidates are 19 divisors around that of the value of largest magnitude.
    """
    largest = x.gather(-1, x.abs().argmax(-1, keepdim=True))
    weight = x * x
    best_scale = best = None
    for step in (0, *range(-9, 0), *range(1, 10)):
        inverse = -(levels + 0.1 * step) * _inverse(largest)
        codes = torch.round(inverse * x).clamp(-levels, levels - 1)
        product, square = (weight * x * codes).sum(-1), (weight * codes * codes).sum(-1)
        scale = product * _inverse(square)
        if best_scale is None or best is None:
            best_scale, best = scale, scale * product
            continue
        better = (square > 0) & (product * product > best * square)
        best_scale = torch.where(better, scale, best_scale)
        best = torch.where(better, scale * product, best)
    assert best_scale is not None  # something was tried
    return torch.where(largest.squeeze(-1).abs() < _NEAR_ZERO, torch.zeros_like(best_scale), best_scale)


def _k_with_minimum(most: int, least: float, tries: int) -> Callable[[Tensor], Tensor]:
    """Eight groups of 32 with codes from 0 to ``most``; scales and minima have 6 bits, relative to two float16."""

    def round_blocks(x: Tensor) -> Tensor:
        groups = x.reshape(-1, 8, 32)
        weight = (groups.square().sum(-1, keepdim=True) / 32).sqrt() + groups.abs()
        scales, minima = _fitted(groups, weight, most, least, tries)
        parts = []
        for values in (scales, minima):
            largest = values.amax(1, keepdim=True).clamp(min=0)
            small = torch.round(63 * _inverse(largest) * values).clamp(max=63)
            parts.append((_half(largest / 63) * small)[:, :, None])
        step, minimum = parts
        codes = torch.round((groups + minimum) * _inverse(step)).clamp(0, most)
        return codes * step - minimum

    return round_blocks


def _fitted(x: Tensor, weight: Tensor, most: int, first: float, tries: int) -> tuple[Tensor, Tensor]:
    """Return scale and negative minimum of each group by weighted least squares; several divisors are tried."""
    low, high = x.amin(-1).clamp(max=0), x.amax(-1)
    width = high - low
    sum_w, sum_x = weight.sum(-1), (weight * x).sum(-1)

    def coded(inverse: Tensor) -> Tensor:
        return torch.round(inverse[..., None] * (x - low[..., None])).clamp(0, most)

    def error(scale: Tensor, minimum: Tensor, codes: Tensor) -> Tensor:
        return (weight * (scale[..., None] * codes + minimum[..., None] - x).square()).sum(-1)

    inverse = most * _inverse(width)
    scale, minimum = _inverse(inverse), low
    best = error(scale, minimum, coded(inverse))
    for step in range(tries + 1):
        codes = coded((first + 0.1 * step + most) * _inverse(width))
        sum_l, sum_ll = (weight * codes).sum(-1), (weight * codes * codes).sum(-1)
        sum_xl = (weight * codes * x).sum(-1)
        determinant = sum_w * sum_ll - sum_l * sum_l
        own_scale = (sum_w * sum_xl - sum_x * sum_l) * _inverse(determinant)
        own_minimum = (sum_ll * sum_x - sum_l * sum_xl) * _inverse(determinant)
        positive = own_minimum > 0
        own_scale = torch.where(positive, sum_xl * _inverse(sum_ll), own_scale)
        own_minimum = own_minimum.clamp(max=0)
        own = error(own_scale, own_minimum, codes)
        better = (determinant > 0) & (own < best)
        scale, minimum = torch.where(better, own_scale, scale), torch.where(better, own_minimum, minimum)
        best = torch.where(better, own, best)
    flat = width == 0
    return torch.where(flat, torch.zeros_like(scale), scale), torch.where(flat, -low, -minimum)


FORMATS = {
    "q8_0": Block(32, 34, _q8_0),
    "q6_K": Block(256, 210, _q6_k, "q8_0"),
    "q5_K": Block(256, 176, _k_with_minimum(31, -0.5, 15), "q5_1"),
    "q5_1": Block(32, 24, _with_minimum(31)),
    "q5_0": Block(32, 22, _symmetric(16)),
    "q4_K": Block(256, 144, _k_with_minimum(15, -1.0, 20), "q5_0"),
    "q4_1": Block(32, 20, _with_minimum(15)),
    "q4_0": Block(32, 18, _symmetric(8)),
}
"""Formats by ggml's names, from the largest."""
