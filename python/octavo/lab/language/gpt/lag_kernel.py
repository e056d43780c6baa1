"""A spectral mixer that is causal: a long convolution over lags, by the Fourier transform of padded sequences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from octavo.lab.language.gpt.mixing_context import MixingContext
from octavo.lab.language.techniques import register, whole


@dataclass(frozen=True, kw_only=True)
class LagKernel:
    """``y_t = sum over lags of k[lag] v_{t - lag}``, channel by channel, gated: no attention, ``T log T`` work.

    ``modes``: decaying cosines that a channel's kernel is a sum of, so that it reaches over any length. Non-linearities
    act in time: one in the spectrum would be no convolution, and would see the future whatever the padding.
    """

    modes: int = 8

    def __post_init__(self) -> None:
        """Check the field."""
        whole(self, "modes", least=1, most=4096)


class LagConvolution(nn.Module):
    """A convolution over lags with a gate: the part of mixers that differ by their ``kernel`` alone."""

    keeps_documents = False
    takes_values = False

    def __init__(self, width: int) -> None:
        """Make the projections."""
        super().__init__()
        self.value, self.gate = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.rules = {"value.weight": "matrix", "gate.weight": "matrix", "out.weight": "output"}

    def kernel(self, lags: int) -> Tensor:
        """Return the kernel on lags ``0 .. lags - 1``, ``[D, lags]`` float32."""
        raise NotImplementedError

    def forward(self, x_BTD: Tensor, context: MixingContext) -> Tensor:
        """Return the mixed vectors ``[B, T, D]``; transforms in float32 whatever the precision of the run."""
        length = x_BTD.shape[1]
        value_BTD = self.value(x_BTD)
        with torch.autocast(x_BTD.device.type, enabled=False):
            kernel_DT = self.kernel(length)
            # Twice the length: with less, the end of the sequence wraps around to its beginning.
            spectrum = torch.fft.rfft(value_BTD.float(), n=2 * length, dim=1)
            product = spectrum * torch.fft.rfft(kernel_DT, n=2 * length, dim=1).T
            mixed_BTD = torch.fft.irfft(product, n=2 * length, dim=1)[:, :length]
        return self.out(mixed_BTD.to(value_BTD.dtype) * functional.silu(self.gate(x_BTD)))

    def first_state(self, batch: int, device: torch.device) -> Any:
        """Return an empty history of values."""
        return torch.empty(batch, 0, self.value.out_features, device=device)

    def step(self, x_BD: Tensor, state: Any, context: MixingContext) -> tuple[Tensor, Any]:
        """Return the output of the next position and the history with its value."""
        history_BTD = torch.cat([state, self.value(x_BD)[:, None].float()], 1)
        kernel_DT = self.kernel(history_BTD.shape[1]).flip(1)
        mixed_BD = torch.einsum("btd,dt->bd", history_BTD, kernel_DT)
        return self.out(mixed_BD.to(x_BD.dtype) * functional.silu(self.gate(x_BD))), history_BTD


@register("mixer", "lag_kernel", LagKernel, examples=(LagKernel(modes=4),), lags=(0, 1, 7, 20))
class LagKernelMixer(LagConvolution):
    """:class:`LagKernel` as a mixer."""

    decay_base: Tensor
    angle_base: Tensor

    def __init__(self, config: LagKernel, width: int) -> None:
        """Make the projections and the kernels' parameters."""
        super().__init__(width)
        self.config = config
        shape = (width, config.modes)
        self.amplitude = nn.Parameter(torch.empty(shape))
        self.decay, self.angle = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))
        self.rules |= {"amplitude": "matrix", "decay": "zero", "angle": "one"}
        decays, angles = first_waves(config.modes)
        self.register_buffer("decay_base", decays, persistent=False)
        self.register_buffer("angle_base", angles, persistent=False)

    def kernel(self, lags: int) -> Tensor:
        """Return the kernel on lags ``0 .. lags - 1``, ``[D, lags]`` float32."""
        lag_L = torch.arange(lags, device=self.amplitude.device, dtype=torch.float32)
        rate_DM = self.decay_base * self.decay.exp()
        angle_DM = self.angle_base * self.angle
        waves_DML = torch.exp(-rate_DM[..., None] * lag_L) * torch.cos(angle_DM[..., None] * lag_L)
        return (self.amplitude[..., None] * waves_DML).sum(1)


def first_waves(modes: int) -> tuple[Tensor, Tensor]:
    """Return decays and angles a position of decaying cosines, float32 ``[modes]``.

    Half-lives from 1 position up, doubling; angles evenly up to half a turn a position.
    """
    places = torch.arange(modes)
    return math.log(2) * 0.5**places, math.pi * places / modes
