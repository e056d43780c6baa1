"""Precision of a run: autocast to 16 bits, loss scaling for fp16, TF32 and simulated FP8.

Weights, gradients and optimizer state are float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn

from octavo.errors import ConfigError
from octavo.train.simulated_fp8 import restore_float, simulate_fp8

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}


class Precision:
    """The precision of a run, by its name in TrainConfig, with the loss scaler of fp16.

    ``scaler`` multiplies the loss so that small gradients do not underflow in float16. The scale doubles after 2000
    good updates; an update with an infinite or NaN gradient is skipped and halves it. The scaler is disabled in other
    precisions.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        """Prepare for ``name`` of TrainConfig on ``device``. Raises ConfigError for tf32 on a device without it."""
        if name == "tf32" and device.type != "cuda":
            raise ConfigError(f"precision is 'tf32' on {device.type}; accepted there: fp32, bf16, fp16, fp8")
        self.name = name
        self.device = device
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def autocast(self) -> AbstractContextManager[None]:
        """Return the context that a forward pass runs in; a new one each time."""
        if self.name not in _DTYPES:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=_DTYPES[self.name])

    @contextmanager
    def prepared(self, model: nn.Module) -> Iterator[None]:
        """Enable TF32 or FP8 inside, and restore the former state afterwards."""
        before = torch.backends.cuda.matmul.allow_tf32
        if self.name == "tf32":
            torch.backends.cuda.matmul.allow_tf32 = True
        if self.name == "fp8":
            simulate_fp8(model)
        try:
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before
            restore_float(model)
