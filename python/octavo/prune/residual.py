"""Residual layers of a stack that leave their input as it is where the last weights of their branches are zero."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from torch import nn

from octavo.graph import Graph, Node

# Operators f with f(0) = 0 whatever else they are given, behind which a branch may end.
_ZERO_STAYS = {
    "dropout", "to", "_to_copy", "contiguous", "clone", "view", "reshape", "_unsafe_view", "flatten", "unflatten",
    "transpose", "permute", "squeeze", "unsqueeze", "detach", "alias", "quantize", "quantize_plain",
}  # fmt: skip
_SAME = {"dropout", "contiguous", "clone", "detach", "alias"}
_PRODUCTS = {"linear": ("weight", "bias"), "addmm": ("mat2", "self")}


def residual_layers(model: nn.Module, graph: Graph) -> Iterator[tuple[str, dict[str, tuple[str, ...]]]]:
    """Yield the path of each outermost stack of layers, and by path the weights that end branches of removable ones.

    A layer is removable if what it returns is its input plus branches, each of which ends in a product with a weight:
    with all of these weights and their biases at zero it is the identity. Layers that normalize behind the sum (BERT's)
    are not, nor those that hand other tensors on, as T5's first one does.
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
    found: dict[str, dict[str, tuple[str, ...]]] = {path: {} for path in stacks}
    for path, nodes in inside.items():
        ends = _Layer(graph, nodes, maker, readers).ends()
        if ends:
            found[layers[path]][path] = ends
    yield from found.items()


class _Layer:
    """The operators of one layer."""

    def __init__(
        self, graph: Graph, nodes: list[Node], maker: Mapping[str, Node], readers: Mapping[str, set[str]]
    ) -> None:
        self._graph, self._maker, self._readers = graph, maker, readers
        self._own = {node.id for node in nodes}
        self._made = [name for node in nodes for name in node.outputs]

    def ends(self) -> tuple[str, ...]:
        """Return the weights and biases that end the branches; none where the layer is not removable."""
        outside = {
            self._same(name)
            for name in self._made
            if name in self._graph.outputs or any(reader not in self._own for reader in self._readers[name])
        }
        made = [name for name in outside if self._node(name) is not None]
        if len(made) != 1:
            return ()
        read = self._residual(made[0])
        return () if read is None else tuple(dict.fromkeys(read))

    def _same(self, name: str) -> str:
        """Return the tensor that another one is in evaluation, through drop-out and casts to the dtype that it has."""
        node = self._maker.get(name)
        while node is not None and node.inputs:
            op, source = node.op.rpartition(".")[2], node.inputs[0]
            dtypes = {self._graph.tensors[one].dtype for one in (name, source)}
            if op not in _SAME and not (op == "to" and len(dtypes) == 1):
                break
            name, node = source, self._maker.get(source)
        return name

    def _node(self, name: str) -> Node | None:
        """Return the operator of the layer that makes a tensor; None where it comes from outside."""
        node = self._maker.get(name)
        return node if node is not None and node.id in self._own else None

    def _residual(self, name: str) -> list[str] | None:
        """Return the ends of the branches between the layer's input and a tensor; None where that is no plain sum."""
        name = self._same(name)
        node = self._node(name)
        if node is None:
            return [] if self._graph.tensors[name].kind in ("activation", "input") else None
        op = node.op.rpartition(".")[2]
        if op not in ("add", "add_") or len(node.inputs) != 2 or node.arguments.get("alpha", 1) != 1:
            return None
        for kept, branch in (node.inputs, node.inputs[::-1]):
            end = self._branch(branch)
            rest = self._residual(kept) if end is not None else None
            if end is not None and rest is not None:
                return [*rest, *end]
        return None

    def _branch(self, name: str) -> list[str] | None:
        """Return weight and bias of the product that a branch ends in; None where it ends in none."""
        node = self._node(name)
        if node is None:
            return None
        op = node.op.rpartition(".")[2]
        if op in _ZERO_STAYS:
            return self._branch(node.inputs[0])
        if op not in _PRODUCTS:
            return None
        held = [node.named(argument) for argument in _PRODUCTS[op]]
        weights = [self._weight(tensor) for tensor in held if tensor is not None]
        return None if None in weights else [weight for weight in weights if weight is not None]

    def _weight(self, name: str) -> str | None:
        """Return the weight that a tensor is, or is a rounding of; None for one that others use too."""
        record = self._graph.tensors[name]
        if record.kind == "weight":
            return name if len(self._readers[name]) == 1 else None
        node = self._maker.get(name)
        if node is None or node.op.rpartition(".")[2] not in _ZERO_STAYS:
            return None
        return self._weight(node.inputs[0])
