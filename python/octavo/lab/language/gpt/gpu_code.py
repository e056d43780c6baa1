"""Whether code is compiled for a GPU, which wants other forms of some functions than a CPU and eager mode."""

from __future__ import annotations

import torch
from torch import Tensor


def compiled(x: Tensor) -> bool:
    """Return whether ``x`` lies on a GPU and torch.compile reads the code that asks; not where torch.export does.

    What is exported has no operation of this package.
    """
    exporting = getattr(torch.compiler, "is_exporting", bool)  # torch 2.7 has it
    return torch.compiler.is_compiling() and not exporting() and x.device.type == "cuda"
