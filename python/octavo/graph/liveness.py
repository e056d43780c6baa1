"""Liveness analysis: bytes of activations alive at each operator, from the definition to the last use of a storage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from octavo.graph.records import Node, Size, TensorRecord


def live_bytes(
    nodes: Sequence[Node], tensors: Mapping[str, TensorRecord], inputs: Iterable[str], outputs: Iterable[str]
) -> tuple[Size, ...]:
    """Return the bytes of activations alive while each operator runs, including its arguments and results.

    Views share the storage of their base. Inputs and outputs live to the end, because the caller refers to them. The
    arguments of a module live until it returns, because the caller's frame refers to them. Weights, buffers and
    constants are not counted.
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}

    def root(name: str) -> str:
        return tensors[name].alias_of or name

    def lives(name: str) -> bool:
        return tensors[name].kind in ("activation", "input")

    for name in inputs:
        first[root(name)], last[root(name)] = 0, len(nodes)
    for position, node in enumerate(nodes):
        for name in (*node.inputs, *node.outputs):
            if lives(root(name)):
                first.setdefault(root(name), position)
                last[root(name)] = max(last.get(root(name), 0), position)
    for name in outputs:
        if root(name) in first:
            last[root(name)] = len(nodes)
    for start, end in _calls(nodes):
        for node in nodes[start : end + 1]:
            for name in node.inputs:
                storage = root(name)
                if storage in first and first[storage] < start:
                    last[storage] = max(last[storage], end)
    born: dict[int, list[str]] = defaultdict(list)
    dead: dict[int, list[str]] = defaultdict(list)
    for name, position in first.items():
        born[position].append(name)
        dead[last[name]].append(name)
    live: Size = 0
    live_at = []
    for position in range(len(nodes)):
        live = live + sum((_bytes(tensors[name]) for name in born[position]), 0)
        live_at.append(live)
        live = live - sum((_bytes(tensors[name]) for name in dead[position]), 0)
    return tuple(live_at)


def _calls(nodes: Sequence[Node]) -> list[tuple[int, int]]:
    """Return the first and last operator of each call of a module: a run of consecutive operators inside it."""
    calls: list[tuple[int, int]] = []
    open_calls: dict[str, int] = {}
    for position, node in enumerate(nodes):
        parts = node.module_path.split(".") if node.module_path else []
        inside = {".".join(parts[: depth + 1]) for depth in range(len(parts))}
        for path in [path for path in open_calls if path not in inside]:
            calls.append((open_calls.pop(path), position - 1))
        for path in inside:
            open_calls.setdefault(path, position)
    return calls + [(start, len(nodes) - 1) for start in open_calls.values()]


def _bytes(record: TensorRecord) -> Size:
    return record.elements * record.dtype.itemsize
