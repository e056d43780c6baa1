"""Weights that vLLM joins to one: of ``nvfp4`` they share the factor of a tensor, so they are encoded together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from octavo.interchange.model_source import ModelSource
from octavo.model_folder.pack_folder import OpenFolder
from octavo.model_folder.weight_files import Checkpoint
from octavo.ops.codec import encode
from octavo.tensors.packed_tensor import PackedTensor

if TYPE_CHECKING:
    from octavo.model_folder.tensor_names import Placed

FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of layers that vLLM joins, within one module."""


def encoded_together(model: ModelSource, path: Path) -> dict[str, PackedTensor]:
    """Return the weights of ``nvfp4`` that vLLM joins, encoded with one factor; those that a solver made stay.

    ``path``: the folder of float weights that a recipe has packed.
    """
    together: dict[str, PackedTensor] = {}
    groups = [
        group for group in _joined_groups(model.tensors) if len({_level(model.tensors[one]) for one in group}) > 1
    ]
    opened = OpenFolder.open(Checkpoint.open(path)) if groups else None
    for group in groups:
        assert opened is not None  # there are groups
        values = {name: opened.found.value(name) for name in group}
        packed = {name: tensor for name in group if isinstance(tensor := model.tensors[name], PackedTensor)}
        rules = {tensor.scale for tensor in packed.values()}
        if len(rules) > 1 or any(encode(values[name], "nvfp4", scale=one.scale) != one for name, one in packed.items()):
            continue
        joined = encode(torch.cat(list(values.values())), "nvfp4", scale=rules.pop())
        first = 0
        for name, value in values.items():
            together[name] = joined[first : first + len(value)]
            first += len(value)
    return together


def _joined_groups(tensors: Mapping[str, Placed]) -> list[list[str]]:
    """Return names of weights of ``nvfp4`` that vLLM joins."""
    names = {
        name.removesuffix(".weight")
        for name, tensor in tensors.items()
        if isinstance(tensor, PackedTensor) and str(tensor.format) == "nvfp4"
    }
    parents = sorted({name.rpartition(".")[0] for name in names})
    groups = [
        [f"{parent}.{part}" for part in parts if f"{parent}.{part}" in names] for parent in parents for parts in FUSED
    ]
    return [[f"{name}.weight" for name in group] for group in groups if len(group) > 1]


def _level(tensor: Placed) -> float:
    return float(tensor.levels) if isinstance(tensor, PackedTensor) else 0.0
