"""The content of tensors, arrays and files for a digest: all bytes up to a limit, samples beyond it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from octavo.storage import system

#: Bytes of a file, or of an array that is mapped from one, that are read in full.
WHOLE = 1 << 30
#: Number and bytes of the parts that are read of a larger file, spread evenly over it.
PARTS, PART = 64, 1 << 20
_STEP = 1 << 26
_SUFFIX = re.compile(r"\.\w{1,12}$")


def file_named(text: str) -> bool:
    """Whether a text is the path of a regular file: it has a separator or a suffix, and the file is there."""
    if not 0 < len(text) < 4096 or "\0" in text or "\n" in text:
        return False
    if os.sep not in text and not _SUFFIX.search(text):
        return False
    try:
        return stat.S_ISREG(os.stat(text).st_mode)
    except (OSError, ValueError):
        return False


def file_parts(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """Yield the size and the bytes of a file; above ``WHOLE`` bytes, samples and the time of the last change."""
    with open(os.open(path, system.READ), "rb") as file:
        status = os.fstat(file.fileno())
        yield b"%d" % status.st_size
        if status.st_size <= WHOLE:
            while block := file.read(_STEP):
                yield block
            return
        yield b"%d" % status.st_mtime_ns
        for start in _starts(status.st_size):
            file.seek(start)
            yield file.read(PART)


def array_parts(array: np.ndarray[Any, Any]) -> Iterator[bytes | memoryview]:
    """Yield type, shape and bytes of an array in row-major order.

    An array mapped from a file above ``WHOLE`` bytes is sampled as the file would be.
    """
    yield f"{array.dtype.descr if array.dtype.names else array.dtype.str} {array.shape}".encode()
    mapped = array if isinstance(array, np.memmap) else None
    if mapped is not None and mapped.nbytes > WHOLE and mapped.filename is not None:
        status = os.stat(mapped.filename)
        yield b"%d %d %d" % (mapped.offset, status.st_size, status.st_mtime_ns)
        flat = mapped.reshape(-1)
        for start in _starts(flat.nbytes):
            yield flat[start // flat.itemsize : (start + PART) // flat.itemsize].tobytes()
        return
    flat = array.reshape(-1)
    step = max(1, _STEP // max(array.itemsize, 1))
    for start in range(0, len(flat), step):
        yield flat[start : start + step].tobytes()


def tensor_parts(tensor: Tensor) -> Iterator[bytes | memoryview]:
    """Yield dtype, shape, type of device, layout and bytes of a tensor, in row-major order.

    A meta tensor has no bytes.
    """
    yield f"{tensor.dtype} {tuple(tensor.shape)} {tensor.device.type} {tensor.layout}".encode()
    if tensor.is_meta:
        return
    plain = tensor.detach()
    if plain.layout == torch.sparse_coo:
        plain = plain.coalesce()
        yield from (*tensor_parts(plain.indices()), *tensor_parts(plain.values()))
        return
    if plain.layout in (torch.sparse_csr, torch.sparse_bsr):
        for part in (plain.crow_indices(), plain.col_indices(), plain.values()):
            yield from tensor_parts(part)
        return
    if plain.layout in (torch.sparse_csc, torch.sparse_bsc):
        for part in (plain.ccol_indices(), plain.row_indices(), plain.values()):
            yield from tensor_parts(part)
        return
    if plain.is_quantized:
        yield f"{plain.qscheme()} {plain.dequantize().dtype}".encode()
        yield from (*tensor_parts(plain.int_repr()), *tensor_parts(plain.dequantize()))
        return
    flat = plain.resolve_conj().resolve_neg().cpu().contiguous().flatten().view(torch.uint8).numpy()
    for start in range(0, len(flat), _STEP):
        yield flat[start : start + _STEP].data


def _starts(nbytes: int) -> list[int]:
    """Return the offsets of the samples of ``nbytes`` bytes, at multiples of 64."""
    return [(nbytes - PART) * part // (PARTS - 1) // 64 * 64 for part in range(PARTS - 1)] + [nbytes - PART]
