"""Which of torch's kernels of attention a run trains with: flash, efficient, math or cuDNN, or torch's own choice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from octavo.errors import ConfigError
from octavo.lab.language.attention_names import AUTO

if TYPE_CHECKING:
    from octavo.lab.language.language_config import LanguageConfig

_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
_DTYPES = {"bf16": torch.bfloat16, "fp8": torch.bfloat16, "fp16": torch.float16}


@contextmanager
def attention_backend(config: LanguageConfig) -> Iterator[None]:
    """Let attention run by the kernel that a run names. Compiled code is made anew, for it has its kernel inside."""
    if config.attention == AUTO:
        yield
        return
    if config.compile:
        torch.compiler.reset()
    try:
        with sdpa_kernel(_BACKENDS[config.attention]):
            yield
    finally:
        if config.compile:
            torch.compiler.reset()


def check_attention(config: LanguageConfig, name: str) -> None:
    """Refuse a kernel that a device has not for the run's precision and masks. Raises ConfigError with those it has.

    ``name``: of the device, ``auto`` for a GPU where there is one.
    """
    best = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(best if name == "auto" else name)
    if config.attention == AUTO or _runs(config.attention, config, device):
        return
    others = [name for name in _BACKENDS if _runs(name, config, device)]
    mask = " under a mask" if _is_masked(config) else ""
    raise ConfigError(
        f"attention is {config.attention!r}, which torch has not on {device.type} in {config.precision}{mask}; "
        f"accepted here: {', '.join([AUTO, *others])}"
    )


def _runs(name: str, config: LanguageConfig, device: torch.device) -> bool:
    """Return whether a kernel takes a small product like those of the run."""
    dtype = _DTYPES.get(config.precision, torch.float32)
    query = torch.zeros(1, 1, 16, 64, dtype=dtype, device=device)
    mask = torch.ones(16, 16, dtype=torch.bool, device=device).tril() if _is_masked(config) else None
    try:
        with sdpa_kernel(_BACKENDS[name]):
            functional.scaled_dot_product_attention(query, query, query, attn_mask=mask, is_causal=mask is None)
    except RuntimeError:
        return False
    return True


def _is_masked(config: LanguageConfig) -> bool:
    windows = any(phase.window is not None for phase in config.phases)
    own = any(getattr(mixer, "window", 0) or hasattr(mixer, "distance") for _, mixer in config.model.mixers)
    return windows or own or config.model.keep_documents
