"""Where tensors lie: whether their storage holds them, and whether two of them share bytes."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from octavo.errors import ShapeError


def reach(tensor: Tensor) -> int:
    """Return the bytes from the first element of a tensor to the end of its last one; 0 for an empty tensor."""
    if tensor.numel() == 0:
        return 0
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.itemsize


def check_held(tensor: Tensor, what: str) -> None:
    """Refuse a tensor that its storage is too small for, as ``untyped_storage().resize_()`` leaves it.

    Raises ShapeError. torch itself would read past the end.
    """
    needed, held = reach(tensor), tensor.untyped_storage().nbytes()
    if needed and tensor.storage_offset() * tensor.itemsize + needed > held:
        raise ShapeError(
            f"{what} of shape {tuple(tensor.shape)} needs bytes {tensor.storage_offset() * tensor.itemsize} to "
            f"{tensor.storage_offset() * tensor.itemsize + needed} of its storage, which holds {held}; the storage was "
            "resized after the tensor was made, make the tensor anew"
        )


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors reach over common bytes; elements of strided ones may still lie apart."""
    if a.device != b.device:
        return False
    here, there = reach(a), reach(b)
    return here > 0 < there and a.data_ptr() < b.data_ptr() + there and b.data_ptr() < a.data_ptr() + here


def refuse_overlap(out: Tensor, what: str, others: Iterable[tuple[str, Tensor | None]], advice: str) -> None:
    """Refuse an ``out`` that shares bytes with something read, or written too. Raises ShapeError."""
    for name, other in others:
        if other is not None and overlap(out, other):
            raise ShapeError(f"{what} overlaps {name} in memory; {advice}")
