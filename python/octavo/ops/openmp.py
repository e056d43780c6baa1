"""The core works on the OpenMP threads of torch, where it has some: two teams would wait for each other's cores.

After each operation torch's threads spin for milliseconds, longer than most layers take, so threads of our own between
its operations have half a core. One team for both has no such neighbour, and is awake when a packed layer follows.
"""

from __future__ import annotations

import ctypes

import torch

from octavo import _core


def share_threads() -> bool:
    """Let the core share its work with torch's OpenMP threads. False where torch has none that it can use.

    The library is looked for among those that torch itself has loaded, whatever its name: libgomp, or LLVM's and
    Intel's, which have its interface as well.
    """
    try:
        parallel = ctypes.CDLL(torch._C.__file__).GOMP_parallel
        _core._use_openmp(ctypes.cast(parallel, ctypes.c_void_p).value or 0)
    except (AttributeError, OSError):
        return False
    return True
