"""The nodes of a graph as ``torch.fx`` names them, each with three dictionaries: common, software, hardware."""

from __future__ import annotations

import builtins
import keyword
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from torch import nn

from octavo.graph.model_graph import Graph
from octavo.graph.records import NOTHING, Node, at, plain
from octavo.storage.arguments import checks_arguments

FxKind: TypeAlias = Literal["placeholder", "get_attr", "call_module", "call_method", "call_function", "output"]


@dataclass(frozen=True)
class FxNode:
    """A node with the fields of ``torch.fx.Node``.

    ``op``: its kind. ``target``: the path of a module or tensor, or the name of a function or method. ``inputs``: names
    of the nodes that it reads. ``operators``: ids of the operators behind it.

    ``common``: ``op``, ``class`` and ``module``; ``args`` and ``results``: by tensor its shape, dtype and format, with
    the weights of a layer among ``args``. ``hardware``: ``macs``, ``bitops`` and ``bytes`` of traffic, symbolic in the
    sizes of the graph and None where unknown, and ``placement``, the device. ``software``: ``args``, ``results``:
    ``statistics`` and ``sparsity`` by tensor; ``calibration`` by role. It is empty without the model.
    """

    name: str
    op: FxKind
    target: str
    inputs: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    common: Mapping[str, Any] = field(default_factory=lambda: NOTHING, hash=False)
    software: Mapping[str, Any] = field(default_factory=lambda: NOTHING, hash=False)
    hardware: Mapping[str, Any] = field(default_factory=lambda: NOTHING, hash=False)

    @checks_arguments
    def as_dict(self, **sizes: int) -> dict[str, Any]:
        """Return plain values for JSON.

        Args:
            sizes: such as ``batch=8``, at which ``hardware`` has numbers; without them it is symbolic, as text.

        Returns:
            A dictionary.

        Raises:
            ModelError: for a missing size, where any is given.
        """
        hardware = {name: at(value, sizes) if sizes else value for name, value in self.hardware.items()}
        return {
            "name": self.name,
            "op": self.op,
            "target": self.target,
            "inputs": list(self.inputs),
            "operators": list(self.operators),
            "common": _plain(self.common),
            "software": _plain(self.software),
            "hardware": _plain(hardware),
        }


@checks_arguments
def fx_nodes(graph: Graph, model: nn.Module | None = None, batches: Iterable[Any] = ()) -> tuple[FxNode, ...]:
    """Return the nodes of a graph as a tracer of ``torch.fx`` makes them, in execution order.

    Inputs are ``placeholder``. A layer of ``torch.nn`` or ``octavo.nn`` is one ``call_module``. Weights, buffers and
    constants that are read outside a layer are ``get_attr``. Methods of tensors are ``call_method``; functions and
    Python's operators are ``call_function``. ``output`` is last. Items of a tuple are no nodes of their own.

    Args:
        graph: of :func:`capture`.
        model: the model of the graph; without it ``software`` is empty.
        batches: as for :meth:`octavo.graph.Graph.software`.

    Returns:
        The nodes.

    Raises:
        ModelError: for a graph without operators, and for another model.
    """
    graph.require_operators("the nodes of FX")
    return tuple(_FxView(graph, {} if model is None else graph.software(model, batches)).nodes)


class _FxView:
    """Builds the nodes of a graph once; ``nodes`` is the result."""

    def __init__(self, graph: Graph, software: Mapping[str, Mapping[str, Any]]) -> None:
        self._graph = graph
        self._common, self._software, self._hardware = graph.common, software, graph.hardware
        self._leaves = {path for record in graph.modules if record.is_leaf for path in record.paths}
        self._classes = {path: record.module_class for record in graph.modules for path in record.paths}
        self._makers: dict[str, str] = {}
        self._names: Counter[str] = Counter()
        self._readers: dict[str, set[str]] = defaultdict(set)
        for node in graph.nodes:
            for name in node.inputs:
                self._readers[name].add(node.id)
        self.nodes: list[FxNode] = []
        for name in graph.inputs:
            self._add_tensor("placeholder", name)
        for _, group in groupby(graph.nodes, self._call):
            self._add_call(list(group))
        self._add("output", "output", graph.outputs, (), "output", "")

    def _call(self, node: Node) -> tuple[str, ...]:
        """Return a key that is equal for the operators of one call: of a leaf module, or of a function."""
        leaf = self._leaf(node)
        if leaf is not None:
            return ("call_module", leaf)
        return (*node.modules[-1:], *(node.function or (node.id,)))

    def _leaf(self, node: Node) -> str | None:
        """Return the path of the outermost leaf module around an operator, with the number of its call."""
        return next((path for path in node.modules if path.split("@")[0] in self._leaves), None)

    def _add_tensor(self, op: FxKind, name: str) -> None:
        node = self._add(op, name, (), (name,), op, "")
        self._makers[name] = node.name

    def _add_call(self, group: Sequence[Node]) -> None:
        ids = {node.id for node in group}
        produced = [name for node in group for name in node.outputs]
        read = list(dict.fromkeys(name for node in group for name in node.inputs if name not in produced))
        outputs = set(self._graph.outputs)
        results = [name for name in produced if name in outputs or self._readers[name] - ids]
        leaf = self._leaf(group[0])
        if leaf is None:
            op, target = _function(group[0])
            path, operator = group[0].module_path, group[-1].op
            for name in read:
                if self._graph.tensors[name].kind != "activation" and self._maker(name) is None:
                    self._add_tensor("get_attr", name)
        else:
            op, target = "call_module", leaf.split("@")[0]
            path, operator = target, group[-1].op
        node = self._add(op, target, read, results or group[-1].outputs, operator, path, [node.id for node in group])
        self._makers.update(dict.fromkeys(produced, node.name))

    def _add(
        self, op: FxKind, target: str, args: Sequence[str], results: Sequence[str], operator: str, path: str,
        ids: Sequence[str] = (),
    ) -> FxNode:  # fmt: skip
        """Append a node that reads ``args`` and makes ``results``; ``ids`` are the operators behind it."""
        tensors = self._graph.tensors
        made_by = (self._maker(name) for name in args)
        views = [self._software[number] for number in ids] if self._software else []
        facts = {name: fact for view in views for part in ("args", "results") for name, fact in view[part].items()}

        def shapes(names: Sequence[str]) -> dict[str, Any]:
            records = {name: tensors[name] for name in names}
            return {name: {"shape": r.shape, "dtype": r.dtype, "format": r.format} for name, r in records.items()}

        def numbers(names: Sequence[str]) -> dict[str, Any]:
            return {name: facts.get(name, {"statistics": None, "sparsity": None}) for name in names}

        software = {
            "args": numbers(args),
            "results": numbers(results),
            "calibration": {role: fact for view in views for role, fact in view["calibration"].items()},
        }
        node = FxNode(
            self._name(target),
            op,
            target,
            tuple(dict.fromkeys(maker for maker in made_by if maker is not None)),
            tuple(ids),
            MappingProxyType(
                {
                    "op": operator, "class": self._classes.get(path), "module": path,
                    "args": shapes(args), "results": shapes(results),
                }
            ),
            MappingProxyType(software if self._software else {}),
            MappingProxyType(self._work(ids, next((tensors[name].device for name in (*results, *args)), None))),
        )  # fmt: skip
        self.nodes.append(node)
        return node

    def _work(self, ids: Sequence[str], device: str | None) -> dict[str, Any]:
        """Return the sums over operators; None where the work of one is unknown."""
        rows = [self._hardware[number] for number in ids]
        work: dict[str, Any] = {}
        for name in ("macs", "bitops", "bytes"):
            parts = [row[name] for row in rows]
            work[name] = None if None in parts else sum(parts)
        return {**work, "placement": device}

    def _maker(self, name: str) -> str | None:
        """Return the name of the node that makes a tensor; a view that no node made is its base tensor."""
        return self._makers.get(name) or self._makers.get(self._graph.tensors[name].alias_of or name)

    def _name(self, target: str) -> str:
        """Return the name that FX would give: words of the target, numbered where used before or a word of Python."""
        base = re.sub(r"[^0-9a-zA-Z_]+", "_", target)
        base = f"_{base}" if base[:1].isdigit() else base
        if base not in self._names and (hasattr(builtins, base) or keyword.iskeyword(base)):
            self._names[base] = 1
        number = self._names[base]
        self._names[base] += 1
        return base if number == 0 else f"{base}_{number}"


def _function(node: Node) -> tuple[FxKind, str]:
    """Return whether an operator is a call of a method or of a function, and the name of either."""
    kind, _, name = ("", "", node.op.rpartition(".")[2]) if node.function is None else node.function[1].partition(".")
    if name == "__get__":  # an attribute such as x.T
        return "call_function", "getattr"
    return "call_method" if kind == "method_descriptor" else "call_function", name


def _plain(value: Any) -> Any:
    """Return a view for JSON."""
    return {str(name): _plain(item) for name, item in value.items()} if isinstance(value, Mapping) else plain(value)
