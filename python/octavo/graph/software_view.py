"""The ``software`` view of a graph: statistics, sparsity and calibration by node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from octavo.errors import ModelError
from octavo.graph.analysis import sparsity, tensor_statistics
from octavo.graph.graph_content import GraphContent
from octavo.nn.format_layer import FormatLayer
from octavo.nn.quantizer import Quantizer

_FACTS = ("low", "high", "mean", "deviation")


def software_of(graph: GraphContent, model: nn.Module, batches: Iterable[Any] = ()) -> Mapping[str, Mapping[str, Any]]:
    """Return the statistics and calibration of each node, as :meth:`octavo.graph.Graph.software` documents them."""
    graph.require_operators("the software view")
    paths = {path for path, _ in model.named_modules(remove_duplicate=False)}
    if lost := next((record.path for record in graph.modules if record.path not in paths), None):
        raise ModelError(f"software: the graph is of another model: {type(model).__name__} has no module {lost!r}")
    statistics = {row["tensor"]: row for row in tensor_statistics(model, batches).to_rows()}
    shares = {row["weight"]: row["share"] for row in sparsity(model).to_rows()}
    last = {node.module_path: node.id for node in graph.nodes}  # computes the output of its module
    layers = dict(model.named_modules(remove_duplicate=False))
    view = {}
    for node in graph.nodes:
        seen = statistics.get(node.module_path) if last[node.module_path] == node.id else None
        view[node.id] = MappingProxyType(
            {
                "args": {name: _tensor(statistics.get(name), shares.get(name)) for name in node.inputs},
                "results": {name: _tensor(seen, None) for name in node.outputs},
                "calibration": _calibration(layers[node.module_path]),
            }
        )
    return MappingProxyType(view)


def _tensor(row: Mapping[str, Any] | None, share: float | None) -> dict[str, Any]:
    """Return statistics and sparsity of a tensor, None where unknown."""
    return {"statistics": None if row is None else {fact: row[fact] for fact in _FACTS}, "sparsity": share}


def _calibration(layer: nn.Module) -> dict[str, Any]:
    """Return by role the format of a layer's tensors, whether scales are static, and the range of static scales."""
    formats = {}
    for role, quantizer in layer.role_quantizers().items() if isinstance(layer, FormatLayer) else ():
        if isinstance(quantizer, Quantizer):
            ends = _ends(quantizer.scales)
            formats[role] = {"format": str(quantizer.spec), "static": quantizer.is_static, "scales": ends}
    return formats


def _ends(scales: Tensor | None) -> tuple[float, float] | None:
    if scales is None or not scales.numel():
        return None
    values = scales.detach().float()
    return float(values.min()), float(values.max())
