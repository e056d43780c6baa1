"""Adapters as passes of a pipeline of :mod:`octavo.graph`: insertion, and final fusing into the weights."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from octavo.errors import ModelError
from octavo.graph.model_passes import Pass, PassInputs, TransformReport
from octavo.lora.adapter import adapters
from octavo.lora.fuse import commit, fuse
from octavo.lora.insert import DEFAULT, insert
from octavo.lora.lora_config import LoraConfig


@dataclass(frozen=True)
class LoraPassConfig(LoraConfig):
    """The options of an adapter, its ``name``, and the ``seed`` of A's random values."""

    name: str = DEFAULT
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the values. Raises ModelError."""
        super().__post_init__()
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or not 0 <= self.seed < 1 << 63:
            raise ModelError(f"lora: seed is {self.seed!r}; accepted are whole numbers from 0")

    def adapter(self) -> LoraConfig:
        """Return only the options of the adapter."""
        own: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(LoraConfig)}
        return LoraConfig(**own)


@dataclass(frozen=True)
class FuseConfig:
    """Fusing has no options."""


def _insert(model: nn.Module, config: LoraPassConfig, pass_inputs: PassInputs) -> tuple[nn.Module, TransformReport]:
    generator = torch.Generator().manual_seed(config.seed)
    adapted = insert(model, config.adapter(), name=config.name, inplace=True, generator=generator)
    rows = []
    for path, own in adapters(adapted).items():
        if config.name in own.names():
            adapter = getattr(own, config.name)
            rows.append((path, config.rank, adapter.A.numel() + adapter.B.numel()))
    return adapted, TransformReport(("layer", ">rank", ">trained"), tuple(rows))


def _fuse(model: nn.Module, config: FuseConfig, pass_inputs: PassInputs) -> tuple[nn.Module, TransformReport]:
    report = fuse(model)
    commit(model)
    rows = tuple((layer.path, layer.format, layer.update, layer.lost, layer.codes_changed) for layer in report.layers)
    return model, TransformReport(("layer", "format", ">update", ">lost", ">codes changed"), rows)


LORA = Pass("lora", "training", LoraPassConfig, _insert, also_after=("fold", "pack"))
FUSE_LORA = Pass("fuse_lora", "fold", FuseConfig, _fuse, also_on=("pack",))
