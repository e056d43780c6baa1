"""New CPU tensors for results and for what files hold, large ones in huge pages."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo import _core

_LARGE = 4 << 20
"""Bytes from which a tensor holds a huge page of 2 MiB wherever it lies."""


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """``torch.empty``, whose first write faults once in 2 MiB and not in 4 KiB where the tensor is large.

    Linux gives huge pages to who asks under ``transparent_hugepage=madvise`` (its usual setting) and to all under
    ``always``; under ``never`` and on other systems the tensor is a plain one.
    """
    tensor = torch.empty(shape, dtype=dtype)
    if tensor.nbytes >= _LARGE:
        _core._huge_pages(tensor.data_ptr(), tensor.nbytes)
    return tensor
