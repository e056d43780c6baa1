"""Tensors that a model of transformers makes of several of a checkpoint: experts that lie there one by one.

transformers stacks the matrices of experts when it loads a checkpoint, by the rules of its class. The same rules make
a tensor here, when it is asked for, or the part of one expert alone.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from octavo.errors import ContainerError
from octavo.model_folder.hf_loading import foreign


@dataclass(frozen=True, eq=False)
class MergedTensor:
    """A tensor of a model whose checkpoint has the parts of it.

    ``name``: in the model. ``sources``: tensors of the checkpoint by the pattern of the rule that they match, in order,
    with their names. ``rule``: the converter of transformers. ``part``: the one along the first axis that it is, whose
    axis it has not; None for all.
    """

    name: str
    shape: tuple[int, ...]
    sources: Mapping[str, Sequence[tuple[str, Tensor]]]
    rule: Any = field(repr=False)
    model: Any = field(repr=False)
    folder: Path
    part: int | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the first part."""
        return next(iter(self.sources.values()))[0][1].dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * self.dtype.itemsize

    def tensor(self) -> Tensor:
        """Return the tensor. Raises ContainerError for parts that do not make it up."""
        rule = copy.deepcopy(self.rule)
        for pattern, tensors in self.sources.items():
            for name, tensor in tensors:
                rule.add_tensor(self.name, name, pattern, tensor)
        with foreign(self.folder, what=self.name):
            (value,) = rule.convert(self.name, model=self.model, config=self.model.config).values()
        whole: Tensor = value
        result = whole[0] if self.part is not None else whole
        if tuple(result.shape) != self.shape:
            raise ContainerError(
                f"{self.folder}: {self.name} is {tuple(result.shape)} of its parts; the model has {self.shape} there"
            )
        return result

    def parts(self) -> list[MergedTensor] | None:
        """Return the parts along the first axis, each made of its own tensors alone; None where they mix."""
        if not _stacks(self.rule) or any(len(tensors) != self.shape[0] for tensors in self.sources.values()):
            return None
        return [
            replace(
                self,
                shape=self.shape[1:],
                sources={pattern: [tensors[number]] for pattern, tensors in self.sources.items()},
                part=number,
            )
            for number in range(self.shape[0])
        ]


def _stacks(rule: Any) -> bool:
    """Whether a rule stacks tensors along the first axis, and joins several stacks along another one."""
    from transformers.core_model_loading import Concatenate, MergeModulelist

    first, *rest = rule.operations
    return (
        type(first) is MergeModulelist
        and first.dim == 0
        and all(type(operation) is Concatenate and operation.dim == 1 for operation in rest)
    )


def in_order(names: Sequence[str]) -> list[str]:
    """Return names in the order in which transformers stacks them: numbers by their value."""
    return sorted(names, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])
