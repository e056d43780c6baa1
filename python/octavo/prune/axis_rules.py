"""Rules of operators that move, cut and reduce tensors: the axes of their results, None if unknown."""

from __future__ import annotations

from typing import Protocol

from octavo.graph import Node
from octavo.graph.records import refs
from octavo.prune.axes import Axis, Part, fresh, join, leaves, mix, reshaped, size_of


class Known(Protocol):
    """The axes of all tensors processed so far, by name, and their shapes."""

    axes: dict[str, list[Axis]]

    def shape(self, name: str) -> list[int]:
        """Return the shape of a tensor."""
        ...


def passed(flow: Known, node: Node) -> list[Axis] | None:
    """Rule of operators that return their input."""
    return list(flow.axes[node.inputs[0]]) if node.inputs else None


def viewed(flow: Known, node: Node) -> list[Axis] | None:
    """Rule of views: the same numbers in the same order."""
    return reshaped(flow.axes[node.inputs[0]], flow.shape(node.outputs[0]))


def permuted(flow: Known, node: Node) -> list[Axis] | None:
    """Rule of ``permute``, ``transpose`` and their like."""
    axes, op = flow.axes[node.inputs[0]], node.op.rpartition(".")[2]
    rank, arguments = len(axes), node.arguments
    if op == "permute":
        return [axes[int(dim) % rank] for dim in arguments["dims"]]
    if op in ("transpose", "transpose_", "swapaxes", "swapdims"):
        first, second = (int(arguments[name]) % rank for name in list(arguments)[1:3])
    elif op in ("t", "mT", "numpy_T", "t_") and rank >= 2 and (op == "mT" or rank == 2):
        first, second = rank - 2, rank - 1
    else:
        return None
    order = list(range(rank))
    order[first], order[second] = second, first
    return [axes[dim] for dim in order]


def expanded(flow: Known, node: Node) -> list[Axis] | None:
    """Rule of ``expand``: new indices have equal values."""
    axes, shape = flow.axes[node.inputs[0]], flow.shape(node.outputs[0])
    own: list[Axis] = [[] for _ in range(len(shape) - len(axes))] + list(axes)
    return [axis or fresh(size, neutral=True) for axis, size in zip(own, shape, strict=True)]


def sliced(flow: Known, node: Node) -> list[Axis] | None:
    """Rule of ``slice``, ``select`` and ``narrow``."""
    axes, arguments, op = list(flow.axes[node.inputs[0]]), node.arguments, node.op.rpartition(".")[2]
    if not axes:
        return None
    dim = int(arguments.get("dim", 0)) % len(axes)
    size = size_of(axes[dim])
    if op == "select":
        mix(axes[dim], f"{node.op} takes one index of it")
        return axes[:dim] + axes[dim + 1 :]
    start, step = arguments.get("start") or 0, arguments.get("step", 1)
    if not isinstance(start, int) or step != 1:
        return None
    start = start + size if start < 0 else min(start, size)
    axes[dim] = _segment(axes[dim], start, flow.shape(node.outputs[0])[dim])
    return axes


def _segment(axis: Axis, start: int, length: int) -> Axis:
    """Return a run of indices of an axis."""
    parts = leaves(axis)
    if length in (0, size_of(axis)):
        return axis if length else fresh(0, mixed="it is empty")
    if len(parts) == 1:
        return [parts[0].segment(start, start + length)] if length != 1 else _one(parts[0])
    mix(parts, "a slice cuts through its parts")
    return fresh(length, mixed="it is a slice of several parts")


def _one(part: Part) -> Axis:
    part.mix("one index of it is taken")
    return []


def split_rule(flow: Known, node: Node) -> list[Axis] | None:
    """Rule of ``split``, ``chunk`` and ``unbind``: several outputs, each with axes of its own."""
    axes = flow.axes[node.inputs[0]]
    dim = int(node.arguments.get("dim", 0)) % len(axes)
    if node.op.endswith("unbind"):
        mix(axes[dim], f"{node.op} takes its indices apart")
        return axes[:dim] + axes[dim + 1 :]
    start = 0
    for name in node.outputs:
        length = flow.shape(name)[dim]
        flow.axes[name] = [*axes[:dim], _segment(axes[dim], start, length), *axes[dim + 1 :]]
        start += length
    return []


def concatenated(flow: Known, node: Node) -> list[Axis] | None:
    """Rule of ``cat``: the axis along which it runs is mixed."""
    names = [ref.name for ref in refs(node.arguments.get("tensors", ()))]
    shape = flow.shape(node.outputs[0])
    if not names or any(len(flow.axes[name]) != len(shape) for name in names):
        return None
    dim = int(node.arguments.get("dim", 0)) % len(shape)
    axes: list[Axis] = []
    for place, size in enumerate(shape):
        if place == dim:
            for name in names:
                mix(flow.axes[name][place], "it is concatenated with others")
            axes.append(fresh(size, mixed="it is a concatenation"))
            continue
        axis: Axis = []
        for name in names:
            other = flow.axes[name][place]
            axis = join(axis, other) if axis and other else axis or other
        axes.append(axis)
    return axes


def _dims(node: Node, rank: int) -> list[int]:
    argument = node.arguments.get("dim")
    dims = (
        range(rank) if argument is None or argument == () else argument if isinstance(argument, tuple) else (argument,)
    )
    return [int(dim) % rank for dim in dims]


def mixed_along(flow: Known, node: Node, dims: list[int]) -> list[Axis]:
    """Return the axes of the input, those of ``dims`` mixed."""
    axes = flow.axes[node.inputs[0]]
    for dim in dims:
        mix(axes[dim], f"{node.op} in {node.module_path or node.module_class} mixes its indices")
    return list(axes)


def softmaxed(flow: Known, node: Node) -> list[Axis] | None:
    """Rule of softmax: its own axis is mixed."""
    return mixed_along(flow, node, _dims(node, len(flow.axes[node.inputs[0]])))


def reduced(flow: Known, node: Node) -> list[Axis] | None:
    """Rule of means and sums: the axes that they reduce are mixed and removed."""
    rank = len(flow.axes[node.inputs[0]])
    dims = _dims(node, rank) if rank else []
    axes = mixed_along(flow, node, dims)
    if node.arguments.get("keepdim"):
        return [[] if dim in dims else axis for dim, axis in enumerate(axes)]
    return [axis for dim, axis in enumerate(axes) if dim not in dims]


def filled(flow: Known, node: Node) -> list[Axis] | None:
    """Rule of constants: all indices have equal values."""
    return [fresh(size, neutral=True) for size in flow.shape(node.outputs[0])]
