"""An exponential moving average of a model's weights, in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """Moving average of the trained parameters of ``model``, in float32 and on their device.

    After update ``n`` (from 1): ``average += (1 - d) * (weights - average)``, where ``d`` is the lesser of ``decay``
    and ``(1 + n) / (10 + n)``, so that the first weights are soon forgotten. Buffers and frozen parameters are not
    averaged. ``torch.optim.swa_utils.AveragedModel`` is not used: it copies the whole model and has a constant decay,
    and earlier runs could not be resumed bit for bit.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        """Start from the weights as they are."""
        self.decay = decay
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._values = {name: p.detach().float().clone() for name, p in self._parameters.items()}

    @torch.no_grad()
    def update(self, number: int) -> None:
        """Update the average with the weights after update ``number``, counted from 1."""
        weight = 1 - min(self.decay, (1 + number) / (10 + number))
        values, now = list(self._values.values()), [p.detach().float() for p in self._parameters.values()]
        torch._foreach_lerp_(values, now, weight)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the weights by the average inside, and restore them bit for bit afterwards."""
        weights = {name: p.detach().clone() for name, p in self._parameters.items()}
        self._set(self._values)
        try:
            yield
        finally:
            self._set(weights)

    @torch.no_grad()
    def _set(self, values: dict[str, Tensor]) -> None:
        for name, parameter in self._parameters.items():
            parameter.copy_(values[name])

    def state_dict(self) -> dict[str, Tensor]:
        """Return the averages by the names of the parameters."""
        return dict(self._values)

    def load_state_dict(self, saved: dict[str, Tensor]) -> None:
        """Go on from :meth:`state_dict`. Raises KeyError for a parameter that it lacks."""
        for name, value in self._values.items():
            value.copy_(saved[name])
