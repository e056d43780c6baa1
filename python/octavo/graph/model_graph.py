"""Graph: what :func:`octavo.graph.capture` returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from octavo.graph.costs import Costs, costs_of
from octavo.graph.graph_content import GraphContent
from octavo.graph.software_view import software_of
from octavo.recipe import Recipe
from octavo.storage.arguments import checks_arguments


@dataclass(frozen=True, eq=False)
class Graph(GraphContent):
    """A model seen whole, with what it costs; the fields are those of :class:`GraphContent`."""

    @property
    def hardware(self) -> Mapping[str, Mapping[str, Any]]:
        """By node: ``macs``, ``bitops``, ``bytes`` moved, symbolic in the sizes, and ``placement``, the device."""
        return {
            row.id: {
                "macs": row.macs if row.known else None,
                "bitops": row.bitops if row.known else None,
                "bytes": row.traffic_bytes,
                "placement": next((self.tensors[name].device for name in node.outputs), None),
            }
            for node, row in zip(self.nodes, self.costs().rows, strict=True)
        }

    @checks_arguments
    def software(self, model: nn.Module, batches: Iterable[Any] = ()) -> Mapping[str, Mapping[str, Any]]:
        """By node: ``args`` and ``results``, each tensor with ``statistics`` and ``sparsity``, and ``calibration``.

        ``model``: that the graph is of; it has the values, which a graph does not keep. ``batches``: what the model is
        run on for statistics of activations, those that a layer without children gives; weights need none.
        ``statistics``: ``low``, ``high``, ``mean``, ``deviation``; ``sparsity``: the share of zeros of a weight;
        ``calibration``: by role the format, whether its scales are fixed, and the least and largest of them. None:
        not known. Raises ModelError for another model, and as :func:`octavo.graph.tensor_statistics`.
        """
        return software_of(self, model, batches)

    @checks_arguments
    def costs(self, recipe: Recipe | str | Mapping[str, Any] | None = None) -> Costs:
        """Return what the graph costs, symbolic in its sizes.

        ``recipe``: as if the model were packed by it, which is not done; anything that :meth:`octavo.Recipe.of` takes.
        Raises FormatError as :meth:`octavo.Recipe.plan` does.
        """
        return costs_of(self, recipe)
