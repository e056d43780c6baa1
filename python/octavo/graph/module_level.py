"""Groups operators by module, and finds repeated blocks."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from octavo.graph.records import Block, ModuleNode, ModuleRecord, Node, Ref, TensorRecord, plain


def module_nodes(
    modules: Sequence[ModuleRecord],
    nodes: Sequence[Node],
    tensors: Mapping[str, TensorRecord],
    outputs: Iterable[str],
) -> tuple[ModuleNode, ...]:
    """Return the nodes of the module level, in the order of their first operators.

    Operators of an opened module itself, such as the attention mask of an encoder, form a node with its path. Modules
    that never run follow at the end.
    """
    shown = {place for record in modules if record.is_block for place in record.paths}
    records = {place: record for record in modules for place in record.paths}
    grouped: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        grouped[_shown(node.module_path, shown)].append(node)
    read = defaultdict(set)
    for node in nodes:
        for name in node.inputs:
            read[name].add(_shown(node.module_path, shown))
    wanted = set(outputs)
    level = []
    for path, inside in grouped.items():
        produced = [name for node in inside for name in node.outputs]
        own = set(produced)
        inputs = [name for node in inside for name in node.inputs if name not in own]
        weights = [name for name in inputs if tensors[name].kind == "weight"]
        level.append(
            ModuleNode(
                path,
                records[path].module_class,
                tuple(node.id for node in inside),
                tuple(dict.fromkeys(name for name in inputs if tensors[name].kind not in ("weight", "buffer"))),
                tuple(name for name in produced if name in wanted or read[name] - {path}),
                tuple(dict.fromkeys(weights)),
                structural_hash(path, inside, tensors),
            )
        )
    idle = [record for record in modules if record.is_block and not set(record.paths) & grouped.keys()]
    return (*level, *(_without_operators(record, modules, tensors) for record in idle))


def _shown(path: str, shown: set[str]) -> str:
    """Return the node that contains a module, or the path itself for an opened module."""
    part = path
    while part not in shown:
        if not part:
            return path
        part = part.rpartition(".")[0]
    return part


def _without_operators(
    record: ModuleRecord, modules: Sequence[ModuleRecord], tensors: Mapping[str, TensorRecord]
) -> ModuleNode:
    """Return the node of a module without known operators."""
    inner = [other for other in modules if _inside(other.path, record.path)]
    weights = tuple(dict.fromkeys(name for other in inner for name in other.weights))
    digest = unread_hash(record, modules, tensors)
    return ModuleNode(record.path, record.module_class, (), (), (), weights, digest)


def unread_hash(record: ModuleRecord, modules: Sequence[ModuleRecord], tensors: Mapping[str, TensorRecord]) -> str:
    """Return a hash of a module without known operators: of classes, descriptions, formats and shapes."""
    return _digest(
        [
            (
                other.path.removeprefix(record.path), other.module_class, other.description,
                sorted(other.formats.items()),
                [(str(tensors[name].shape), str(tensors[name].dtype)) for name in other.weights],
            )
            for other in modules
            if _inside(other.path, record.path)
        ]
    )  # fmt: skip


def _inside(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith(f"{outer}.")


def structural_hash(path: str, nodes: Sequence[Node], tensors: Mapping[str, TensorRecord]) -> str:
    """Return a hash of operators that is equal for operators that differ only in the identity of weights and inputs.

    Tensors are numbered in the order of their first use, and identified by kind, shape, dtype and format.
    """
    known: dict[str, int] = {}
    facts: list[Any] = []

    def tensor(name: str) -> tuple[Any, ...]:
        first = name not in known
        number = known.setdefault(name, len(known))
        if not first:
            return (number,)
        record = tensors[name]
        kind = "weight" if record.kind in ("weight", "buffer") else "activation"
        return number, kind, str(record.shape), str(record.dtype), record.format

    def argument(value: Any) -> Any:
        if isinstance(value, Ref):
            return tensor(value.name)
        return [argument(item) for item in value] if isinstance(value, tuple | list) else plain(value)

    for node in nodes:
        arguments = [(name, argument(value)) for name, value in node.arguments.items()]
        inner = node.module_path.removeprefix(path)
        facts.append(
            (node.op, inner, node.module_class if inner else "", arguments, [tensor(name) for name in node.outputs])
        )
    return _digest(facts)


def _digest(facts: object) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def repeated_blocks(nodes: Sequence[ModuleNode]) -> tuple[Block, ...]:
    """Return the equal module nodes as blocks, in order; a node without equals is a block with a count of 1."""
    groups: dict[tuple[str, str], list[ModuleNode]] = {}
    for node in nodes:
        groups.setdefault((node.module_class, node.hash), []).append(node)
    return tuple(
        Block(cls, tuple(node.module_path for node in group), digest, len(group[0].nodes))
        for (cls, digest), group in groups.items()
    )
