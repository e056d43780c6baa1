"""The one module that reads the environment.

``OCTAVO_SIMD``: ``scalar``, ``avx2`` or ``avx512`` forces an instruction set; results are the same at every level.
``OCTAVO_NUM_THREADS``: threads of the codecs and kernels; default: the cores this process may use.
``OCTAVO_STRICT``: ``1`` makes every product without a kernel an error (:func:`strict`); default ``0``.

The CUDA part reads its own, through ``_core`` and once, at import:

``OCTAVO_NVRTC``: the NVRTC library, or the folder that holds it; default: searched for (:mod:`octavo.cuda`).
``OCTAVO_CACHE_DIR``: folder of compiled kernels, or ``off``; default: ``octavo/cubin`` in the user's cache.
``OCTAVO_CUDA_SYNC``: ``1`` waits after every launch, so that errors name kernels, and compiles with line numbers.
``OCTAVO_CUDA_PLAIN``: ``1`` uses no kernel that only some GPUs run; those for all give the same bits.
"""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from octavo import _core
from octavo.errors import SettingError

_always_strict = False
_strict: ContextVar[bool | None] = ContextVar("octavo.strict", default=None)


def is_strict() -> bool:
    """Whether a product on packed codes without a kernel is an error here."""
    here = _strict.get()
    return _always_strict if here is None else here


@contextmanager
def strict(enabled: bool = True) -> Iterator[None]:
    """Raise KernelError inside instead of decoding a weight and multiplying with PyTorch.

    Holds for this thread or task. ``enabled=False`` allows it again in a part. ``OCTAVO_STRICT=1`` sets it everywhere.
    """
    token = _strict.set(enabled)
    try:
        yield
    finally:
        _strict.reset(token)


def apply() -> None:
    """Apply the environment to the core; called once, on import.

    Raises SettingError for a level this machine lacks, a number of threads that is not one, or another OCTAVO_STRICT,
    OCTAVO_CUDA_SYNC or OCTAVO_CUDA_PLAIN.
    """
    global _always_strict
    given = os.environ.get("OCTAVO_STRICT") or "0"
    if given not in ("0", "1"):
        raise SettingError(f"OCTAVO_STRICT={given!r}; accepted are 0 and 1")
    _always_strict = given == "1"
    level = os.environ.get("OCTAVO_SIMD")
    if level:
        _core.force_simd(level)
    threads = os.environ.get("OCTAVO_NUM_THREADS")
    if threads:
        if not (threads.isascii() and threads.isdigit()):
            raise SettingError(f"OCTAVO_NUM_THREADS={threads!r}: not a number; accepted are 0 (all cores) to 256")
        _core.set_num_threads(int(threads))
    _core._cuda_configure([folder for folder in sys.path if folder])
    if _core.debug_build:
        warnings.warn("octavo._core is a debug build: 10 to 50 times slower than a release build", stacklevel=3)
