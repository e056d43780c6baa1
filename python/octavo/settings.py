"""The one module that reads the environment.

``OCTAVO_SIMD``: ``scalar``, ``avx2`` or ``avx512`` forces an instruction set; results are the same at every level.
``OCTAVO_NUM_THREADS``: threads of the codecs and kernels; default: the cores this process may use.
"""

import os
import warnings

from octavo import _core
from octavo.errors import SettingError


def apply() -> None:
    """Apply the environment to the core; called once, on import.

    Raises SettingError for a level this machine lacks or a number of threads that is not one.
    """
    level = os.environ.get("OCTAVO_SIMD")
    if level:
        _core.force_simd(level)
    threads = os.environ.get("OCTAVO_NUM_THREADS")
    if threads:
        if not (threads.isascii() and threads.isdigit()):
            raise SettingError(f"OCTAVO_NUM_THREADS={threads!r}: not a number; accepted are 0 (all cores) to 256")
        _core.set_num_threads(int(threads))
    if _core.debug_build:
        warnings.warn("octavo._core is a debug build: 10 to 50 times slower than a release build", stacklevel=3)
