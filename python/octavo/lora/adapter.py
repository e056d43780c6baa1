"""The modules: one low-rank update, and the named updates of one layer.

A layer keeps its class, its parameters and their names. It gets a submodule ``lora`` and a forward hook that adds the
active update to its output. Therefore selectors, state dicts and tied weights work as before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from octavo.lora.lora_config import LoraConfig
from octavo.storage.arguments import checks_arguments

ATTRIBUTE = "lora"


class Adapter(nn.Module):
    """The update ``scaling * B A dropout(x)``: A ``[rank, in]`` Kaiming-uniform, B ``[out, rank]`` zeros."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        config: LoraConfig,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Create the update of a layer from ``in_features`` to ``out_features``; :meth:`reset` initialises A and B."""
        super().__init__()
        self.config = config
        self.scaling = config.scaling
        self.A = nn.Parameter(torch.empty(config.rank, in_features, dtype=dtype, device=device))
        self.B = nn.Parameter(torch.empty(out_features, config.rank, dtype=dtype, device=device))

    def reset(self, generator: torch.Generator | None = None) -> None:
        """Initialise A with random values and B with zeros."""
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5), generator=generator)
        nn.init.zeros_(self.B)

    def forward(self, x: Tensor) -> Tensor:
        """Return the update of ``x`` ``[..., in]`` -> ``[..., out]``, in the adapter's dtype."""
        x = x.to(self.A.dtype)
        if self.training and self.config.dropout:
            x = F.dropout(x, self.config.dropout)
        return F.linear(F.linear(x, self.A), self.B) * self.scaling

    def delta(self) -> Tensor:
        """Return ``scaling * B A``, float64, ``[out, in]``."""
        return (self.B.detach().double() @ self.A.detach().double()).mul_(self.scaling)


@dataclass(frozen=True)
class OriginalAttributes:
    """The attributes of a layer before fusing, by name: the same objects, not copies."""

    attributes: dict[str, Any]


class Adapters(nn.Module):
    """The named updates of one layer. ``active``: name of the active one, or None.

    ``original``: attributes of the layer before fusing, None while nothing is fused.
    """

    def __init__(self) -> None:
        """Begin without updates."""
        super().__init__()
        self.active: str | None = None
        self.original: OriginalAttributes | None = None
        self.handle: Any = None

    def names(self) -> list[str]:
        """Return the names of the updates."""
        return list(self._modules)

    def attach(self, layer: nn.Module) -> None:
        """Become the adapters of ``layer``."""
        layer.add_module(ATTRIBUTE, self)
        self.handle = layer.register_forward_hook(_add_update, with_kwargs=True)

    def detach(self, layer: nn.Module) -> None:
        """Undo :meth:`attach`."""
        self.handle.remove()
        delattr(layer, ATTRIBUTE)


def _add_update(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], y: Tensor) -> Tensor:
    own = layer.lora
    assert isinstance(own, Adapters)
    if own.active is None or own.original is not None:
        return y
    x = args[0] if args else kwargs["input"]
    return y + getattr(own, own.active)(x).to(y.dtype)


@checks_arguments
def adapters(model: nn.Module) -> dict[str, Adapters]:
    """Return the adapters of each adapted layer.

    Args:
        model: any model.

    Returns:
        Adapters by the layer's path, in the order of the model's modules.
    """
    suffix = f".{ATTRIBUTE}"
    return {
        path.removesuffix(suffix) if path != ATTRIBUTE else "": module
        for path, module in model.named_modules()
        if isinstance(module, Adapters)
    }
