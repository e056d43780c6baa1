"""Dependencies between axes of a model's weights, derived by following axes through the operators of its graph.

An operator that treats each index independently passes a part of an axis from its inputs to its output; a product with
a weight ends the part. An unknown operator mixes all axes that it reads and returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from octavo.graph import Graph, Node
from octavo.graph.operator_work import is_pointwise
from octavo.prune.axes import INSIDE, Axis, fresh, join, leaves, mix, size_of
from octavo.prune.axis_rules import (
    concatenated,
    expanded,
    filled,
    mixed_along,
    passed,
    permuted,
    reduced,
    sliced,
    softmaxed,
    split_rule,
    viewed,
)

_PASSING = {
    "clone", "contiguous", "to", "_to_copy", "detach", "detach_", "alias", "dropout", "lift_fresh_copy", "type_as",
    "feature_dropout", "alpha_dropout", "view_as", "quantize", "quantize_plain", "dropout_", "float", "half",
}  # fmt: skip
_SHAPED = {"view", "reshape", "_unsafe_view", "flatten", "unflatten", "unsqueeze", "squeeze", "unsqueeze_", "squeeze_"}
# Pointwise functions f with f(a + b) = f(a) + f(b), and casts: between two linear layers they are no activation.
_LINEAR = {"add", "sub", "neg", "add_", "sub_", "rsub", "div", "div_"}
_FILLING = {
    "zeros", "ones", "full", "empty", "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones",
    "new_full", "new_empty", "scalar_tensor",
}  # fmt: skip
_REDUCING = {"mean", "sum", "amax", "amin", "var", "std", "var_mean", "logsumexp", "norm", "prod", "argmax"}
_SOFTMAX = {"softmax", "softmaxed", "log_softmax", "_log_softmax", "_safe_softmax"}

AS_A_WHOLE = "as a whole"
"""How an unknown operator reads an axis."""

Rule = Callable[["Flow", Node], "list[Axis] | None"]


class Flow:
    """The axes of every tensor of a graph without symbolic sizes.

    ``axes``: by tensor. ``read``: axes of weights, as (name, dimension), that a product with an activation contracts.
    ``written``: axes of weights that are axes of the result.
    """

    def __init__(self, graph: Graph, *, apart: frozenset[str] = frozenset()) -> None:
        """Follow the axes of ``graph``. ``apart``: weights from which several layers select their own values."""
        self.graph = graph
        self.axes: dict[str, list[Axis]] = {}
        self.read: set[tuple[str, int]] = set()
        self.written: set[tuple[str, int]] = set()
        self._origin: dict[str, str] = {}
        self._apart = apart
        for name, record in graph.tensors.items():
            if record.kind == "weight":
                self.axes[name] = [fresh(int(size)) for size in record.shape]
                self._origin[name] = name
            elif record.kind != "activation":
                why = f"it is an axis of the {record.kind} {name!r}"
                self.axes[name] = [fresh(int(size), mixed=why) for size in record.shape]
        for node in graph.nodes:
            self._step(node)
        for name in graph.outputs:
            for axis in self.axes.get(name, ()):
                mix(axis, "it is an axis of the model's output")

    def shape(self, name: str) -> list[int]:
        """Return the shape of a tensor."""
        return [int(size) for size in self.graph.tensors[name].shape]

    def _step(self, node: Node) -> None:
        op = node.op.rpartition(".")[2]
        rule = _RULES.get(op) or (_pointwise if is_pointwise(node.op) else None)
        axes = rule(self, node) if rule is not None else None
        if axes is None:
            self._unknown(node)
            return
        for name in node.outputs:
            if name not in self.axes:
                self.axes[name] = axes
        first = next(iter(node.inputs), None)
        if first in self._origin and (op in _PASSING or op in _SHAPED or op in _PERMUTING) and len(node.outputs) == 1:
            self._origin[node.outputs[0]] = self._origin[first]

    def _unknown(self, node: Node) -> None:
        """Mix all axes that an operator reads and returns."""
        why = f"{node.op} in {node.module_path or node.module_class} looks at it {AS_A_WHOLE}"
        for name in node.inputs:
            for axis in self.axes[name]:
                mix(axis, why)
        for name in node.outputs:
            self.axes.setdefault(name, [fresh(size, mixed=why) for size in self.shape(name)])

    def of(self, node: Node, argument: str) -> list[Axis] | None:
        """Return the axes of an argument, None if it is no tensor."""
        name = node.named(argument)
        return None if name is None else self.axes[name]

    def sum_over(self, left: str | None, a: Axis, right: str | None, b: Axis) -> None:
        """Contract an axis of two tensors, each of which may be a weight."""
        join(a, b)
        for name, axis in ((left, a), (right, b)):
            if name is not None:
                self._mark(self.read, name, axis)

    def keep(self, weight: str | None, axis: Axis) -> None:
        """Record that an axis of a weight is an axis of the result."""
        if weight is not None:
            self._mark(self.written, weight, axis)

    def _mark(self, marks: set[tuple[str, int]], tensor: str, axis: Axis) -> None:
        weight = self._origin.get(tensor)
        if weight is None:
            return
        wanted = {id(leaf) for leaf in leaves(axis)}
        for dim, own in enumerate(self.axes[weight]):
            if wanted & {id(leaf) for leaf in leaves(own)}:
                marks.add((weight, dim))

    def origin(self, tensor: str | None) -> str | None:
        """Return the weight that a tensor is a view or rounding of."""
        return None if tensor is None else self._origin.get(tensor)


# --- rules: the axes of an operator's results, None if unknown --------------------------------------------------------


def _pointwise(flow: Flow, node: Node) -> list[Axis] | None:
    if len(node.outputs) != 1:
        return None
    shape = flow.shape(node.outputs[0])
    op = node.op.rpartition(".")[2]
    operands = [flow.axes[name] for name in node.inputs]
    axes: list[Axis] = []
    for back in range(len(shape), 0, -1):
        axis: Axis | None = None
        for operand in operands:
            if len(operand) >= back and operand[-back]:
                axis = operand[-back] if axis is None else join(axis, operand[-back])
        axes.append(axis if axis is not None else fresh(shape[-back], neutral=True))
    if op not in _LINEAR and not (op in ("mul", "mul_") and len(operands) < 2):
        for axis in axes:
            for leaf in leaves(axis):
                leaf.is_active = True
    return axes


def _linear(flow: Flow, node: Node) -> list[Axis] | None:
    x, weight, bias = flow.of(node, "input"), flow.of(node, "weight"), flow.of(node, "bias")
    if x is None or weight is None or len(weight) != 2:
        return None
    name = node.named("weight")
    flow.sum_over(None, x[-1], name, weight[1])
    out = weight[0]
    flow.keep(name, out)
    if bias is not None:
        out = join(out, bias[-1]) if bias[-1] else out
        flow.keep(node.named("bias"), out)
    return [*x[:-1], out]


def _addmm(flow: Flow, node: Node) -> list[Axis] | None:
    x, weight, bias = flow.of(node, "mat1"), flow.of(node, "mat2"), flow.of(node, "self")
    if x is None or weight is None or bias is None:
        return None
    name = node.named("mat2")
    flow.sum_over(None, x[1], name, weight[0])
    out = weight[1]
    flow.keep(name, out)
    if bias and bias[-1]:
        out = join(out, bias[-1])
        flow.keep(node.named("self"), out)
    return [x[0], out]


def _matmul(flow: Flow, node: Node) -> list[Axis] | None:
    left, right = (node.named(a) or node.named(b) for a, b in (("self", "input"), ("mat2", "other")))
    if left is None or right is None:
        return None
    a, b = flow.axes[left], flow.axes[right]
    if len(a) < 2 or len(b) < 2:
        return None
    flow.sum_over(left, a[-1], right, b[-2])
    flow.keep(left, a[-2])
    flow.keep(right, b[-1])
    both = flow.origin(left) is None and flow.origin(right) is None
    if both:
        mix(b[-1], INSIDE)
    return [*_batch(a[:-2], b[:-2], both), a[-2], b[-1]]


def _batch(a: list[Axis], b: list[Axis], both: bool) -> list[Axis]:
    """Join the batch axes of a product, aligned from the right."""
    joint_axes: list[Axis] = []
    for back in range(max(len(a), len(b)), 0, -1):
        x, y = (axes[-back] if len(axes) >= back else [] for axes in (a, b))
        axis = join(x, y) if x and y else x or y
        for leaf in leaves(axis) if both else ():
            leaf.is_batch = True
        joint_axes.append(axis)
    return joint_axes


def _attention(flow: Flow, node: Node) -> list[Axis] | None:
    query, key, value, bias = (flow.of(node, name) for name in ("query", "key", "value", "attn_mask"))
    if query is None or key is None or value is None:
        return None
    join(query[-1], key[-1])
    join(key[-2], value[-2])
    batch = _batch(key[:-2], value[:-2], True)
    if node.arguments.get("enable_gqa") and size_of(query[-3]) != size_of(batch[-1]):
        shared = size_of(query[-3]) // max(size_of(batch[-1]), 1)
        batch[-1] = [*batch[-1], *fresh(shared, neutral=True)]
    batch = _batch(query[:-2], batch, True)
    if bias is not None:
        scores = [*batch, query[-2], key[-2]]
        for back, axis in enumerate(reversed(bias), 1):
            if axis and scores[-back]:
                join(scores[-back], axis)
    mix(value[-1], INSIDE)
    return [*batch, query[-2], value[-1]]


def _embedding(flow: Flow, node: Node) -> list[Axis] | None:
    weight, indices = flow.of(node, "weight"), flow.of(node, "indices")
    name = node.named("weight")
    if weight is None or indices is None or name is None:
        return None
    mix(weight[0], "its rows are looked up")
    flow.keep(name, weight[1])
    out = fresh(size_of(weight[1]), neutral=True) if flow.origin(name) in flow._apart else weight[1]
    return [*indices, out]


def _normalized(flow: Flow, node: Node) -> list[Axis] | None:
    if len(node.outputs) != 1:
        return None
    rank, count = len(flow.axes[node.inputs[0]]), len(node.arguments["normalized_shape"])
    axes = mixed_along(flow, node, list(range(rank - count, rank)))
    for name in ("weight", "bias"):
        parameter = flow.of(node, name)
        for axis, own in zip(axes[-count:], parameter or (), strict=False):
            if axis and own:
                join(axis, own)
                flow.keep(node.named(name), own)
    return axes


_PERMUTING = {"permute", "transpose", "transpose_", "t", "t_", "mT", "numpy_T", "swapaxes", "swapdims"}
_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_PASSING, passed),
    **dict.fromkeys(_SHAPED, viewed),
    **dict.fromkeys(_PERMUTING, permuted),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), expanded),
    **dict.fromkeys(("slice", "select", "narrow"), sliced),
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "unbind", "tensor_split", "unsafe_split"), split_rule),
    **dict.fromkeys(("cat", "concat", "concatenate"), concatenated),
    **dict.fromkeys(("matmul", "mm", "bmm"), _matmul),
    **dict.fromkeys(_SOFTMAX, softmaxed),
    **dict.fromkeys(_REDUCING, reduced),
    **dict.fromkeys(_FILLING, filled),
    **dict.fromkeys(("layer_norm", "rms_norm"), _normalized),
    "linear": _linear,
    "addmm": _addmm,
    "scaled_dot_product_attention": _attention,
    "embedding": _embedding,
}
