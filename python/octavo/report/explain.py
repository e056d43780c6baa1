"""What will run: the kernel, bytes and estimated time of every layer of a model."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn

from octavo import linear
from octavo.errors import DTypeError, ModelError
from octavo.nn import PackedEmbedding, PackedLayer, PackedLinear, QuantLayer
from octavo.report.console import plain_text, table
from octavo.report.weights import shape_text, size

_FLOAT_LAYERS = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d)
FALLBACK = "decode + torch"
_MOST = 2**31  # rows of a batch


@dataclass(frozen=True)
class LayerCost:
    """What one layer does when it is called.

    ``kernel``: that runs. ``nbytes``: of weight, scales and bias that a call reads; where the weight is decoded first,
    also the dense copy, written and read. ``seconds``: those bytes at the bandwidth of the machine, a lower bound for
    weights that are not in a cache. ``shape`` of the weight; ``format``: None for a float weight.
    """

    path: str
    layer: str
    shape: tuple[int, ...]
    format: str | None
    kernel: str
    nbytes: int
    seconds: float


@dataclass(frozen=True)
class Costs:
    """The layers of a model for ``batch`` rows of input, and the measured ``bandwidth`` in bytes a second."""

    layers: tuple[LayerCost, ...]
    batch: int
    bandwidth: float

    @property
    def nbytes(self) -> int:
        """Bytes that all layers read."""
        return sum(layer.nbytes for layer in self.layers)

    @property
    def seconds(self) -> float:
        """Estimated time of all layers."""
        return sum(layer.seconds for layer in self.layers)

    def table(self) -> Table:
        """One row a layer, and the total."""
        rows = table("layer", "class", ">shape", "format", "kernel", ">bytes read", ">est. us")
        for cost in self.layers:
            name, text = cost.path or "(itself)", cost.format or "-"
            microseconds = f"{1e6 * cost.seconds:.1f}"
            rows.add_row(name, cost.layer, shape_text(cost.shape), text, cost.kernel, size(cost.nbytes), microseconds)
        total = f"{1e6 * self.seconds:.1f}"
        rows.add_row(f"total of {len(self.layers)}", "", "", "", "", size(self.nbytes), total)
        return rows

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**asdict(self), "nbytes": self.nbytes, "seconds": self.seconds}

    def __str__(self) -> str:
        """Return the table as text."""
        note = f"batch {self.batch}; {self.bandwidth / 1e9:.1f} GB/s measured on this machine"
        return f"{plain_text(self.table())}\n\n{note}"


def explain(model: nn.Module, batch: int = 1) -> Costs:
    """Tell for every layer with a weight which kernel will run, what it reads, and about how long that takes.

    ``model``: a model or one layer. ``batch``: rows that a layer multiplies at once: sentences times tokens; ids of an
    embedding. Print the result, or read its ``layers``. The bandwidth is measured on the first call (about 0.1 s).

    Raises ModelError for a batch outside 1 to 2^31, or where no layer has a weight; DTypeError for what is no module.
    """
    if not isinstance(model, nn.Module):
        raise DTypeError(f"explain tells about a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(batch, int) or isinstance(batch, bool) or not 1 <= batch <= _MOST:
        raise ModelError(f"explain: batch is {batch!r}; accepted are integers from 1 to {_MOST}")
    speed = bandwidth()
    kinds = (PackedLayer, QuantLayer, *_FLOAT_LAYERS)
    found = [_cost(path, layer, batch, speed) for path, layer in model.named_modules() if isinstance(layer, kinds)]
    if not found:
        raise ModelError(f"explain: a {type(model).__name__} without linear layers, convolutions and embeddings")
    return Costs(tuple(found), batch, speed)


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


def _cost(path: str, layer: nn.Module, batch: int, speed: float) -> LayerCost:
    if isinstance(layer, PackedLayer):
        kernel, nbytes = _packed(layer, batch)
        weight, text = layer.weight, str(layer.format)
    else:
        weight = layer.weight
        rows = min(batch, len(weight)) if isinstance(layer, nn.Embedding) else len(weight)
        nbytes = weight[:1].numel() * weight.element_size() * rows
        quantiser = getattr(layer, "weight_quantiser", None)
        text = None if quantiser is None else str(quantiser.format)
        kernel = "simulated" if isinstance(layer, QuantLayer) else "torch"
    bias = getattr(layer, "bias", None)
    if isinstance(bias, Tensor):
        nbytes += bias.nbytes
    return LayerCost(path, type(layer).__name__, tuple(weight.shape), text, kernel, nbytes, nbytes / speed)


def _packed(layer: PackedLayer, batch: int) -> tuple[str, int]:
    """Return the kernel of a packed layer and the bytes of the weight that it moves."""
    weight = layer.weight
    if isinstance(layer, PackedEmbedding):
        return "gather", math.ceil(weight.nbytes / max(len(weight), 1) * min(batch, len(weight)))
    kernel = FALLBACK
    if isinstance(layer, PackedLinear):
        x = str(layer.input_quantiser.format) if layer.is_integer else None
        device = layer.weight_codes.device
        kernel = linear.kernel(str(layer.format), batch, *weight.shape, layer.dtype, input_format=x, device=device)
    dense = weight.numel() * layer.dtype.itemsize if kernel == FALLBACK else 0
    return kernel, weight.nbytes + 2 * dense
