"""Checks of a tensor's memory: its storage is large enough, and two tensors do not overlap."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from octavo.errors import ShapeError


def _reach(tensor: Tensor) -> int:
    """Return the bytes from the first element of a tensor to the end of its last one; 0 for an empty tensor."""
    if tensor.is_contiguous():
        return tensor.nbytes
    if tensor.numel() == 0:
        return 0
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.itemsize


def check_held(tensor: Tensor, label: str) -> None:
    """Refuse a tensor that its storage is too small for, as ``untyped_storage().resize_()`` leaves it.

    Raises ShapeError. torch itself would read past the end.
    """
    needed, available = _reach(tensor), tensor.untyped_storage().nbytes()
    first = tensor.storage_offset() * tensor.itemsize
    if needed and first + needed > available:
        raise ShapeError(
            f"{label} of shape {tuple(tensor.shape)} needs bytes {first} to {first + needed} of its storage, which "
            f"holds {available}; the storage was resized after the tensor was made, make the tensor anew"
        )


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors reach over common bytes; elements of strided ones may still lie apart."""
    first, second = a.data_ptr(), b.data_ptr()
    return max(first, second) < min(first + _reach(a), second + _reach(b))


def refuse_overlap(
    written: Iterable[tuple[str, Tensor]], read: Iterable[tuple[str, Tensor | None]], advice: str
) -> None:
    """Refuse tensors to write, contiguous ones, that share bytes with each other or with those read.

    Raises ShapeError.
    """
    taken = []
    for name, tensor in read:
        if tensor is not None:
            start = tensor.data_ptr()
            taken.append((name, start, start + (tensor.nbytes if tensor.is_contiguous() else _reach(tensor))))
    for name, tensor in written:
        nbytes = tensor.nbytes
        if nbytes:
            start = tensor.data_ptr()
            end = start + nbytes
            for other, low, high in taken:
                if start < high and low < end and low < high:
                    raise ShapeError(f"{name} overlaps {other} in memory; {advice}")
            taken.append((name, start, end))
