"""Bytes of activations alive while operators run in order: each storage from its first operator to its last use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from octavo.graph.records import Node, Size, TensorRecord


def live_bytes(
    nodes: Sequence[Node], tensors: Mapping[str, TensorRecord], inputs: Iterable[str], outputs: Iterable[str]
) -> tuple[Size, ...]:
    """Return the bytes of activations alive while each operator runs, its arguments and results included.

    Views share the storage of what they are views of. Inputs belong to the caller and outputs go to the caller: both
    live to the end. What a module is called with lives until it returns, since the caller's frame holds it. Weights,
    buffers and constants are not counted here.
    """
    made: dict[str, int] = {}
    last: dict[str, int] = {}

    def root(name: str) -> str:
        return tensors[name].alias_of or name

    def lives(name: str) -> bool:
        return tensors[name].kind in ("activation", "input")

    for name in inputs:
        made[root(name)], last[root(name)] = 0, len(nodes)
    for position, node in enumerate(nodes):
        for name in (*node.inputs, *node.outputs):
            if lives(root(name)):
                made.setdefault(root(name), position)
                last[root(name)] = max(last.get(root(name), 0), position)
    for name in outputs:
        if root(name) in made:
            last[root(name)] = len(nodes)
    for start, end in _calls(nodes):
        for node in nodes[start : end + 1]:
            for name in node.inputs:
                held = root(name)
                if held in made and made[held] < start:
                    last[held] = max(last[held], end)
    born: dict[int, list[str]] = defaultdict(list)
    dead: dict[int, list[str]] = defaultdict(list)
    for name, position in made.items():
        born[position].append(name)
        dead[last[name]].append(name)
    live: Size = 0
    found = []
    for position in range(len(nodes)):
        live = live + sum((_bytes(tensors[name]) for name in born[position]), 0)
        found.append(live)
        live = live - sum((_bytes(tensors[name]) for name in dead[position]), 0)
    return tuple(found)


def _calls(nodes: Sequence[Node]) -> list[tuple[int, int]]:
    """Return the first and last operator of each call of a module: operators in a row that are inside of it."""
    found: list[tuple[int, int]] = []
    open_calls: dict[str, int] = {}
    for position, node in enumerate(nodes):
        parts = node.module_path.split(".") if node.module_path else []
        inside = {".".join(parts[: depth + 1]) for depth in range(len(parts))}
        for path in [path for path in open_calls if path not in inside]:
            found.append((open_calls.pop(path), position - 1))
        for path in inside:
            open_calls.setdefault(path, position)
    return found + [(start, len(nodes) - 1) for start in open_calls.values()]


def _bytes(record: TensorRecord) -> Size:
    return record.elements * record.dtype.itemsize
