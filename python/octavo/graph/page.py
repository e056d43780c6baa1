"""The data of the page of a graph: totals, and the tree of modules with their costs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.display.numbers import shape_text, size
from octavo.graph.costs import Costs, NodeCost
from octavo.graph.formats_of import Formats, formats_of
from octavo.graph.graph_content import GraphContent
from octavo.graph.model_graph import Graph
from octavo.graph.module_level import structural_hash, unread_hash
from octavo.graph.records import ModuleRecord, Node, at
from octavo.recipe import Recipe
from octavo.recipe.sites import dtype_name
from octavo.report.html_page import tree_page
from octavo.storage.arguments import checks_arguments

MEASURES = (
    {"key": "macs", "label": "Multiply-adds", "unit": "", "needs": "operators"},
    {"key": "bitops", "label": "Bit operations", "unit": "", "needs": "operators"},
    {"key": "traffic", "label": "Traffic", "unit": "B", "needs": "operators"},
    {"key": "bytes", "label": "Weight bytes", "unit": "B", "needs": ""},
    {"key": "bits", "label": "Bits per weight", "unit": "bits", "needs": "", "over": ["bytes", "weights"]},
)
"""The measures for colours and bars. ``over``: a ratio of two values instead of a sum."""

_EXPRESSION_LENGTH = 48  # characters of a symbolic cost that a page shows


@checks_arguments
def to_html(graph: Graph, recipe: Recipe | str | Mapping[str, Any] | None = None, **sizes: int) -> str:
    """Return one file of HTML: totals, and the modules as a collapsible tree, coloured by cost or bits.

    Equal layers of a list are one row with their count. The page loads no other files.

    Args:
        graph: of :func:`capture`.
        recipe: as for :meth:`Graph.costs`.
        sizes: as for :meth:`Costs.at`.

    Returns:
        The page.

    Raises:
        FormatError: as :meth:`Graph.costs`.
        ModelError: as :meth:`Costs.at`.
    """
    return tree_page(page_data(graph, recipe, **sizes))


def page_data(graph: Graph, recipe: Recipe | str | Mapping[str, Any] | None = None, **sizes: int) -> dict[str, Any]:
    """Return the data of :func:`to_html` as plain values."""
    parsed = None if recipe is None else Recipe.of(recipe)
    costs = graph.costs(parsed)
    totals = costs.at(**sizes)
    all_sizes = {**costs.sizes, **sizes}
    sizes_text = ", ".join(f"{name} {value}" for name, value in all_sizes.items())
    facts = [f"{len(graph.nodes):,} operators", f"{len(graph.modules):,} modules"] if graph.nodes else []
    notes = [f"not counted: {op}, {times} times; its work is not known" for op, times in costs.unknown.items()]
    if graph.refusal is not None:
        notes.append(f"operators, and costs that need them, are missing: {graph.refusal}")
    return {
        "title": graph.model_class,
        "facts": [
            *facts,
            f"costs at {sizes_text}" if sizes_text else "",
            "" if parsed is None else f"as packed by: {parsed}",
        ],
        "notes": notes,
        "totals": _tiles(costs, totals),
        "measures": [dict(m) for m in MEASURES if m["needs"] != "operators" or graph.refusal is None],
        "tree": _Tree(graph, formats_of(graph, parsed), costs, all_sizes).root(),
    }


def _tiles(costs: Costs, totals: Any) -> list[dict[str, str]]:
    """Return the totals: label, value, and symbolic expression."""
    rows: list[tuple[str, Any, Any, str]] = [
        ("Multiply-adds", totals.macs, costs.macs, ""),
        ("Bit operations", totals.bitops, costs.bitops, ""),
        ("Weights", totals.weight_bytes, None, "B"),
        ("Bits of all weights", costs.bits_of_all, None, "bits"),
        ("Traffic", totals.traffic_bytes, costs.traffic_bytes, "B"),
        ("Peak memory", totals.peak_bytes, None, "B"),
    ]
    tiles = []
    for label, value, symbolic, unit in rows:
        if value is None:
            text = "missing"
        else:
            text = size(value) if unit == "B" else f"{value:.4g}" if unit == "bits" else _count(value)
        tiles.append({"label": label, "value": text, "told": _expression(symbolic)})
    return tiles


def _expression(symbolic: Any) -> str:
    """Return a cost as ``128 batch sequence^2``; empty for a number, and for an expression that is too long."""
    if symbolic is None or isinstance(symbolic, int):
        return ""
    text = str(symbolic).replace("**", "^").replace("*", " ")
    return text if len(text) <= _EXPRESSION_LENGTH else ""


def _count(value: int) -> str:
    for power, letter in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if value >= 10**power:
            return f"{value / 10**power:.4g} {letter}"
    return f"{value:,}"


class _Tree:
    """Builds the rows: a module with its children, operators and weights; equal elements of a list are one row."""

    def __init__(self, graph: GraphContent, formats: Formats, costs: Costs, sizes: Mapping[str, int]) -> None:
        self.graph, self.formats, self.sizes = graph, formats, sizes
        self.places: dict[str, ModuleRecord] = {path: record for record in graph.modules for path in record.paths}
        self.children: dict[str, list[str]] = defaultdict(list)
        for path in self.places:
            if path:
                self.children[path.rpartition(".")[0]].append(path)
        self.nodes: dict[str, list[Node]] = defaultdict(list)
        self.inside: dict[str, list[Node]] = defaultdict(list)
        for node in graph.nodes:
            self.nodes[node.module_path].append(node)
            for path in _above(node.module_path):
                self.inside[path].append(node)
        self.costs: dict[str, NodeCost] = {row.id: row for row in costs.rows}
        self.counted: set[str] = set()

    def root(self) -> dict[str, Any]:
        """Return the row of the model."""
        return self.module("", self.graph.model_class, 1, [""])

    def module(self, path: str, name: str, count: int, paths: Sequence[str]) -> dict[str, Any]:
        """Return the row of ``count`` equal modules at ``paths``."""
        record = self.places[path]
        weights = [self.weight(weight, path) for weight in record.weights if path == record.path]
        operators = [self.operator(node) for node in self.nodes[path]]
        modules = [self.module(group[0], self.label(group), len(group), group) for group in self.groups(path)]
        if modules and len(operators) > 1:
            operators = [_row(f"{len(operators)} operators", "", "group", 1, "of the module itself", operators)]
        description = self.description(record, paths)
        return _row(name, record.module_class, "module", count, description, [*modules, *operators, *weights])

    def groups(self, path: str) -> list[list[str]]:
        """Return the children of a module in execution order; equal elements of a list form one group."""
        first = {child: self.inside[child][0] for child in self.children[path] if self.inside.get(child)}
        place = {node.id: number for number, node in enumerate(self.graph.nodes)}
        order = sorted(self.children[path], key=lambda child: place[first[child].id] if child in first else len(place))
        groups: dict[Any, list[str]] = {}
        for child in order:
            name = child.rpartition(".")[2]
            groups.setdefault(self.hash(child) if name.isdecimal() else child, []).append(child)
        return list(groups.values())

    def hash(self, path: str) -> tuple[str, ...]:
        """Return a key that is equal for modules that differ only in their weights; it has the formats of a recipe."""
        record = self.places[path]
        formats = [self.formats.of_weight(self.graph.tensors[name]) for name in self.weights_inside(path)]
        if self.inside.get(path):
            digest = structural_hash(path, self.inside[path], self.graph.tensors)
        else:
            digest = unread_hash(record, self.graph.modules, self.graph.tensors)
        return record.module_class, digest, str(formats)

    def weights_inside(self, path: str) -> list[str]:
        """Return the weights of a module and of the modules inside it."""
        weights = list(self.places[path].weights)
        for child in self.children[path]:
            weights += self.weights_inside(child)
        return weights

    def label(self, group: Sequence[str]) -> str:
        names = [path.rpartition(".")[2] for path in group]
        return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"

    def description(self, record: ModuleRecord, paths: Sequence[str]) -> str:
        formats = ", ".join(f"{role} {fmt}" for role, fmt in record.formats.items())
        places = ", ".join(paths) if len(paths) <= 4 else f"{paths[0]}, {paths[1]}, …, {paths[-1]}"
        return "\n".join(part for part in (places, record.description[:200], formats) if part)

    def operator(self, node: Node) -> dict[str, Any]:
        """Return the row of an operator."""
        row = self.costs[node.id]
        results = [self.graph.tensors[name] for name in node.outputs]
        shapes = ", ".join(shape_text(record.shape) for record in results)
        values = {"macs": at(row.macs, self.sizes), "bitops": at(row.bitops, self.sizes),
                  "traffic": at(row.traffic_bytes, self.sizes)}  # fmt: skip
        notes = [f"gives {shapes}", *({record.format for record in results if record.format}), *node.stack[:1]]
        return {"name": node.op.removeprefix("aten."), "class": shapes, "kind": "operator", "count": 1,
                "told": "\n".join(notes) + ("" if row.known else "\nits work is not known"), "children": [],
                "values": values}  # fmt: skip

    def weight(self, name: str, path: str) -> dict[str, Any]:
        """Return the row of a weight; a shared weight is counted once."""
        record = self.graph.tensors[name]
        text = self.formats.of_weight(record)
        again = name in self.counted
        self.counted.add(name)
        nbytes = self.formats.weight_bytes(record)
        bits_text = f"{nbytes:,} bytes, {8 * nbytes / max(int(record.elements), 1):.4g} bits for each element"
        own = name.removeprefix(f"{path}.") if path else name
        shared = f"shared: {name}" if again or (own == name and path) else ""
        return {"name": own, "class": f"{shape_text(record.shape)}  {text or dtype_name(record.dtype)}",
                "kind": "weight", "count": 1, "children": [], "told": shared or bits_text,
                "values": {} if again else {"bytes": nbytes, "weights": int(record.elements)}}  # fmt: skip


def _row(name: str, cls: str, kind: str, count: int, tooltip: str, children: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a row whose values are the sums over its children."""
    values: dict[str, float] = defaultdict(int)
    for child in children:
        for key, value in child["values"].items():
            values[key] += value * child["count"]
    return {"name": name, "class": cls, "kind": kind, "count": count, "told": tooltip, "children": children,
            "values": dict(values)}  # fmt: skip


def _above(path: str) -> list[str]:
    """Return a path and all its ancestors, including the model's empty path."""
    parts = path.split(".") if path else []
    return [".".join(parts[:number]) for number in range(len(parts) + 1)]
