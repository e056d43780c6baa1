"""Analyses of a graph or a model: counts, sparsity and statistics, as data that prints as a table or as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from octavo.data.batches import call_numbered, tensors_in
from octavo.display.console import plain_text, table
from octavo.display.notebook import InNotebooks
from octavo.errors import ModelError
from octavo.graph.operator_work import work_of
from octavo.graph.records import plain
from octavo.graph.tensor_statistics import Statistics
from octavo.nn.format_layer import FormatLayer
from octavo.nn.model_copies import shared_copy
from octavo.nn.packed_layer import PackedLayer
from octavo.recipe.sites import join
from octavo.storage.arguments import checks_arguments

if TYPE_CHECKING:
    from rich.table import Table

    from octavo.graph.graph_content import GraphContent


@dataclass(frozen=True)
class Report(InNotebooks):
    """The result of an analysis: rows of values with named columns; ``>name`` is a column of numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def to_rows(self) -> list[dict[str, Any]]:
        """Return the rows as dictionaries, for a data frame.

        Returns:
            One dictionary a row.
        """
        names = [column.removeprefix(">") for column in self.columns]
        return [dict(zip(names, map(plain, row), strict=True)) for row in self.rows]

    def to_json(self) -> str:
        """Return the rows as JSON.

        Returns:
            A text.
        """
        return json.dumps(self.to_rows(), indent=2, ensure_ascii=False)

    def to_table(self) -> Table:
        """Return the rows as a table.

        Returns:
            A table of rich.
        """
        rows = table(*self.columns)
        for row in self.rows:
            rows.add_row(*map(_cell, row))
        return rows

    def __str__(self) -> str:
        """Return the table as plain text."""
        return plain_text(self.to_table())


def _cell(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(plain(value))
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


@checks_arguments
def operator_counts(graph: GraphContent) -> Report:
    """Return how often each operator is called, most often first, and whether its work is known.

    Args:
        graph: of :func:`capture`.

    Returns:
        A report of rows.

    Raises:
        ModelError: if ``torch.export`` refused the model.
    """
    graph.require_operators("a count of operators")
    known = {node.op: True for node in graph.nodes}
    for node in graph.nodes:
        known[node.op] &= work_of(node, graph.tensors) is not None
    rows = tuple((op, times, "" if known[op] else "unknown") for op, times in graph.operators().items())
    return Report(("operator", ">calls", "work"), rows)


@checks_arguments
def module_counts(graph: GraphContent) -> Report:
    """Return the number of modules and weights of each class, most weights first.

    Args:
        graph: of :func:`capture`.

    Returns:
        A report of rows.
    """
    modules = Counter(record.module_class for record in graph.modules)
    elements: Counter[str] = Counter()
    seen: set[str] = set()
    for record in graph.modules:
        for name in record.weights:
            if name not in seen:
                seen.add(name)
                elements[record.module_class] += graph.tensors[name].elements
    order = sorted(modules, key=lambda cls: (-elements[cls], cls))
    return Report(("class", ">modules", ">weights"), tuple((cls, modules[cls], elements[cls]) for cls in order))


@checks_arguments
def block_counts(graph: GraphContent) -> Report:
    """Return the nodes of the module level; equal nodes are one row with a count.

    Args:
        graph: of :func:`capture`.

    Returns:
        A report of rows.
    """
    rows = [
        (block.paths[0] if block.count == 1 else f"{block.paths[0]} ... {block.paths[-1]}", block.module_class,
         block.count, block.operators)
        for block in graph.blocks
    ]  # fmt: skip
    return Report(("module", "class", ">count", ">operators"), tuple(rows))


@checks_arguments
def dead_branches(graph: GraphContent) -> Report:
    """Return the dead parts: weights that no operator reads, and operators whose results reach no output.

    Operators that write to their arguments are alive.

    Args:
        graph: of :func:`capture`.

    Returns:
        A report of rows.

    Raises:
        ModelError: if ``torch.export`` refused the model.
    """
    graph.require_operators("a search for dead branches")
    read = {graph.tensors[name].alias_of or name for node in graph.nodes for name in node.inputs}
    rows: list[tuple[str, str, str]] = [
        ("weight", record.name, "no operator reads it") for record in graph.weights if record.name not in read
    ]
    wanted = {graph.tensors[name].alias_of or name for name in graph.outputs} | set(graph.outputs)
    dead = []
    for node in reversed(graph.nodes):
        results = {graph.tensors[name].alias_of or name for name in node.outputs} | set(node.outputs)
        if results & wanted or not node.outputs:
            for name in node.inputs:
                wanted |= {name, graph.tensors[name].alias_of or name}
        else:
            dead.append(
                ("operator", f"{node.id} in {node.module_path or graph.model_class}", "no output depends on it")
            )
    return Report(("kind", "name", "why"), (*rows, *reversed(dead)))


@checks_arguments
def sparsity(model: nn.Module) -> Report:
    """Return the elements, the zeros and the share of zeros of each weight of a model; packed weights are decoded.

    Args:
        model: any model.

    Returns:
        A report of rows.

    Raises:
        ModelError: for weights without values: on the meta device, or not initialized yet.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 64, bias=False))
        >>> octavo.graph.sparsity(octavo.prune_model(model, 0.5)).to_rows()[0]
        {'weight': '0.weight', 'elements': 4096, 'zeros': 2048, 'share': 0.5}
    """
    rows = []
    seen: set[int] = set()
    for path, module in model.named_modules():
        if isinstance(module, PackedLayer):
            rows.append(_zeros(join(path, "weight"), module.packed_weight.decode()))
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                rows.append(_zeros(join(path, name), parameter))
    total, zeros = sum(row[1] for row in rows), sum(row[2] for row in rows)
    return Report(("weight", ">elements", ">zeros", ">share"), (*rows, ("all", total, zeros, zeros / max(total, 1))))


def _zeros(name: str, tensor: Tensor) -> tuple[str, int, int, float]:
    _require_values(name, tensor)
    zeros = tensor.numel() - int(torch.count_nonzero(tensor.detach()))
    return name, tensor.numel(), zeros, zeros / max(tensor.numel(), 1)


def _require_values(name: str, tensor: Tensor) -> None:
    if is_lazy(tensor):
        raise ModelError(f"{name}: the weight is not initialized yet; call the model on a batch first")
    if tensor.is_meta:
        raise ModelError(f"{name}: the weight is on the meta device, which holds no values; load them first")


def _layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules without children; a quantized layer counts as one such module."""
    for path, module in model.named_modules():
        inside = isinstance(model.get_submodule(path.rpartition(".")[0]), FormatLayer)
        if path and (isinstance(module, FormatLayer) or not (inside or any(module.children()))):
            yield path, module


@contextmanager
def in_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Set the mode of a model inside: training or evaluation; afterwards restore the mode of each module."""
    modes = {module: module.training for module in model.modules()}
    try:
        model.train(training)
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def check_quantiles(quantiles: Sequence[float]) -> None:
    """Raise ModelError unless all quantiles are numbers from 0 to 1."""
    if not isinstance(quantiles, list | tuple):
        raise ModelError(f"quantiles are {quantiles!r}; give a list of numbers from 0 to 1")
    if wrong := [share for share in quantiles if not isinstance(share, int | float) or not 0 <= share <= 1]:
        raise ModelError(f"quantiles: {wrong[0]!r} is no share; give numbers from 0 to 1")


@checks_arguments
def tensor_statistics(
    model: nn.Module, batches: Iterable[Any] = (), *, quantiles: Sequence[float] = (0.001, 0.5, 0.999)
) -> Report:
    """Return range, mean, deviation and quantiles of every weight, and of the outputs of every layer.

    Statistics are streamed into the histograms that calibration also uses, with the same error bound; results do not
    depend on the order of batches. The model runs in evaluation mode without gradients and is not changed.

    Args:
        model: any model.
        batches: data for the outputs of layers; weights need none.
        quantiles: shares from 0 to 1.

    Returns:
        A report of rows.

    Raises:
        NonFiniteError: names a tensor with NaN or infinity.
        ModelError: for weights without values and for quantiles outside 0 to 1.
    """
    check_quantiles(quantiles)
    seen: dict[str, Statistics] = {}
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point():
            _require_values(name, parameter)
            seen[name] = Statistics()
            seen[name].add(parameter, name)
    kinds = dict.fromkeys(seen, "weight")
    model = shared_copy(model)
    layers = list(_layers(model))

    def watch(path: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            for tensor in tensors_in(output):
                if tensor.is_floating_point():
                    kinds[path] = "activation"
                    seen.setdefault(path, Statistics()).add(tensor, path)

        return hook

    handles = [module.register_forward_hook(watch(path)) for path, module in layers]
    try:
        with in_mode(model, False), torch.no_grad():
            for number, batch in enumerate(batches):
                call_numbered(model, batch, number, "batch")
    finally:
        for handle in handles:
            handle.remove()
    columns = ("tensor", "kind", ">elements", ">low", ">high", ">mean", ">deviation", *(f">{q:g}" for q in quantiles))
    rows = [
        (name, kinds[name], values.count, values.low, values.high, values.mean(), values.deviation(),
         *(values.quantile(share) for share in quantiles))
        for name, values in seen.items()
        if values.count
    ]  # fmt: skip
    return Report(columns, tuple(rows))
