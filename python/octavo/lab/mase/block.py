"""Formats whose blocks share an exponent or an exponent bias: block floating point, block minifloat, block log."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from octavo.errors import FormatError, ShapeError
from octavo.lab.mase._common import (
    LOG2_GUARD,
    check_bias,
    check_integer,
    check_tensor,
    keep_near_zero,
    straight_through,
)
from octavo.lab.mase.minifloat import minifloat_mantissa_bits, round_to_minifloat, round_to_power

BlockSize = int | Sequence[int]


def block_fp_quantizer(
    x: Tensor,
    width: int,
    exponent_width: int = 8,
    exponent_bias: int | None = None,
    block_size: BlockSize = (16,),
    skip_first_dim: bool = False,
) -> Tensor:
    """Round to block floating point: sign and width-1 magnitude bits, one exponent `ceil(log2 absmax)` a block.

    `x`: float dtype, shape (features) or (rows, features) without `skip_first_dim`, (batch, features) or
    (batch, rows, features) with it; the batch dimension is then never blocked. Returns a tensor like `x`.
    `block_size` is aligned to the right of the shape; -1, and dimensions it does not name, mean the whole dimension,
    and the last block of a dimension may be short. A block whose maximum is a power of two saturates. |x| <= 1e-8
    passes unchanged, infinities become NaN.

    Raises DTypeError, FormatError, ShapeError. Source: MASE `block_fp_quantizer`; FORMATS.md, section 6.
    """
    name = "block_fp_quantizer"
    steps = 2 ** (check_integer(name, "width", width, 2, 32) - 1)
    check_integer(name, "exponent_width", exponent_width, 1, 8)
    exponent_bias = check_bias(name, exponent_bias)
    bias = 2 ** (exponent_width - 1) - 1 if exponent_bias is None else exponent_bias

    def quantize(tiles: Tensor, largest: Tensor) -> Tensor:
        power = 2.0 ** torch.ceil(torch.log2(largest)).clamp(-bias, 2**exponent_width - 1 - bias)
        mantissa = torch.round((tiles.abs() + LOG2_GUARD) / power * steps).clamp(0, steps - 1) / steps
        return keep_near_zero(tiles, torch.sign(tiles + LOG2_GUARD) * power * mantissa)

    return straight_through(x, _per_tile(name, x, block_size, skip_first_dim, quantize))


def block_minifloat_quantizer(
    x: Tensor,
    width: int,
    exponent_width: int,
    exponent_bias_width: int,
    block_size: BlockSize = (16,),
    skip_first_dim: bool = False,
) -> Tensor:
    """Round to minifloats whose exponent bias, `clip(floor(log2 absmax), 0, 2^exponent_bias_width-1)`, a block shares.

    Shapes and `block_size` as in `block_fp_quantizer`. The shared bias has the wrong sign: large values make it large,
    which lowers the range. The result carries no gradient, since MASE's backward fails.

    Raises DTypeError, FormatError, ShapeError. Source: MASE `block_minifloat_quantizer`; FORMATS.md, section 6.
    """
    name = "block_minifloat_quantizer"
    mantissa_bits = minifloat_mantissa_bits(name, width, exponent_width)
    largest_bias = 2 ** check_integer(name, "exponent_bias_width", exponent_bias_width, 1, 8) - 1

    def quantize(tiles: Tensor, largest: Tensor) -> Tensor:
        bias = torch.floor(torch.log2(largest)).clamp(0, largest_bias)
        return round_to_minifloat(tiles, mantissa_bits, exponent_width, bias)

    return _per_tile(name, x, block_size, skip_first_dim, quantize)(x.detach())


def block_log_quantizer(
    x: Tensor,
    width: int,
    exponent_bias_width: int,
    block_size: BlockSize = (16,),
    skip_first_dim: bool = False,
) -> Tensor:
    """Round to signed powers of two whose bias a block shares, so that `ceil(log2 absmax)` is the top exponent.

    Shapes and `block_size` as in `block_fp_quantizer`. The bias is `2^(width-1)-1 - ceil(log2 absmax)`, clipped to
    0 .. 2^exponent_bias_width-1. There is no zero: it becomes the smallest positive power of its block.

    Raises DTypeError, FormatError, ShapeError. Source: MASE `block_log_quantizer`; FORMATS.md, section 6.
    """
    name = "block_log_quantizer"
    top = 2 ** (check_integer(name, "width", width, 2, 16) - 1) - 1
    largest_bias = 2 ** check_integer(name, "exponent_bias_width", exponent_bias_width, 1, 8) - 1

    def quantize(tiles: Tensor, largest: Tensor) -> Tensor:
        bias = (top - torch.ceil(torch.log2(largest))).clamp(0, largest_bias)
        return round_to_power(tiles, width, bias)

    return straight_through(x, _per_tile(name, x, block_size, skip_first_dim, quantize))


def _per_tile(
    name: str,
    x: Tensor,
    block_size: BlockSize,
    skip_first_dim: bool,
    quantize: Callable[[Tensor, Tensor], Tensor],
) -> Callable[[Tensor], Tensor]:
    """A function that cuts a tensor shaped like `x` into tiles, quantizes each by its largest magnitude, rejoins."""
    tile_shape = _tile_shape(name, x, block_size, skip_first_dim)

    def apply(x: Tensor) -> Tensor:
        # F.pad wants (left, right) pairs from the last dimension to the first.
        missing = [-length % tile for length, tile in zip(x.shape, tile_shape, strict=True)]
        padded = torch.nn.functional.pad(x, [amount for right in reversed(missing) for amount in (0, right)])
        grid = [part for length, tile in zip(padded.shape, tile_shape, strict=True) for part in (length // tile, tile)]
        tiles = padded.reshape(grid)
        largest = tiles.abs().amax(dim=tuple(range(1, tiles.ndim, 2)), keepdim=True)
        quantized = quantize(tiles, _without_zeros(largest)).reshape(padded.shape)
        return quantized[tuple(slice(length) for length in x.shape)]

    return apply


def _without_zeros(largest: Tensor) -> Tensor:
    """Largest magnitudes, where all-zero blocks take the smallest of the others (1 if all are zero), as MASE has it."""
    filled = largest[largest != 0]
    return largest.where(largest != 0, filled.min() if filled.numel() else 1.0)


def _tile_shape(name: str, x: Tensor, block_size: BlockSize, skip_first_dim: bool) -> list[int]:
    """Length of a tile along every dimension of `x`."""
    check_tensor(name, "x", x, least_dims=1, filled=True)
    accepted = (2, 3) if skip_first_dim else (1, 2)
    if x.ndim not in accepted:
        raise ShapeError(
            f"{name}: x needs {accepted[0]} or {accepted[1]} dimensions with skip_first_dim={bool(skip_first_dim)}, "
            f"got shape {tuple(x.shape)}"
        )
    sizes = [block_size] if isinstance(block_size, int) else list(block_size)
    if not sizes or not all(isinstance(size, int) and (size == -1 or size >= 1) for size in sizes):
        raise FormatError(f"{name}: block_size is {block_size!r}; accepted are positive integers, and -1 for all")
    blocked = list(x.shape[1:] if skip_first_dim else x.shape)
    sizes = [-1] * (len(blocked) - len(sizes)) + sizes[-len(blocked) :]
    tile = [length if size == -1 else min(size, length) for size, length in zip(sizes, blocked, strict=True)]
    return [1, *tile] if skip_first_dim else tile
