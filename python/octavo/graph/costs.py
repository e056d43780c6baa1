"""Costs of a graph, optionally under a recipe: multiply-adds, bit operations, bytes, traffic and peak memory."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from octavo.display.console import table
from octavo.display.numbers import size
from octavo.errors import ModelError
from octavo.graph.formats_of import Formats, formats_of
from octavo.graph.liveness import live_bytes
from octavo.graph.operator_work import Product, is_view, work_of
from octavo.graph.records import NOTHING, Node, Size, TensorRecord, at, plain
from octavo.storage.arguments import checks_arguments
from octavo.storage.reading import shown
from octavo.tensors.formats import Format

if TYPE_CHECKING:
    from rich.table import Table

    from octavo.graph.graph_content import GraphContent
    from octavo.recipe import Recipe

NEED_OPERATORS = ("macs", "elementwise", "bitops", "traffic_bytes", "peak_bytes")
"""Costs that are missing where ``torch.export`` refused the model."""


@dataclass(frozen=True)
class NodeCost:
    """The cost of one operator, as numbers or expressions of sizes. ``known``: whether its work is known.

    ``traffic_bytes``: bytes read and written; a weight counts for the first operator that reads it.
    """

    id: str
    op: str
    module_path: str
    macs: Size
    elementwise: Size
    bitops: Size
    traffic_bytes: Size
    known: bool = True


@dataclass(frozen=True)
class Totals:
    """The costs of a model at given sizes; None for a missing cost. ``flops`` = 2 ``macs`` + ``elementwise``."""

    macs: int | None
    elementwise: int | None
    bitops: int | None
    weight_bytes: int
    traffic_bytes: int | None
    peak_bytes: int | None

    @property
    def flops(self) -> int | None:
        """Two operations for each multiply-add, one for each elementwise operation."""
        return None if self.macs is None or self.elementwise is None else 2 * self.macs + self.elementwise


@dataclass(frozen=True, eq=False)
class Costs:
    """The costs of a graph, symbolic in its sizes; :meth:`at` returns numbers.

    ``macs``: multiply-adds of products, convolutions and attention. ``elementwise``: all other operations.
    ``bitops``: for each multiply-add the bits of one operand times the bits of the other, without scales.
    ``weight_bytes``: bytes of all weights in their formats, as on disk. ``traffic_bytes``: weights read once,
    activations read and written once by each operator. ``peak_bytes``: weights and buffers, plus the peak bytes of
    activations alive at once, each until its last use. Memory that Python variables keep alive longer, and workspaces
    of operators, are not included. ``bits_of_quantized``, ``bits_of_all``: bits per element of quantized and of all
    weights.

    ``unknown``: operators whose work is not known, with the number of calls; the totals do not include them.
    ``missing``: names of costs that are None because ``torch.export`` refused the model. ``sizes``: sizes of the
    inputs. ``symbols``: all symbols, including those that depend on values, such as a number of selected elements.
    """

    rows: tuple[NodeCost, ...] = field(repr=False)
    macs: Size | None
    elementwise: Size | None
    bitops: Size | None
    weight_bytes: int
    traffic_bytes: Size | None
    bits_of_quantized: float | None
    bits_of_all: float | None
    unknown: Mapping[str, int]
    missing: tuple[str, ...] = ()
    recipe: str | None = None
    sizes: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    symbols: tuple[str, ...] = ()
    resident_bytes: int = 0
    live_bytes: tuple[Size, ...] = field(default=(), repr=False)

    @property
    def peak_bytes(self) -> Size | None:
        """Weights and buffers plus the peak bytes of activations alive at once: an expression of sizes, or a number."""
        if "peak_bytes" in self.missing:
            return None
        most = list(dict.fromkeys(self.live_bytes)) or [0]
        if all(isinstance(value, int) for value in most):
            return self.resident_bytes + max(most)
        import sympy

        return self.resident_bytes + sympy.Max(*most, evaluate=False)

    def at(self, **sizes: int) -> Totals:
        """Return the costs at sizes.

        Args:
            sizes: such as ``batch=8, sequence=128``; default: the sizes of the inputs.

        Returns:
            Numbers.

        Raises:
            ModelError: for a name that is no size of the graph, for a value that is no whole number from 0 up, and for
                a missing size that depends on values.
        """
        if wrong := sorted(sizes.keys() - set(self.symbols)):
            known = ", ".join(self.symbols) or "none"
            raise ModelError(f"costs: {wrong[0]!r} is no size of this graph; its sizes are {known}")
        for name, value in sizes.items():
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
                raise ModelError(f"costs: {name}={shown(value)}; give a whole number from 0 up")
        all_sizes = {**self.sizes, **sizes}
        peak = None
        if "peak_bytes" not in self.missing:
            peak = self.resident_bytes + max(
                (at(live, all_sizes) for live in dict.fromkeys(self.live_bytes)), default=0
            )
        numbers = {
            name: at(getattr(self, name), all_sizes) for name in ("macs", "elementwise", "bitops", "traffic_bytes")
        }
        return Totals(**numbers, weight_bytes=self.weight_bytes, peak_bytes=peak)

    @checks_arguments
    def by_module(self, graph: GraphContent) -> dict[str, NodeCost]:
        """Return the costs summed for each node of the module level.

        Args:
            graph: the graph of these costs.

        Returns:
            Costs by node.
        """
        place = {inner: node.module_path for node in graph.module_nodes for inner in node.nodes}
        groups: dict[str, list[NodeCost]] = defaultdict(list)
        for row in self.rows:
            groups[place[row.id]].append(row)
        classes = {node.module_path: node.module_class for node in graph.module_nodes}
        return {path: _added(path, classes[path], rows) for path, rows in groups.items()}

    def as_dict(self, **sizes: int) -> dict[str, Any]:
        """Return plain values: symbolic costs as texts, and numbers at sizes.

        Args:
            sizes: as for :meth:`at`.

        Returns:
            A dictionary.

        Raises:
            ModelError: as :meth:`at`.
        """
        names = ("macs", "elementwise", "bitops", "weight_bytes", "traffic_bytes", "peak_bytes")
        totals = self.at(**sizes)
        return {
            "recipe": self.recipe,
            "symbolic": {name: plain(getattr(self, name)) for name in names},
            "sizes": {**self.sizes, **sizes},
            "at_sizes": {**dataclasses.asdict(totals), "flops": totals.flops},
            "bits_of_quantized": self.bits_of_quantized,
            "bits_of_all": self.bits_of_all,
            "unknown": dict(self.unknown),
            "missing": list(self.missing),
        }

    def to_json(self, **sizes: int) -> str:
        """Return :meth:`as_dict` as JSON.

        Args:
            sizes: as for :meth:`at`.

        Returns:
            A text.

        Raises:
            ModelError: as :meth:`at`.
        """
        return json.dumps(self.as_dict(**sizes), indent=2)

    def to_table(self, **sizes: int) -> Table:
        """Return the totals at sizes.

        Args:
            sizes: as for :meth:`at`.

        Returns:
            A table of rich.

        Raises:
            ModelError: as :meth:`at`.
        """
        totals = self.at(**sizes)
        rows = table("cost", ">value")
        rows.add_row("multiply-adds", _count(totals.macs))
        rows.add_row("elementwise operations", _count(totals.elementwise))
        rows.add_row("FLOPs", _count(totals.flops))
        rows.add_row("bit operations", _count(totals.bitops))
        rows.add_row("weights", _size(totals.weight_bytes))
        if self.bits_of_quantized is not None:
            rows.add_row("bits of quantized weights", f"{self.bits_of_quantized:.4g}")
        if self.bits_of_all is not None:
            rows.add_row("bits of all weights", f"{self.bits_of_all:.4g}")
        rows.add_row("traffic", _size(totals.traffic_bytes))
        rows.add_row("peak memory", _size(totals.peak_bytes))
        for op, times in self.unknown.items():
            rows.add_row(f"unknown: {op}", _count(times))
        return rows


def _count(value: int | None) -> str:
    return "missing" if value is None else f"{value:,}"


def _size(value: int | None) -> str:
    return "missing" if value is None else size(value)


def costs_of(graph: GraphContent, recipe: Recipe | str | Mapping[str, Any] | None = None) -> Costs:
    """Return the costs of a graph, or with ``recipe`` those of the model packed by it. Raises FormatError."""
    from octavo.recipe import Recipe

    parsed = None if recipe is None else Recipe.of(recipe)
    formats = formats_of(graph, parsed)
    weights = graph.weights
    nbytes = {record.name: formats.weight_bytes(record) for record in weights}
    quantized = [record for record in weights if formats.of_weight(record) is not None]
    total = sum(nbytes.values())
    buffers = sum(int(record.bytes_in_memory) for record in graph.tensors.values() if record.kind == "buffer")
    common: dict[str, Any] = {
        "weight_bytes": total,
        "bits_of_quantized": _bits(sum(nbytes[r.name] for r in quantized), sum(r.elements for r in quantized)),
        "bits_of_all": _bits(total, sum(record.elements for record in weights)),
        "recipe": None if parsed is None else str(parsed),
        "sizes": {name: graph.sizes[name] for name in graph.symbols if name in graph.sizes},
        "symbols": graph.symbols,
    }
    if graph.refusal is not None:
        nothing: dict[str, Any] = dict.fromkeys(("macs", "elementwise", "bitops", "traffic_bytes"))
        return Costs(rows=(), **nothing, unknown={}, missing=NEED_OPERATORS, **common)
    rows = _rows(graph, formats, nbytes)
    resident = sum(formats.bytes_in_memory(record) for record in weights)
    return Costs(
        rows=rows,
        macs=sum((row.macs for row in rows), 0),
        elementwise=sum((row.elementwise for row in rows), 0),
        bitops=sum((row.bitops for row in rows), 0),
        traffic_bytes=sum((row.traffic_bytes for row in rows), 0),
        unknown=dict(sorted(Counter(row.op for row in rows if not row.known).items())),
        resident_bytes=resident + buffers,
        live_bytes=live_bytes(graph.nodes, graph.tensors, graph.inputs, graph.outputs),
        **common,
    )


def _bits(nbytes: int, elements: int) -> float | None:
    return 8 * nbytes / elements if elements else None


def _rows(graph: GraphContent, formats: Formats, weight_bytes: Mapping[str, int]) -> tuple[NodeCost, ...]:
    rows = []
    seen: set[str] = set()
    for node in graph.nodes:
        work = work_of(node, graph.tensors)
        bitops: Size = 0
        for product in work.products if work is not None else ():
            bitops = bitops + product.macs * _operand(product, "left", node, formats) * _operand(
                product, "right", node, formats
            )
        rows.append(
            NodeCost(
                node.id, node.op, node.module_path,
                0 if work is None else work.macs,
                0 if work is None else work.elementwise,
                bitops,
                _traffic(node, graph.tensors, weight_bytes, seen),
                known=work is not None,
            )
        )  # fmt: skip
    return tuple(rows)


def _operand(product: Product, side: str, node: Node, formats: Formats) -> int:
    """Return the bits of one operand of a product."""
    name = product.left if side == "left" else product.right
    if name.startswith("format:"):
        return Format(name.removeprefix("format:")).width
    return formats.operand_bits(node, name, is_right=side == "right")


def _traffic(node: Node, tensors: Mapping[str, TensorRecord], weight_bytes: Mapping[str, int], seen: set[str]) -> Size:
    """Return the bytes that an operator reads and writes; only the first operator that reads a weight counts it."""
    if is_view(node, tensors):
        return 0
    moved: Size = 0
    for name in node.inputs:
        record = tensors[name]
        base = record.alias_of or name
        if tensors[base].kind != "weight":
            moved = moved + record.elements * record.dtype.itemsize
        elif base not in seen:
            seen.add(base)
            moved = moved + weight_bytes[base]
    return moved + sum((tensors[name].elements * tensors[name].dtype.itemsize for name in node.outputs), 0)


def _added(path: str, cls: str, rows: list[NodeCost]) -> NodeCost:
    macs, elementwise, bitops, traffic = (
        sum((getattr(row, name) for row in rows), 0) for name in ("macs", "elementwise", "bitops", "traffic_bytes")
    )
    return NodeCost(path, cls, path, macs, elementwise, bitops, traffic, all(row.known for row in rows))
