"""explain: the kernel, bytes and estimated time of every layer of a model."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, cast

import torch
from rich.table import Table
from torch import Tensor, nn

from octavo.display.console import plain_text, table
from octavo.display.notebook import InNotebooks
from octavo.display.numbers import shape_text, size
from octavo.errors import ModelError
from octavo.model_folder.stored_tensors import stored_state
from octavo.model_folder.tied_tensors import tied_sentences
from octavo.nn import PackedLayer, Quantizer, QuantLayer
from octavo.nn.registry import kind_of
from octavo.recipe.expert_families import expert_family
from octavo.storage.arguments import check
from octavo.storage.reading import shown
from octavo.tensors.packed_tensor import PackedTensor

_MOST = 2**31  # rows of a batch
BOUND = (
    "PackedLinear in float32 differs from exact products of its inputs, rounded where it has a format for them, by at "
    "most (2^-20 + K * 2^-28) * T,\nT being for each 256 of the K columns their largest |x| times the sum of their |w|"
)
"""FORMATS.md section 6, Products: the error of float products."""


@dataclass(frozen=True)
class LayerCost:
    """Kernel, bytes and estimated time of one call of a layer.

    ``kernel``: that runs. ``nbytes``: of weight, scales and bias that a call reads; where the weight is decoded first,
    also the dense copy, written and read. ``seconds``: those bytes at the bandwidth of the machine, a lower bound for
    weights that are not in a cache. ``shape`` of the weight; ``format``: None for a float weight. ``stored``: bytes of
    its tensors in the file that :func:`octavo.save_model` writes; what is tied counts where it comes first. ``input``:
    format that inputs are rounded to; None where they are multiplied as they are. ``zeros``: share of the codes that
    are 0 and left out, ``dense``: bytes of the weight with them; None where codes are dense.
    """

    path: str
    layer: str
    shape: tuple[int, ...]
    format: str | None
    kernel: str
    nbytes: int
    seconds: float
    stored: int = 0
    input: str | None = None
    zeros: float | None = None
    dense: int | None = None


@dataclass(frozen=True)
class OtherTensor:
    """A parameter or buffer of no such layer: of norms, recurrent layers, experts. ``owner``: class of its module.

    ``stored``: its bytes in the file; 0 for a buffer that is not persistent. Tied ones are here once.
    """

    name: str
    owner: str
    shape: tuple[int, ...]
    dtype: str
    stored: int


@dataclass(frozen=True)
class Costs(InNotebooks):
    """The layers of a model for ``batch`` rows of input, and the measured ``bandwidth`` in bytes a second.

    ``others``: every parameter and buffer outside them, which PyTorch reads as the model says. ``tied``: sentences
    about weights that layers share.
    """

    layers: tuple[LayerCost, ...]
    batch: int
    bandwidth: float
    others: tuple[OtherTensor, ...] = ()
    tied: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes that all layers read."""
        return sum(layer.nbytes for layer in self.layers)

    @property
    def stored(self) -> int:
        """Bytes of all tensors in the file that :func:`octavo.save_model` writes."""
        return sum(layer.stored for layer in self.layers) + sum(other.stored for other in self.others)

    @property
    def seconds(self) -> float:
        """Estimated time of all layers."""
        return sum(layer.seconds for layer in self.layers)

    def to_table(self) -> Table:
        """Return one row a layer, one for every other tensor, and the total; alike experts of a mixture are one row.

        Returns:
            A table of rich.
        """
        sparse = any(cost.zeros is not None for cost in self.layers)
        more = (">zeros", ">dense weight") if sparse else ()
        rows = table("layer", "class", ">shape", "format", "kernel", ">bytes read", ">est. us", ">bytes stored", *more)
        for cost in _folded(self.layers):
            name, text = cost.path or "(itself)", cost.format or "-"
            text += "" if cost.input is None else f" x {cost.input}"
            microseconds = f"{1e6 * cost.seconds:.1f}"
            rows.add_row(
                name, cost.layer, shape_text(cost.shape), text, cost.kernel, size(cost.nbytes), microseconds,
                size(cost.stored),
                *(() if cost.zeros is None or cost.dense is None else (f"{cost.zeros:.1%}", size(cost.dense))),
            )  # fmt: skip
        for other in self.others:
            rows.add_row(
                other.name, other.owner, shape_text(other.shape), other.dtype, "-", "-", "-", size(other.stored)
            )
        count = f"total of {len(self.layers)}" + (f" and {len(self.others)} tensors" if self.others else "")
        rows.add_row(count, "", "", "", "", size(self.nbytes), f"{1e6 * self.seconds:.1f}", size(self.stored))
        return rows

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON.

        Returns:
            The fields, with ``nbytes``, ``seconds`` and ``stored``.
        """
        return {**asdict(self), "nbytes": self.nbytes, "seconds": self.seconds, "stored": self.stored}

    def __str__(self) -> str:
        """Return the table as text."""
        note = f"batch {self.batch}; {self.bandwidth / 1e9:.1f} GB/s measured on this machine"
        if any(cost.layer == "PackedLinear" for cost in self.layers):
            note += "; W x F: products of W with inputs rounded to F" if any(cost.input for cost in self.layers) else ""
            note += f"\n{BOUND}"
        if any(expert_family(cost.path) for cost in self.layers):
            note += "\nBytes read and times count every expert of a mixture; a token needs those that it chooses"
        return "\n".join([plain_text(self.to_table()), "", *self.tied, note])


def _folded(costs: Sequence[LayerCost]) -> list[LayerCost]:
    """Return the costs in their order, those of alike experts of a mixture added: ``mlp.experts.*.down_proj (8)``."""
    groups: dict[LayerCost | str, list[LayerCost]] = {}
    for cost in costs:
        family = expert_family(cost.path)
        alike = replace(cost, path=family or "", seconds=0.0, stored=0, zeros=None, dense=None)
        groups.setdefault(cost.path if family is None else alike, []).append(cost)
    return [group[0] if len(group) == 1 else _sum(group) for group in groups.values()]


def _sum(group: Sequence[LayerCost]) -> LayerCost:
    first = group[0]
    dense = [cost.dense for cost in group if cost.dense is not None]
    zeros = [cost.zeros for cost in group if cost.zeros is not None]
    return replace(
        first,
        path=f"{expert_family(first.path)} ({len(group)})",
        nbytes=sum(cost.nbytes for cost in group),
        seconds=sum(cost.seconds for cost in group),
        stored=sum(cost.stored for cost in group),
        zeros=sum(zeros) / len(zeros) if zeros else None,
        dense=sum(dense) if dense else None,
    )


def explain(model: nn.Module, batch: int = 1) -> Costs:
    """Return the kernel, bytes and estimated time of every layer with a weight, and the bytes of all other tensors.

    Bytes stored add up to those of the tensors in the file that :func:`octavo.save_model` writes. The memory bandwidth
    is measured on the first call (about 0.1 s).

    Args:
        model: a model or one layer.
        batch: rows that a layer multiplies at once, sentences times tokens; ids of an embedding.

    Returns:
        A :class:`~octavo.model_folder.layer_costs.Costs`, which prints as a table.

    Raises:
        ModelError: for a batch outside 1 to 2^31, or a model without tensors.
        DTypeError: for an object that is no module.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        >>> packed = octavo.pack_model(octavo.quantize_model(model, "int4:g32; last:Linear int8:channel"))
        >>> costs = octavo.explain(packed)
        >>> [(layer.path, layer.format, layer.nbytes) for layer in costs.layers]
        [('0', 'int4:g32', 5120), ('2', 'int8:channel', 1360)]
        >>> costs.stored, octavo.explain(model).stored
        (6480, 38440)
    """
    check(model, nn.Module, "explain: model")
    if not isinstance(batch, int) or isinstance(batch, bool) or not 1 <= batch <= _MOST:
        raise ModelError(f"explain: batch is {shown(batch)}; accepted are integers from 1 to {_MOST}")
    speed = bandwidth()
    layers = {path: layer for path, layer in model.named_modules() if _has_weight(layer)}
    costs = {path: _cost(path, layer, batch, speed) for path, layer in layers.items()}
    stored, others = _stored(model, costs)
    if not costs and not others:
        raise ModelError(f"explain: a {type(model).__name__} without linear layers, embeddings and other tensors")
    found = tuple(replace(cost, stored=stored[path]) for path, cost in costs.items())
    return Costs(found, batch, speed, tuple(others), tied_sentences(model))


def _stored(model: nn.Module, layers: Collection[str]) -> tuple[dict[str, int], list[OtherTensor]]:
    """Return the bytes of each layer in the file, and the tensors of none of them."""
    modules = dict(model.named_modules(remove_duplicate=False))
    values, ties = stored_state(model)
    stored = dict.fromkeys(layers, 0)
    others = []

    def add(name: str, tensor: Tensor | PackedTensor, nbytes: int) -> None:
        owner, _, _ = path = name.rpartition(".")
        while path[1] and path[0] not in stored:
            path = path[0].rpartition(".")
        if path[0] in stored:
            stored[path[0]] += nbytes
        elif "" in stored:
            stored[""] += nbytes
        else:
            kind, dtype = type(modules.get(owner, model)).__name__, str(tensor.dtype).removeprefix("torch.")
            others.append(OtherTensor(name, kind, tuple(tensor.shape), dtype, nbytes))

    for name, value in values.items():
        if isinstance(value, Tensor | PackedTensor):
            add(name, value, value.nbytes)
    for name, buffer in model.named_buffers():
        path, _, last = name.rpartition(".")
        if name not in values and name not in ties and last in modules[path]._non_persistent_buffers_set:
            add(name, buffer, 0)
    return stored, others


@cache
def bandwidth() -> float:
    """Return the bytes a second that PyTorch reads from memory: the best of five sums over 64 MiB."""
    data = torch.ones(1 << 24)
    best = math.inf
    for _ in range(5):
        start = time.perf_counter()
        data.sum()
        best = min(best, time.perf_counter() - start)
    return data.nbytes / best


def _has_weight(module: nn.Module) -> bool:
    """Whether a module is a layer with a weight: packed, simulated, or of a float class that Octavo quantizes."""
    kind = kind_of(module)
    return isinstance(module, PackedLayer) or (kind is not None and kind.float_class is not None)


def _cost(path: str, layer: nn.Module, batch: int, speed: float) -> LayerCost:
    text: str | None
    if isinstance(layer, PackedLayer):
        kernel, nbytes = layer.cost(batch)
        weight = layer.packed_weight
        shape, text = weight.shape, str(layer.format)
        zeros, dense = weight.zeros_share, weight.dense_nbytes if weight.is_sparse else None
    else:
        matrix, kind = cast("Tensor", layer.weight), kind_of(layer)
        shape, zeros, dense = tuple(matrix.shape), None, None
        rows = min(batch, len(matrix)) if kind is not None and kind.is_lookup else len(matrix)
        nbytes = matrix[:1].numel() * matrix.element_size() * rows
        quantizer = getattr(layer, "weight_quantizer", None)
        text = None if quantizer is None else str(quantizer.format)
        kernel = "simulated" if isinstance(layer, QuantLayer) else "torch"
    bias = getattr(layer, "bias", None)
    if isinstance(bias, Tensor):
        nbytes += bias.nbytes
    rounding = getattr(layer, "input_quantizer", None)
    given = str(rounding.format) if isinstance(rounding, Quantizer) and rounding.enabled else None
    return LayerCost(path, type(layer).__name__, shape, text, kernel, nbytes, nbytes / speed, 0, given, zeros, dense)
