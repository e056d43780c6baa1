"""The cheapest local mixer: a short causal convolution over positions, channel by channel, with a gate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from octavo.lab.language.gpt.mixing_context import MixingContext
from octavo.lab.language.techniques import register, whole


@dataclass(frozen=True, kw_only=True)
class GatedConvolution:
    """``out(silu(gate x) * conv(value x))``; ``reach``: positions that are seen, the own one included."""

    reach: int = 4

    def __post_init__(self) -> None:
        """Check the field."""
        whole(self, "reach", least=1, most=4096)


@register("mixer", "gated_convolution", GatedConvolution, examples=(GatedConvolution(),), lags=(0, 1, 3))
class GatedConvolutionMixer(nn.Module):
    """:class:`GatedConvolution` as a mixer."""

    keeps_documents = True
    reads_on = True
    takes_values = False

    def __init__(self, config: GatedConvolution, width: int) -> None:
        """Make the projections and a kernel for every channel."""
        super().__init__()
        self.config = config
        self.value, self.gate = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.kernel = nn.Parameter(torch.empty(width, config.reach))
        self.rules = {"value.weight": "matrix", "gate.weight": "matrix", "out.weight": "output", "kernel": "matrix"}

    def forward(self, x_BTD: Tensor, context: MixingContext) -> Tensor:
        """Return the mixed vectors ``[B, T, D]``."""
        value_BTD, told = self.value(x_BTD), context.documents_BT
        mixed_BTD = value_BTD * self.kernel[:, 0]
        for lag in range(1, min(self.config.reach, x_BTD.shape[1])):
            earlier_BTD = value_BTD[:, :-lag]
            if told is not None:
                earlier_BTD = earlier_BTD * (told[:, lag:] == told[:, :-lag])[..., None]
            mixed_BTD = mixed_BTD + functional.pad(earlier_BTD, (0, 0, lag, 0)) * self.kernel[:, lag]
        return self.out(mixed_BTD * functional.silu(self.gate(x_BTD)))

    def read_on(self, x_BSD: Tensor, rows: Any, context: MixingContext, most: int, back: int) -> tuple[Tensor, Any]:
        """Return the output of the next positions, ``[B, S, D]``, and the vectors that the ones after them may see."""
        numbers, before = context.documents_BT, 0
        if rows is not None:
            before, x_BSD = rows["x"].shape[1], torch.cat([rows["x"], x_BSD], 1)
            numbers = None if numbers is None else torch.cat([rows["documents"], numbers], 1)
        mixed_BSD = self.forward(x_BSD, MixingContext(context.positions_T, numbers))[:, before:]
        begin = max(0, x_BSD.shape[1] - self.config.reach + 1)
        return mixed_BSD, {"x": x_BSD[:, begin:], "documents": None if numbers is None else numbers[:, begin:]}

    def first_state(self, batch: int, device: torch.device) -> Any:
        """Return an empty history of values and their documents."""
        none = torch.empty(batch, 0, self.value.out_features, device=device)
        return {"values": none, "documents": torch.empty(batch, 0, dtype=torch.int64, device=device)}

    def step(self, x_BD: Tensor, state: Any, context: MixingContext) -> tuple[Tensor, Any]:
        """Return the output of the next position and the last values that later ones may see."""
        told, reach = context.documents_BT, self.config.reach
        values = torch.cat([state["values"], self.value(x_BD)[:, None]], 1)[:, -reach:]
        documents = state["documents"]
        seen = values
        if told is not None:
            documents = torch.cat([documents, told], 1)[:, -reach:]
            seen = values * (documents == told)[..., None]
        kernel_DL = self.kernel[:, : values.shape[1]].flip(1)
        mixed_BD = torch.einsum("bld,dl->bd", seen, kernel_DL)
        out_BD = self.out(mixed_BD * functional.silu(self.gate(x_BD)))
        return out_BD, {"values": values, "documents": documents}
