"""Operator mixers: a convolution over lags whose kernel is one learned function of the lag for all channels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from octavo.lab.language.gpt.lag_kernel import LagConvolution, first_waves
from octavo.lab.language.techniques import choice, register, whole


@dataclass(frozen=True, kw_only=True)
class OperatorKernel:
    """:class:`~octavo.lab.language.gpt.LagKernel` with a kernel of few numbers: an operator that is learned for any
    length.

    ``kernel``: ``modes``, in which channels share ``modes`` decaying cosines and differ by their amplitudes, so that
    all kernels span that many dimensions at most; or ``mlp``, a network of ``hidden`` units from ``modes`` features of
    the lag to all channels, times a decay a channel. Source: Poli et al. 2023, section 3.3, for the second.
    """

    kernel: str = "modes"
    modes: int = 8
    hidden: int = 32

    def __post_init__(self) -> None:
        """Check every field."""
        choice(self, "kernel", ("modes", "mlp"))
        whole(self, "modes", least=1, most=4096)
        whole(self, "hidden", least=1)


@register(
    "mixer",
    "operator",
    OperatorKernel,
    examples=(OperatorKernel(modes=4), OperatorKernel(kernel="mlp", modes=3, hidden=8)),
    lags=(0, 1, 7, 20),
)
class OperatorMixer(LagConvolution):
    """:class:`OperatorKernel` as a mixer."""

    decay_base: Tensor
    angle_base: Tensor
    channel_base: Tensor

    def __init__(self, config: OperatorKernel, width: int) -> None:
        """Make the projections and the kernel's parameters."""
        super().__init__(width)
        self.config = config
        decays, angles = first_waves(config.modes)
        self.register_buffer("decay_base", decays, persistent=False)
        if config.kernel == "modes":
            self.amplitude = nn.Parameter(torch.empty(width, config.modes))
            self.decay = nn.Parameter(torch.empty(config.modes))
            self.angle = nn.Parameter(torch.empty(config.modes))
            self.rules |= {"amplitude": "matrix", "decay": "zero", "angle": "one"}
            self.register_buffer("angle_base", angles, persistent=False)
        else:
            self.hidden = nn.Linear(config.modes, config.hidden)
            self.channels = nn.Linear(config.hidden, width, bias=False)
            self.decay = nn.Parameter(torch.empty(width))
            self.rules |= {"hidden.weight": "matrix", "hidden.bias": "zero", "channels.weight": "matrix"}
            self.rules["decay"] = "zero"
            rates = 0.5 ** torch.linspace(0, 10, width)  # down to 1 / e after 1 to 1,024 positions
            self.register_buffer("channel_base", rates, persistent=False)

    def kernel(self, lags: int) -> Tensor:
        """Return the kernel on lags ``0 .. lags - 1``, ``[D, lags]`` float32; longer ones begin with shorter ones."""
        lag_L = torch.arange(lags, device=self.decay.device, dtype=torch.float32)
        if self.config.kernel == "modes":
            return self.amplitude.float() @ self.waves(lag_L)
        features_LM = torch.exp(-self.decay_base * lag_L[:, None]).to(self.decay.dtype)
        shape_LD = self.channels(functional.gelu(self.hidden(features_LM))).float()
        return shape_LD.T * torch.exp(-(self.channel_base * self.decay.float().exp())[:, None] * lag_L)

    def waves(self, lag_L: Tensor) -> Tensor:
        """Return the modes that channels share, ``[modes, L]``."""
        rate_M = self.decay_base * self.decay.float().exp()
        angle_M = self.angle_base * self.angle.float()
        return torch.exp(-rate_M[:, None] * lag_L) * torch.cos(angle_M[:, None] * lag_L)
