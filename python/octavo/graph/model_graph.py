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
    """A captured model: the records of :class:`GraphContent`, with costs and views of the hardware and the software."""

    @property
    def hardware(self) -> Mapping[str, Mapping[str, Any]]:
        """By node: ``macs``, ``bitops``, ``bytes`` of traffic, symbolic in the sizes, and ``placement``, the device."""
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
        """Return statistics, sparsity and calibration of the tensors of each node.

        ``statistics``: ``low``, ``high``, ``mean``, ``deviation``. ``sparsity``: the share of zeros of a weight.
        ``calibration``: by role the format, whether its scales are static, and the least and largest scale. Unknown
        values are None.

        Args:
            model: the model of the graph, which has the values.
            batches: inputs for statistics of activations, the outputs of layers without children; weights need none.

        Returns:
            By node ``args`` and ``results``, each tensor with ``statistics`` and ``sparsity``, and ``calibration``.

        Raises:
            ModelError: for another model; and as :func:`octavo.graph.tensor_statistics`.
            NonFiniteError: as :func:`octavo.graph.tensor_statistics`.
        """
        return software_of(self, model, batches)

    @checks_arguments
    def costs(self, recipe: Recipe | str | Mapping[str, Any] | None = None) -> Costs:
        """Return the costs of the graph, symbolic in its sizes.

        Args:
            recipe: costs of the model packed by it, without packing; anything that :meth:`octavo.Recipe.of` accepts.

        Returns:
            The costs.

        Raises:
            FormatError: as :meth:`octavo.Recipe.plan`.
        """
        return costs_of(self, recipe)
