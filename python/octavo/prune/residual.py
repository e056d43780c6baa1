"""Residual layers of a stack that become the identity if the last weights of their branches are zero."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from torch import nn

from octavo.graph import Graph, Node

# Operators f with f(0) = 0 for any other arguments; a branch may end in them after its product.
_ZERO_STAYS = {
    "dropout", "to", "_to_copy", "contiguous", "clone", "view", "reshape", "_unsafe_view", "flatten", "unflatten",
    "transpose", "permute", "squeeze", "unsqueeze", "detach", "alias", "quantize", "quantize_plain",
}  # fmt: skip
_SAME = {"dropout", "contiguous", "clone", "detach", "alias"}
_PRODUCTS = {"linear": ("weight", "bias"), "addmm": ("mat2", "self")}


def residual_layers(model: nn.Module, graph: Graph) -> Iterator[tuple[str, dict[str, tuple[str, ...]]]]:
    """Yield the path of each outermost stack, with the weights that end the branches of its removable layers by path.

    A layer is removable if it returns its input plus branches, each of which ends in a product with a weight: with all
    of these weights and their biases zero it is the identity. Layers that normalize after the sum, such as BERT's, are
    not removable, nor are layers that pass on other tensors, such as T5's first one.
    """
    stacks: dict[str, int] = {}
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) and not any(path.startswith(f"{own}.") for own in stacks):
            stacks[path] = len(module)
    layers = {f"{path}.{number}": path for path, count in stacks.items() for number in range(count)}
    inside: dict[str, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        part = node.module_path
        while part:
            if part in layers:
                inside[part].append(node)
            part = part.rpartition(".")[0]
    readers: dict[str, set[str]] = defaultdict(set)
    for node in graph.nodes:
        for name in node.inputs:
            readers[name].add(node.id)
    maker = {name: node for node in graph.nodes for name in node.outputs}
    ends_by_stack: dict[str, dict[str, tuple[str, ...]]] = {path: {} for path in stacks}
    for path, nodes in inside.items():
        ends = _Layer(graph, nodes, maker, readers).ends()
        if ends:
            ends_by_stack[layers[path]][path] = ends
    yield from ends_by_stack.items()


class _Layer:
    """The operators of one layer."""

    def __init__(
        self, graph: Graph, nodes: list[Node], maker: Mapping[str, Node], readers: Mapping[str, set[str]]
    ) -> None:
        self._graph, self._maker, self._readers = graph, maker, readers
        self._own = {node.id for node in nodes}
        self._results = [name for node in nodes for name in node.outputs]

    def ends(self) -> tuple[str, ...]:
        """Return the weights and biases that end the branches; none if the layer is not removable."""
        outside = {
            self._same(name)
            for name in self._results
            if name in self._graph.outputs or any(reader not in self._own for reader in self._readers[name])
        }
        results = [name for name in outside if self._node(name) is not None]
        if len(results) != 1:
            return ()
        read = self._residual(results[0])
        return () if read is None else tuple(dict.fromkeys(read))

    def _same(self, name: str) -> str:
        """Return the tensor that ``name`` equals in evaluation mode, through drop-out and casts to the same dtype."""
        node = self._maker.get(name)
        while node is not None and node.inputs:
            op, source = node.op.rpartition(".")[2], node.inputs[0]
            dtypes = {self._graph.tensors[one].dtype for one in (name, source)}
            if op not in _SAME and not (op == "to" and len(dtypes) == 1):
                break
            name, node = source, self._maker.get(source)
        return name

    def _node(self, name: str) -> Node | None:
        """Return the operator of the layer that computes a tensor; None if it comes from outside."""
        node = self._maker.get(name)
        return node if node is not None and node.id in self._own else None

    def _residual(self, name: str) -> list[str] | None:
        """Return the ends of the branches between the layer's input and a tensor; None if it is no plain sum."""
        name = self._same(name)
        node = self._node(name)
        if node is None:
            return [] if self._graph.tensors[name].kind in ("activation", "input") else None
        op = node.op.rpartition(".")[2]
        if op not in ("add", "add_") or len(node.inputs) != 2 or node.arguments.get("alpha", 1) != 1:
            return None
        for trunk, branch in (node.inputs, node.inputs[::-1]):
            end = self._branch(branch)
            rest = self._residual(trunk) if end is not None else None
            if end is not None and rest is not None:
                return [*rest, *end]
        return None

    def _branch(self, name: str) -> list[str] | None:
        """Return weight and bias of the product that a branch ends in; None if it ends in no product."""
        node = self._node(name)
        if node is None:
            return None
        op = node.op.rpartition(".")[2]
        if op in _ZERO_STAYS:
            return self._branch(node.inputs[0])
        if op not in _PRODUCTS:
            return None
        operands = [node.named(argument) for argument in _PRODUCTS[op]]
        weights = [self._weight(tensor) for tensor in operands if tensor is not None]
        return None if None in weights else [weight for weight in weights if weight is not None]

    def _weight(self, name: str) -> str | None:
        """Return the weight that a tensor is, or is rounded from; None for a weight with other readers."""
        record = self._graph.tensors[name]
        if record.kind == "weight":
            return name if len(self._readers[name]) == 1 else None
        node = self._maker.get(name)
        if node is None or node.op.rpartition(".")[2] not in _ZERO_STAYS:
            return None
        return self._weight(node.inputs[0])
