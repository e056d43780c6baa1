"""Tensors in mapped files, for what is too large for memory: weights, sums, outputs."""

from __future__ import annotations

import errno
import os
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

MOST_HELD = 1 << 28
"""Bytes that a caller holds in memory; what comes beyond them lies in files."""

FULL_DISK = "cannot be written; set TMPDIR to a folder with more space"


def file_tensor(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return zeros in a mapped file of the folder for temporary files; the file goes with the tensor.

    Where the system allows it no name is left, so that nothing stays behind a process that is killed.

    Args:
        shape: the sizes of the tensor.
        dtype: its dtype.

    Raises:
        OSError: where the disk has no space for it.

    Example:
        >>> zeros = file_tensor((2, 3), torch.float32)
        >>> zeros.shape, float(zeros.sum())
        (torch.Size([2, 3]), 0.0)
    """
    size = torch.Size(shape).numel()
    if not size:
        return torch.zeros(tuple(shape), dtype=dtype)
    number, name = tempfile.mkstemp(prefix="octavo-")
    try:
        _allocate(number, size * dtype.itemsize, name)
        tensor = torch.from_file(name, shared=True, size=size, dtype=dtype)
    except BaseException:
        os.close(number)
        os.unlink(name)
        raise
    os.close(number)
    try:
        os.unlink(name)
    except PermissionError:  # Windows keeps the name of a mapped file
        weakref.finalize(tensor.untyped_storage(), Path(name).unlink, missing_ok=True)
    return tensor.view(tuple(shape))


def in_file(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return a copy of a tensor in a mapped file, in a dtype, with the strides of a clone.

    Raises OSError as :func:`file_tensor`.
    """
    strides = torch.empty_like(tensor, device="meta").stride()
    flat = file_tensor((tensor.numel(),), dtype or tensor.dtype)
    return flat.as_strided(tensor.shape, strides).copy_(tensor.detach())


def _allocate(number: int, nbytes: int, name: str) -> None:
    """Reserve the bytes: a page without space would end the process when it is written."""
    if not hasattr(os, "posix_fallocate"):
        os.ftruncate(number, nbytes)
        return
    try:
        os.posix_fallocate(number, 0, nbytes)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            raise OSError(error.errno, f"{nbytes} bytes {FULL_DISK}: {error.strerror}", name) from error
        os.ftruncate(number, nbytes)
