"""The feed-forward networks of a block: GELU, squared ReLU, and a gated unit."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from octavo.lab.language.techniques import choice, number, register


@dataclass(frozen=True, kw_only=True)
class GeluMLP:
    """Two matrices with an exact GELU between; ``factor``: inner width over the width; ``bias``: of both."""

    factor: float = 4.0
    bias: bool = False

    def __post_init__(self) -> None:
        """Check the fields."""
        number(self, "factor", least=1e-3, most=1024)
        choice(self, "bias", (True, False))


@dataclass(frozen=True, kw_only=True)
class SquaredReluMLP:
    """Two matrices with ``relu(x) ** 2`` between; ``factor``: inner width over the width; ``bias``: of both.

    Source: So et al. 2021.
    """

    factor: float = 4.0
    bias: bool = False

    def __post_init__(self) -> None:
        """Check the fields."""
        number(self, "factor", least=1e-3, most=1024)
        choice(self, "bias", (True, False))


@dataclass(frozen=True, kw_only=True)
class GatedMLP:
    """``out(silu(gate x) * (up x))``; at ``factor`` 8/3 as many weights as the others at 4. Source: Shazeer 2020."""

    factor: float = 8 / 3

    def __post_init__(self) -> None:
        """Check the factor."""
        number(self, "factor", least=1e-3, most=1024)


def _inner(factor: float, width: int) -> int:
    return max(1, round(factor * width))


@register("ffn", "gelu", GeluMLP, examples=(GeluMLP(),))
class GeluFeedForward(nn.Module):
    """:class:`GeluMLP` as a network: ``[..., D]`` to ``[..., D]``, position by position."""

    def __init__(self, config: GeluMLP, width: int) -> None:
        """Make the matrices."""
        super().__init__()
        inner = _inner(config.factor, width)
        self.up = nn.Linear(width, inner, bias=config.bias)
        self.down = nn.Linear(inner, width, bias=config.bias)
        self.rules = {"up.weight": "matrix", "down.weight": "output", "up.bias": "zero", "down.bias": "zero"}

    def forward(self, x: Tensor) -> Tensor:
        """Return the network's output."""
        return self.down(functional.gelu(self.up(x)))


@register("ffn", "squared_relu", SquaredReluMLP, examples=(SquaredReluMLP(bias=True),))
class SquaredReluFeedForward(GeluFeedForward):
    """:class:`SquaredReluMLP` as a network."""

    def __init__(self, config: SquaredReluMLP, width: int) -> None:
        """Make the matrices."""
        super().__init__(GeluMLP(factor=config.factor, bias=config.bias), width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the network's output."""
        return self.down(functional.relu(self.up(x)).square())


@register("ffn", "gated", GatedMLP, examples=(GatedMLP(),))
class GatedFeedForward(nn.Module):
    """:class:`GatedMLP` as a network."""

    def __init__(self, config: GatedMLP, width: int) -> None:
        """Make the matrices."""
        super().__init__()
        inner = _inner(config.factor, width)
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        self.rules = {"gate.weight": "matrix", "up.weight": "matrix", "down.weight": "output"}

    def forward(self, x: Tensor) -> Tensor:
        """Return the network's output."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))
