"""Differences of two graphs: nodes and weights added, removed, and changed in shape, dtype, format or cost."""

from __future__ import annotations

import difflib
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.display.console import plain_text, table
from octavo.display.notebook import InNotebooks
from octavo.graph.records import ModuleNode, Node, TensorRecord, plain
from octavo.recipe.sites import dtype_name
from octavo.storage.arguments import checks_arguments

if TYPE_CHECKING:
    from rich.table import Table

    from octavo.graph.costs import NodeCost
    from octavo.graph.model_graph import Graph


@dataclass(frozen=True)
class Change:
    """One difference between two matching nodes, or two weights of the same name.

    ``where``: the path of the module, or the name of the weight. ``what``: ``shape``, ``dtype``, ``format``, ``macs``,
    ``bitops``, or ``class`` where only modules can be compared.
    """

    where: str
    op: str
    what: str
    before: str
    after: str


@dataclass(frozen=True)
class Difference(InNotebooks):
    """The differences of a second graph from a first one. Falsy for equal graphs."""

    added: tuple[Node | ModuleNode, ...]
    removed: tuple[Node | ModuleNode, ...]
    changed: tuple[Change, ...]
    weights_added: tuple[TensorRecord, ...] = ()
    weights_removed: tuple[TensorRecord, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is any difference."""
        return any((self.added, self.removed, self.changed, self.weights_added, self.weights_removed))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values.

        Returns:
            A dictionary.
        """
        return {
            "added": [node.as_dict() for node in self.added],
            "removed": [node.as_dict() for node in self.removed],
            "changed": [vars(change) for change in self.changed],
            "weights_added": [record.as_dict() for record in self.weights_added],
            "weights_removed": [record.as_dict() for record in self.weights_removed],
        }

    def to_json(self) -> str:
        """Return :meth:`as_dict` as JSON.

        Returns:
            A text.
        """
        return json.dumps(self.as_dict(), indent=2, ensure_ascii=False)

    def to_table(self) -> Table:
        """Return a row for each difference.

        Returns:
            A table of rich.
        """
        rows = table("", "where", "operator", "what", "before", "after")
        for sign, nodes in (("-", self.removed), ("+", self.added)):
            for node in nodes:
                op = node.op if isinstance(node, Node) else node.module_class
                rows.add_row(sign, node.module_path, op, "", "", "")
        for sign, records in (("-", self.weights_removed), ("+", self.weights_added)):
            for record in records:
                rows.add_row(sign, record.name, "weight", str(record.shape), "", "")
        for change in self.changed:
            rows.add_row("~", change.where, change.op, change.what, change.before, change.after)
        return rows

    def __str__(self) -> str:
        """Return the table as plain text, or ``no difference``."""
        return plain_text(self.to_table()) if self else "no difference"


@checks_arguments
def diff(a: Graph, b: Graph) -> Difference:
    """Return the differences of graph ``b`` from graph ``a``.

    Nodes are matched by the path of their module, and inside a module by the order of operators. If one of the graphs
    has no operators, modules are compared.

    Args:
        a: the first graph.
        b: the second graph.

    Returns:
        The differences, falsy for equal graphs.

    Example:
        >>> model, x = nn.Sequential(nn.Linear(64, 8)), torch.zeros(1, 64)
        >>> before = octavo.graph.capture(model, x)
        >>> after = octavo.graph.capture(octavo.quantize_model(model, "int8"), x)
        >>> for change in octavo.graph.diff(before, after).changed:
        ...     print(change.where, change.what, change.before, change.after)
        0.weight format - int8
        0 format -, -, -, - -, int8, -, -
        0 bitops 524288*batch 131072*batch
    """
    before, after = ({record.name: record for record in graph.weights} for graph in (a, b))
    changed = [change for name in before.keys() & after.keys() for change in _weights(before[name], after[name])]
    changed.sort(key=lambda change: list(before).index(change.where))
    weights = {
        "weights_added": tuple(after[name] for name in after if name not in before),
        "weights_removed": tuple(before[name] for name in before if name not in after),
    }
    if a.refusal is not None or b.refusal is not None:
        return _modules(a, b, changed, weights)
    costs = [{row.id: row for row in graph.costs().rows} for graph in (a, b)]
    places = [_by_module(graph.nodes) for graph in (a, b)]
    added: list[Node] = []
    removed: list[Node] = []
    for path in dict.fromkeys((*places[0], *places[1])):
        first, second = places[0].get(path, []), places[1].get(path, [])
        matcher = difflib.SequenceMatcher(None, [n.op for n in first], [n.op for n in second], autojunk=False)
        for kind, i, j, k, m in matcher.get_opcodes():
            if kind != "equal":
                removed += first[i:j]
                added += second[k:m]
                continue
            for old, new in zip(first[i:j], second[k:m], strict=True):
                changed += _nodes(a, b, old, new, costs[0][old.id], costs[1][new.id])
    order = {node.id: place for place, node in enumerate(b.nodes)}
    earlier = {node.id: place for place, node in enumerate(a.nodes)}
    return Difference(
        tuple(sorted(added, key=lambda node: order[node.id])),
        tuple(sorted(removed, key=lambda node: earlier[node.id])),
        tuple(changed),
        **weights,
    )


def _by_module(nodes: Sequence[Node]) -> dict[str, list[Node]]:
    groups: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        groups[node.module_path].append(node)
    return groups


def _modules(a: Graph, b: Graph, changed: list[Change], weights: dict[str, Any]) -> Difference:
    before, after = ({node.module_path: node for node in graph.module_nodes} for graph in (a, b))
    for path in before.keys() & after.keys():
        if before[path].module_class != after[path].module_class:
            changed.append(Change(path, "", "class", before[path].module_class, after[path].module_class))
    return Difference(
        tuple(node for path, node in after.items() if path not in before),
        tuple(node for path, node in before.items() if path not in after),
        tuple(changed),
        **weights,
    )


def _weights(old: TensorRecord, new: TensorRecord) -> Iterator[Change]:
    fields = (
        ("shape", old.shape, new.shape), ("dtype", dtype_name(old.dtype), dtype_name(new.dtype)),
        ("format", old.format, new.format),
    )  # fmt: skip
    for field, before, after in fields:
        if before != after:
            yield Change(old.name, "weight", field, _text(before), _text(after))


def _nodes(a: Graph, b: Graph, old: Node, new: Node, cost: NodeCost, other: NodeCost) -> Iterator[Change]:
    """Compare results in shape and dtype, arguments and results in format, and the work."""
    first, second = ([graph.tensors[name] for name in node.outputs] for graph, node in ((a, old), (b, new)))
    read, other_read = ([graph.tensors[name] for name in node.inputs] for graph, node in ((a, old), (b, new)))
    fields: list[tuple[str, Any, Any]] = [
        ("shape", [record.shape for record in first], [record.shape for record in second]),
        ("dtype", [dtype_name(record.dtype) for record in first], [dtype_name(record.dtype) for record in second]),
        ("format", [r.format for r in (*read, *first)], [r.format for r in (*other_read, *second)]),
        ("macs", cost.macs, other.macs),
        ("bitops", cost.bitops, other.bitops),
    ]
    for field, before, after in fields:
        if before != after:
            yield Change(new.module_path, new.op, field, _text(before), _text(after))


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(_text(item) if not isinstance(item, tuple) else _shape(item) for item in value)
    return "-" if value is None else str(plain(value))


def _shape(shape: tuple[Any, ...]) -> str:
    return " x ".join(map(str, shape)) or "scalar"
