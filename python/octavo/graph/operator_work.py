"""The work of one operator: its multiply-adds with their operands, and its elementwise operations.

One operation is counted for each element of a pointwise function's result, whatever the function, and for each element
that a reduction reads. The bias of a linear layer or convolution is part of its sums. Copies, lookups and views compute
nothing. An operator that is not known here has no work at all, not none: callers list it by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch

from octavo.graph.records import Node, Ref, Size, TensorRecord, refs

Tensors = Mapping[str, TensorRecord]


@dataclass(frozen=True)
class Product:
    """Multiply-adds of two operands, each the name of a tensor or ``format:TEXT``.

    ``right`` is the weight where one operand is a weight.
    """

    macs: Size
    left: str
    right: str


@dataclass(frozen=True)
class Work:
    """The work of an operator: products, and elementwise operations."""

    products: tuple[Product, ...] = ()
    elementwise: Size = 0

    @property
    def macs(self) -> Size:
        """Multiply-adds of all products."""
        return sum((product.macs for product in self.products), 0)


Rule = Callable[[Node, Tensors], Work | None]


def work_of(node: Node, tensors: Tensors) -> Work | None:
    """Return the work of an operator; None if unknown."""
    if rule := _RULES.get(node.op) or _RULES.get(node.op.removesuffix("_")):
        return rule(node, tensors)
    if is_view(node, tensors):
        return Work()
    return Work(elementwise=_elements(node.outputs, tensors)) if is_pointwise(node.op) else None


def is_view(node: Node, tensors: Tensors) -> bool:
    """Whether an operator is a view: all its results share the memory of an argument."""
    writes = node.op.endswith("_") and not node.op.endswith("__") and node.op != "aten.detach_"
    return bool(node.outputs) and not writes and all(tensors[name].alias_of is not None for name in node.outputs)


@lru_cache(maxsize=4096)
def is_pointwise(op: str) -> bool:
    """Whether torch tags an operator as pointwise; an in-place operator counts as its functional form."""
    namespace, _, name = op.partition(".")
    for candidate in (name, name.removesuffix("_")):
        packet = getattr(getattr(torch.ops, namespace, None), candidate, None)
        for overload in packet.overloads() if isinstance(packet, torch._ops.OpOverloadPacket) else []:
            if torch.Tag.pointwise in getattr(packet, overload).tags:
                return True
    return False


def _elements(names: tuple[str, ...], tensors: Tensors) -> Size:
    return sum((tensors[name].elements for name in names), 0)


def _shape(node: Node, argument: str, tensors: Tensors) -> tuple[Size, ...]:
    name = node.named(argument)
    assert name is not None  # the operator's schema says that it is a tensor
    return tensors[name].shape


# --- products ---------------------------------------------------------------------------------------------------------


def _matmul(left: str, right: str) -> Rule:
    """Rule of a product of two tensors: each element of the result sums over the last axis of the left one."""

    def rule(node: Node, tensors: Tensors) -> Work | None:
        a, b = node.named(left), node.named(right)
        if a is None or b is None:
            return None
        macs = tensors[node.outputs[0]].elements * tensors[a].shape[-1]
        return Work((Product(macs, a, b),))

    return rule


def _convolution(node: Node, tensors: Tensors) -> Work | None:
    x, weight = node.named("input"), node.named("weight")
    if x is None or weight is None:
        return None
    transposed = node.arguments.get("transposed") is True or "conv_transpose" in node.op
    starts = tensors[x if transposed else node.outputs[0]].elements
    return Work((Product(starts * math.prod(tensors[weight].shape[1:]), x, weight),))


def _attention(node: Node, tensors: Tensors) -> Work | None:
    query, key, value = (node.named(name) for name in ("query", "key", "value"))
    if query is None or key is None or value is None:
        return None
    *rows, width = tensors[query].shape
    keys, values = tensors[key].shape[-2], tensors[value].shape[-1]
    scores = math.prod(rows) * keys
    products = (Product(scores * width, query, key), Product(scores * values, query, value))
    masked = 1 if node.named("attn_mask") is not None else 0
    return Work(products, scores * (_SOFTMAX + 1 + masked))


def _einsum(node: Node, tensors: Tensors) -> Work | None:
    """For two operands the product of the sizes of all letters. More operands have no fixed order of sums: unknown."""
    operands = [ref.name for ref in refs(node.arguments.get("tensors"))]
    text = node.arguments.get("equation")
    if len(operands) != 2 or not isinstance(text, str) or "." in text:
        return None
    sizes: dict[str, Size] = {}
    for letters, name in zip(text.replace(" ", "").partition("->")[0].split(","), operands, strict=True):
        for letter, size in zip(letters, tensors[name].shape, strict=True):
            sizes[letter] = size if sizes.get(letter, 1) == 1 else sizes[letter]
    return Work((Product(math.prod(sizes.values()), *operands),))


def _recurrent(gates: int, operations: int) -> Rule:
    """Rule of a recurrent network: every matrix multiplies every step; ``operations`` of each hidden unit a step.

    A direction of a layer has two matrices of ``gates`` rows for each hidden unit, and perhaps one that projects.
    """

    def rule(node: Node, tensors: Tensors) -> Work | None:
        x, matrices = node.named("input"), [ref.name for ref in refs(node.arguments.get("params"))]
        if x is None:
            return None
        steps = math.prod(tensors[x].shape[:-1])
        weights = [name for name in matrices if len(tensors[name].shape) == 2]
        rows = [tensors[name].shape[0] for name in weights]
        units = sum(count for count in rows if count == rows[0]) // (2 * gates)
        products = tuple(Product(steps * tensors[name].elements, x, name) for name in weights)
        return Work(products, steps * units * operations)

    return rule


def _packed_linear(node: Node, tensors: Tensors) -> Work | None:
    x, weight = node.named("x"), node.named("codes")
    if x is None or weight is None:
        return None
    rows, columns = node.arguments["out_features"], node.arguments["in_features"]
    left = f"format:{node.arguments['input_format']}" if "input_format" in node.arguments else x
    macs = math.prod(tensors[x].shape[:-1]) * rows * columns
    return Work((Product(macs, left, f"format:{node.arguments['format']}"),))


def _int8_gemm(node: Node, tensors: Tensors) -> Work | None:
    macs = tensors[node.outputs[0]].elements * _shape(node, "a", tensors)[1]
    return Work((Product(macs, "format:int8", "format:int8"),))


# --- operations of elements -------------------------------------------------------------------------------------------

_SOFTMAX = 5  # largest, difference, exp, sum, quotient


def _each(argument: str, operations: int, *, affine: int = 0) -> Rule:
    """Rule of ``operations`` for each element of an argument, plus one for each weight and bias with ``affine``."""

    def rule(node: Node, tensors: Tensors) -> Work | None:
        name = node.named(argument)
        if name is None:
            return None
        extra = sum(isinstance(node.arguments.get(key), Ref) for key in ("weight", "bias")) if affine else 0
        return Work(elementwise=tensors[name].elements * (operations + extra))

    return rule


def _batch_norm(node: Node, tensors: Tensors) -> Work | None:
    return _each("input", 5 if node.arguments.get("training") else 2, affine=1)(node, tensors)


def _dropout(node: Node, tensors: Tensors) -> Work | None:
    """In training mode a mask and a scale; in evaluation mode the identity."""
    works = node.arguments.get("train", True) and node.arguments.get("p") != 0
    return Work(elementwise=2 * _elements(node.outputs, tensors) if works else 0)


def _written(operations: int) -> Rule:
    return lambda node, tensors: Work(elementwise=operations * _elements(node.outputs, tensors))


def _window(node: Node, tensors: Tensors) -> Work | None:
    """A pooling: each element of the result reads its window."""
    kernel = node.arguments.get("kernel_size")
    if not isinstance(kernel, tuple) or not kernel:
        return None
    dims = int(node.op.rstrip("_").removesuffix("d")[-1]) if node.op.endswith("d") else len(kernel)
    window = math.prod(kernel) if len(kernel) == dims else kernel[0] ** dims
    return Work(elementwise=tensors[node.outputs[0]].elements * window)


def _rotary_table(node: Node, tensors: Tensors) -> Work | None:
    """Cosines and sines of angles, each of which is a product."""
    return Work(elementwise=tensors[node.outputs[0]].elements + _elements(node.outputs, tensors))


def _residual_norm(node: Node, tensors: Tensors) -> Work | None:
    """A sum, a norm of three operations, and where they are there the mask and scale of drop-out, and a gain."""
    x = node.named("x")
    if x is None:
        return None
    mask = 2 if node.arguments.get("p") else 0
    return Work(elementwise=tensors[x].elements * (4 + mask + isinstance(node.arguments.get("gain"), Ref)))


def _by_values(node: Node, tensors: Tensors) -> Work | None:
    """Unknown: the work depends on values, such as lengths of texts, which a graph does not have."""
    return None


def _nothing(node: Node, tensors: Tensors) -> Work | None:
    return Work()


def _aten(rule: Rule, *names: str) -> dict[str, Rule]:
    return {f"aten.{name}": rule for name in names}


_MOVES = """
    embedding index index_select gather cat stack clone contiguous to _to_copy lift_fresh_copy lift_fresh
    detach_ detach arange zeros ones full empty zeros_like ones_like full_like empty_like new_zeros new_ones
    new_full new_empty scalar_tensor reshape flatten repeat repeat_interleave expand copy_ copy pad
    constant_pad_nd roll flip tril triu scatter index_put index_put_ slice_scatter select_scatter one_hot eye
    pixel_shuffle pixel_unshuffle im2col unfold masked_select tile fill zero split chunk tensor_split unbind
    movedim swapaxes diagonal meshgrid broadcast_tensors type_as float
"""  # copies, lookups and tensors of constants


_RULES: dict[str, Rule] = {
    **_aten(_matmul("input", "weight"), "linear"),
    **_aten(_matmul("self", "other"), "matmul"),
    **_aten(_matmul("self", "mat2"), "mm", "bmm"),
    **_aten(_matmul("self", "vec"), "mv"),
    **_aten(_matmul("self", "tensor"), "dot"),
    **_aten(_matmul("mat1", "mat2"), "addmm"),
    **_aten(_matmul("batch1", "batch2"), "baddbmm"),
    **_aten(_matmul("mat", "vec"), "addmv"),
    **_aten(_einsum, "einsum"),
    **_aten(
        _convolution, "conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d",
        "conv_transpose3d",
    ),
    **_aten(_attention, "scaled_dot_product_attention"),
    **_aten(_recurrent(4, 21), "lstm"),  # twelve sums and four functions of gates, five for the cell and the output
    **_aten(_recurrent(3, 17), "gru"),
    **_aten(_recurrent(1, 4), "rnn_tanh", "rnn_relu"),
    **dict.fromkeys(("octavo.packed_linear", "octavo.packed_linear_plain"), _packed_linear),
    "octavo.sparse_linear": _packed_linear,
    **dict.fromkeys(("octavo.rounded_linear", "octavo.rounded_linear_plain"), _packed_linear),
    **dict.fromkeys(("octavo.integer_linear", "octavo.integer_linear_plain"), _packed_linear),
    "octavo.int8_gemm": _int8_gemm,
    **dict.fromkeys(("octavo.quantize", "octavo.quantize_plain", "octavo.encode"), _each("x", 1)),
    **dict.fromkeys(("octavo.decode", "octavo.dense_codes", "octavo.packed_embedding"), _written(1)),
    "octavo_lab.rotary_table": _rotary_table,
    "octavo_lab.residual_norm": _residual_norm,
    "octavo_lab.paged_attention": _by_values,
    **_aten(_each("self", _SOFTMAX), "softmax", "_softmax", "log_softmax", "_log_softmax"),
    **_aten(_each("input", 5, affine=1), "layer_norm", "native_layer_norm", "group_norm", "instance_norm"),
    **_aten(_each("input", 3, affine=1), "rms_norm"),
    **_aten(_batch_norm, "batch_norm", "_native_batch_norm_legit_no_training"),
    **_aten(_dropout, "dropout", "feature_dropout", "alpha_dropout"),
    **_aten(_each("self", _SOFTMAX), "cross_entropy_loss"),
    **_aten(_each("self", 3), "mse_loss", "var", "std", "l1_loss", "smooth_l1_loss"),
    **_aten(
        _each("self", 1), "sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "any", "all", "prod", "norm",
        "cumsum", "nll_loss", "nll_loss_nd", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool2d",
        "logsumexp", "count_nonzero",
    ),
    **_aten(_each("self", 2), "linalg_vector_norm"),
    **_aten(_written(1), "__and__", "__or__", "__xor__", "__lshift__", "__rshift__"),
    **_aten(_window, "max_pool1d", "max_pool2d", "avg_pool1d", "avg_pool2d"),
    **_aten(_nothing, *_MOVES.split()),
}  # fmt: skip
