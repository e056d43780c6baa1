"""Parts of an encoded tensor: their names, dtypes and shapes, and the check of one that is given."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from octavo import _core
from octavo.errors import DTypeError, ShapeError

FLOATS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
SCALE_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "e8m0": torch.uint8,
    "e4m3": torch.uint8,
    "int8": torch.int8,
    "nested": torch.uint8,
    None: torch.uint8,
}

PLAIN = (Tensor, torch.nn.Parameter)


def part_shapes(format: _core.Format, shape: tuple[int, ...], axis: int) -> tuple[list[int], list[int], list[int]]:
    """Shapes of codes, scales and packed zeros of a tensor encoded along ``axis``; ``[0]`` for a part not there.

    Plain arithmetic, so that the symbolic sizes of torch.compile pass through.
    """
    lead = list(shape)
    k = lead.pop(axis) if lead else 1
    codes = [*lead, (k * format.width + 7) // 8]
    if format.scale_type is None:
        return codes, [0], [0]
    tensor = format.granularity == "tensor"
    rows = [] if tensor else lead
    per_row = -(-k // format.block) if format.block else 1
    levels = [format.scales_per_group] if format.scales_per_group > 1 else []
    zeros = [*rows, (per_row * format.width + 7) // 8] if format.has_zeros else [0]
    return codes, [*rows, per_row, *levels], zeros


def symbolic_specs(format: _core.Format, shape: tuple[int, ...], axis: int) -> list[tuple[str, torch.dtype, list[int]]]:
    """Name, dtype and shape of codes, scales, zeros and levels of a tensor encoded along ``axis``."""
    codes, scales, zeros = part_shapes(format, shape, axis)
    return [
        ("codes", torch.uint8, codes),
        ("scales", SCALE_DTYPES[format.scale_type], scales),
        ("zeros", torch.uint8, zeros),
        ("levels", torch.float32, [1 if format.has_levels else 0]),
    ]


@lru_cache(maxsize=4096)
def part_specs(format: _core.Format, shape: tuple[int, ...], axis: int) -> list[tuple[str, torch.dtype, torch.Size]]:
    """``symbolic_specs`` of checked numbers. Raises ShapeError where the format does not take the shape."""
    try:
        format._sizes(list(shape), axis)
    except (OverflowError, TypeError) as error:
        raise ShapeError(
            f"'{format}': shape {shape} along axis {axis}; sizes are at least 0 and fit memory, the axis lies within "
            "the dimensions"
        ) from error
    return [(name, dtype, torch.Size(part)) for name, dtype, part in symbolic_specs(format, shape, axis)]


def is_plain(part: Tensor) -> bool:
    """Whether a part is a plain dense tensor that needs no gradient."""
    return (
        type(part) in PLAIN
        and part.layout is torch.strided
        and not (part.requires_grad or part.is_nested or part.is_neg())
    )


def not_plain(part: Tensor, label: str) -> DTypeError:
    """Return the error for a part that is no plain dense tensor."""
    if type(part) not in PLAIN:
        return DTypeError(
            f"{label} are a {type(part).__name__}; accepted are plain tensors, .as_subclass(Tensor) is one"
        )
    if part.layout is not torch.strided or part.is_nested:
        return DTypeError(
            f"{label} have layout {part.layout}{' (nested)' * part.is_nested}; accepted are dense tensors"
        )
    if part.requires_grad:
        return DTypeError(f"{label} require a gradient, which packed parts have not; pass part.detach()")
    return DTypeError(f"{label} are a view with the negative bit; resolve_neg() gives the values")
