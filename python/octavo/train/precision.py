"""Mixed precision: autocast to 16 bits, and loss scaling for fp16. Weights, gradients, optimizer state are float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """The precision of a run: ``fp32``, ``bf16`` or ``fp16``, with the loss scaler that fp16 needs.

    ``scaler`` multiplies the loss so that small gradients survive float16: it doubles after 2000 good updates, and an
    update with an infinite or NaN gradient is skipped and the scale halved. It does nothing in fp32 and bf16.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        """Prepare for ``name`` of TrainConfig on ``device``."""
        self.name = name
        self.device = device
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def autocast(self) -> AbstractContextManager[None]:
        """Return the context that a forward pass runs in; a new one each time."""
        if self.name not in _DTYPES:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=_DTYPES[self.name])
