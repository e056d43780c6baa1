"""PruneReport: counts of the pruned weights of a model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from octavo.display.console import plain_text
from octavo.display.notebook import InNotebooks
from octavo.graph import Report
from octavo.nn.masks import Masks, masked_layers
from octavo.recipe.sites import join
from octavo.storage.arguments import checks_arguments

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class PrunedTensor:
    """A masked parameter: its elements, those its mask prunes, and other elements that are 0."""

    name: str
    shape: tuple[int, ...]
    elements: int
    pruned: int
    other_zeros: int

    @property
    def sparsity(self) -> float:
        """The share that the mask prunes."""
        return self.pruned / max(self.elements, 1)


@dataclass(frozen=True)
class PruneReport(InNotebooks):
    """The masks of a model, tensor by tensor, with totals.

    ``parameters``: elements of all parameters of the model, masked or not; tied ones count once. ``mask_bytes``: bytes
    of the packed mask bits. The report only counts zeros. By themselves they save neither bytes nor time.
    """

    tensors: tuple[PrunedTensor, ...]
    parameters: int
    mask_bytes: int

    @property
    def elements(self) -> int:
        """Elements of the masked parameters."""
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def pruned(self) -> int:
        """Elements that masks prune."""
        return sum(tensor.pruned for tensor in self.tensors)

    @property
    def sparsity(self) -> float:
        """The share of the masked parameters that is pruned."""
        return self.pruned / max(self.elements, 1)

    def to_report(self) -> Report:
        """Return one row for each tensor, their total, and the whole model.

        Returns:
            A report of rows.
        """
        rows: list[tuple[Any, ...]] = [
            (tensor.name, " x ".join(map(str, tensor.shape)), tensor.elements, tensor.pruned,
             tensor.elements - tensor.pruned - tensor.other_zeros, tensor.sparsity)
            for tensor in self.tensors
        ]  # fmt: skip
        nonzero = sum(tensor.elements - tensor.pruned - tensor.other_zeros for tensor in self.tensors)
        rows.append(("masked", None, self.elements, self.pruned, nonzero, self.sparsity))
        rows.append(("the model", None, self.parameters, self.pruned, None, self.pruned / max(self.parameters, 1)))
        return Report(("tensor", ">shape", ">elements", ">pruned", ">nonzero", ">sparsity"), tuple(rows))

    def to_table(self) -> Table:
        """Return the report as a table.

        Returns:
            A table of rich.
        """
        return self.to_report().to_table()

    def to_json(self) -> str:
        """Return the report as JSON: ``tensors``, and the totals.

        Returns:
            A text.
        """
        tensors = [
            {"name": one.name, "shape": list(one.shape), "elements": one.elements, "pruned": one.pruned,
             "other_zeros": one.other_zeros, "sparsity": one.sparsity}
            for one in self.tensors
        ]  # fmt: skip
        totals = {"elements": self.elements, "pruned": self.pruned, "sparsity": self.sparsity,
                  "parameters": self.parameters, "mask_bytes": self.mask_bytes}  # fmt: skip
        return json.dumps({"tensors": tensors, **totals}, indent=2)

    def __str__(self) -> str:
        """Return the table as plain text."""
        return plain_text(self.to_table())


@checks_arguments
def report(model: nn.Module) -> PruneReport:
    """Return the report of a model's masks. :func:`octavo.graph.sparsity` counts zeros of any model.

    Args:
        model: with masks.

    Returns:
        Numbers by tensor, and totals; it prints as a table.

    Example:
        >>> report = octavo.prune.report(octavo.prune_model(nn.Sequential(nn.Linear(64, 64)), 0.25))
        >>> report.elements, report.pruned, report.sparsity
        (4096, 1024, 0.25)
    """
    tensors, nbytes = [], 0
    for path, layer, own in masked_layers(model):
        for name in own.names():
            tensors.append(_counted(join(path, name), layer, own, name))
            nbytes += own.get_buffer(name).nbytes
    return PruneReport(tuple(tensors), sum(parameter.numel() for parameter in model.parameters()), nbytes)


def _counted(full: str, layer: nn.Module, own: Masks, name: str) -> PrunedTensor:
    keep, parameter = own.keep(layer, name), layer.get_parameter(name)
    pruned = keep.numel() - int(keep.sum())
    other = int(((parameter.detach() == 0) & keep).sum())
    return PrunedTensor(full, tuple(parameter.shape), keep.numel(), pruned, other)
