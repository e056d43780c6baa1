"""The one module that reads the environment.

``OCTAVO_SIMD``: ``scalar``, ``neon``, ``avx2`` or ``avx512`` forces an instruction set. Codecs give the same bits at
every level; products agree within the bound of FORMATS.md, section 6.
``OCTAVO_NUM_THREADS``: threads of the codecs and kernels, at most 256; default: the cores this process may use.
``OCTAVO_STRICT``: ``1`` makes every product without a kernel an error (:func:`strict`); default ``0``.

The CUDA part reads its own, through ``_core`` and once, at import:

``OCTAVO_NVRTC``: the NVRTC library, or the folder that holds it; default: searched for (:mod:`octavo.cuda.device`).
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

MAX_THREADS = 256
"""Most threads that can be asked for; the core refuses more."""

SIMD_LEVELS = ("scalar", "neon", "avx2", "avx512")

_always_strict = False
_strict: ContextVar[bool | None] = ContextVar("octavo.strict", default=None)


def is_strict() -> bool:
    """Whether a product on packed codes without a kernel is an error here."""
    here = _strict.get()
    return _always_strict if here is None else here


@contextmanager
def strict(enabled: bool = True) -> Iterator[None]:
    """Raise KernelError inside instead of decoding a weight and multiplying with PyTorch.

    Holds for this thread or task. ``OCTAVO_STRICT=1`` sets it everywhere.

    Args:
        enabled: False allows decoding again in a part.

    Returns:
        A context manager.

    Raises:
        KernelError: inside, for a product without a kernel on packed codes.

    Example:
        >>> packed = octavo.pack_model(octavo.quantize_model(nn.Conv1d(4, 4, 3), "int8"))
        >>> with octavo.strict():
        ...     packed(torch.ones(1, 4, 8))
        Traceback (most recent call last):
        octavo.errors.KernelError: PackedConv1d: there is no kernel for packed convolutions; leave octavo.strict()
    """
    token = _strict.set(enabled)
    try:
        yield
    finally:
        _strict.reset(token)


def start() -> None:
    """Apply the environment on import; for the command line, a wrong setting is one line on stderr and exit code 2.

    The package is imported before any command runs, so a command could not catch it. Raises as :func:`apply`.
    """
    try:
        apply()
    except SettingError as error:
        if not _is_command():
            raise
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2) from None


def _is_command() -> bool:
    """Whether this process is the command ``octavo``, or ``python -m octavo``."""
    arguments = sys.orig_argv[1:]
    if "-m" in arguments[:-1]:
        return arguments[arguments.index("-m") + 1].partition(".")[0] == "octavo"
    return os.path.basename(sys.argv[0] if sys.argv else "").partition(".")[0] == "octavo"


def _shown(text: str) -> str:
    """Return a value for a message: one line of reasonable length."""
    return repr(text if len(text) <= 40 else text[:40] + "...")


def _threads(text: str) -> int:
    """Return a number of threads from its text. Raises SettingError."""
    accepted = f"accepted are 0 (all cores) to {MAX_THREADS}"
    if not (text.isascii() and text.isdigit()):
        raise SettingError(f"OCTAVO_NUM_THREADS={_shown(text)}: not a number; {accepted}")
    digits = text.lstrip("0") or "0"
    if len(digits) > len(str(MAX_THREADS)) or int(digits) > MAX_THREADS:
        raise SettingError(f"OCTAVO_NUM_THREADS={_shown(text)}: too many threads; {accepted}")
    return int(digits)


def apply() -> None:
    """Apply the environment to the core.

    Raises SettingError for a level this machine lacks, a number of threads that is not one, or another OCTAVO_STRICT,
    OCTAVO_CUDA_SYNC or OCTAVO_CUDA_PLAIN.
    """
    global _always_strict
    strict = os.environ.get("OCTAVO_STRICT") or "0"
    if strict not in ("0", "1"):
        raise SettingError(f"OCTAVO_STRICT={_shown(strict)}; accepted are 0 and 1")
    _always_strict = strict == "1"
    level = os.environ.get("OCTAVO_SIMD")
    if level:
        if level not in SIMD_LEVELS:
            raise SettingError(f"OCTAVO_SIMD={_shown(level)}: accepted are {', '.join(SIMD_LEVELS)}")
        _core.force_simd(level)
    threads = os.environ.get("OCTAVO_NUM_THREADS")
    if threads:
        _core.set_num_threads(_threads(threads))
    _core._cuda_configure([folder for folder in sys.path if folder])
    if _core.debug_build:
        warnings.warn("octavo._core is a debug build: 10 to 50 times slower than a release build", stacklevel=3)
