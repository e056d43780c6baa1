"""GraphContent: the records of a graph, and views derived from them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, overload

from octavo.errors import ModelError
from octavo.graph.module_level import module_nodes, repeated_blocks
from octavo.graph.records import Block, ModuleNode, ModuleRecord, Node, TensorRecord
from octavo.recipe.sites import Site


@dataclass(frozen=True, eq=False)
class GraphContent:
    """The immutable records of a captured model, without the model and without values.

    ``nodes``: operators in execution order. ``refusal``: the reason if there are no operators. ``modules``: in the
    order of ``named_modules()``. ``tensors``: by name; weights have their names in the state dict. ``inputs``,
    ``outputs``: names of tensors. ``sizes``: size of each symbol in the inputs. ``training``: the mode of the model.
    """

    model_class: str
    training: bool
    modules: tuple[ModuleRecord, ...]
    tensors: Mapping[str, TensorRecord] = field(repr=False)
    nodes: tuple[Node, ...] = field(repr=False)
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sizes: Mapping[str, int]
    refusal: str | None = None
    sites: tuple[Site, ...] | str = field(default=(), repr=False)

    def __post_init__(self) -> None:
        """Make the mappings read-only."""
        object.__setattr__(self, "tensors", MappingProxyType(dict(self.tensors)))
        object.__setattr__(self, "sizes", MappingProxyType(dict(self.sizes)))

    # --- levels -------------------------------------------------------------------------------------------------------

    @overload
    def level(self, name: Literal["operator"]) -> tuple[Node, ...]: ...
    @overload
    def level(self, name: Literal["module"]) -> tuple[ModuleNode, ...]: ...
    def level(self, name: str) -> tuple[Node, ...] | tuple[ModuleNode, ...]:
        """Return the nodes of a level: ``operator`` or ``module``.

        Raises ModelError for another name, and for ``operator`` if ``torch.export`` refused the model.
        """
        if name == "module":
            return self.module_nodes
        if name != "operator":
            raise ModelError(f"level {name!r}; accepted are 'operator' and 'module'")
        self.require_operators("the operator level")
        return self.nodes

    @cached_property
    def module_nodes(self) -> tuple[ModuleNode, ...]:
        """Operators grouped by module: embeddings, each layer, pooler, classifier."""
        return module_nodes(self.modules, self.nodes, self.tensors, self.outputs)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The nodes of the module level; nodes that differ only in their weights are one block with a count."""
        return repeated_blocks(self.module_nodes)

    def require_operators(self, what: str) -> None:
        """Raise ModelError if the graph has no operators; ``what`` names the feature that needs them."""
        if self.refusal is not None:
            raise ModelError(
                f"{self.model_class}: {what} needs operators, which are missing: {self.refusal}; the module level "
                "remains: level('module'), blocks and weights"
            )

    # --- what is in it ------------------------------------------------------------------------------------------------

    @property
    def weights(self) -> tuple[TensorRecord, ...]:
        """Weights, shared ones once; a packed layer has its packed weight."""
        return tuple(record for record in self.tensors.values() if record.kind == "weight")

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the sizes that are symbolic."""
        symbols = {
            str(symbol)
            for record in self.tensors.values()
            for size in record.shape
            for symbol in getattr(size, "free_symbols", ())
        }
        return (*(name for name in self.sizes if name in symbols), *sorted(symbols - self.sizes.keys()))

    def operators(self) -> dict[str, int]:
        """Return how often each operator is called, most often first."""
        return dict(sorted(Counter(node.op for node in self.nodes).items(), key=lambda item: (-item[1], item[0])))

    @property
    def common(self) -> Mapping[str, Mapping[str, Any]]:
        """By node: ``kind``, ``op``, ``module``, and ``args`` and ``results`` with shape, dtype and format."""
        return {node.id: self._common(node) for node in self.nodes}

    def _common(self, node: Node) -> Mapping[str, Any]:
        weights = [name for name in node.inputs if self.tensors[name].kind == "weight"]
        return {
            "kind": "layer" if weights else "function",
            "op": node.op,
            "module": node.module_path,
            "class": node.module_class,
            "args": {name: self._tensor(name) for name in node.inputs},
            "results": {name: self._tensor(name) for name in node.outputs},
        }

    def _tensor(self, name: str) -> Mapping[str, Any]:
        record = self.tensors[name]
        return {"shape": record.shape, "dtype": record.dtype, "format": record.format}

    # --- for programs -------------------------------------------------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        """Return the graph as plain values for JSON."""
        return {
            "model": self.model_class,
            "training": self.training,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "sizes": dict(self.sizes),
            "refusal": self.refusal,
            "modules": [node.as_dict() for node in self.module_nodes],
            "nodes": [node.as_dict() for node in self.nodes],
            "tensors": [record.as_dict() for record in self.tensors.values()],
        }

    def to_json(self) -> str:
        """Return the graph as JSON."""
        return json.dumps(self.as_dict(), indent=2, ensure_ascii=False)

    def __str__(self) -> str:
        """Return a line: the model, and its numbers of operators, modules and weights."""
        if self.refusal is not None:
            return f"{self.model_class}: {len(self.module_nodes)} modules, no operators ({self.refusal})"
        sizes = ", ".join(self.symbols) or "none"
        return (
            f"{self.model_class}: {len(self.nodes)} operators in {len(self.module_nodes)} modules, "
            f"{len(self.weights)} weights, symbolic sizes: {sizes}"
        )
