"""Runs calibration data through a model, and collects statistics of activations and Hessians of layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from octavo.batches import Batches, call_numbered
from octavo.display.progress import Stages
from octavo.errors import CalibrationError
from octavo.graph.tensor_statistics import Statistics
from octavo.nn.int32_bias import Int32Bias
from octavo.nn.quant_layer import QuantLayer
from octavo.nn.quantizer import Quantizer


def run(model: nn.Module, batches: Batches, show: Stages, label: str) -> None:
    """Run every batch through ``model``."""
    with show.stage(label, len(batches)) as advance:
        for number, batch in enumerate(batches):
            call(model, batch, number)
            advance()


def call(model: nn.Module, batch: Any, number: int) -> Any:
    """Return what ``model`` gives for one batch. Raises as :func:`octavo.batches.call_numbered`."""
    return call_numbered(model, batch, number)


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluate inside; modes, buffers, random numbers and switches of quantizers are as before afterwards."""
    modes = {module: module.training for module in model.modules()}
    switches = {module: module.enabled for module in model.modules() if isinstance(module, Quantizer | Int32Bias)}
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers() if not buffer.is_meta]
    model.eval()
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training
        for module, enabled in switches.items():
            module.enabled = enabled
        with torch.no_grad():
            for buffer, before in buffers:
                if not torch.equal(buffer, before):
                    buffer.copy_(before)


def activation_quantizers(model: nn.Module) -> Iterator[Quantizer]:
    """The quantizers of inputs and outputs, not of weights and biases."""
    own = {
        quantizer
        for layer in model.modules()
        if isinstance(layer, QuantLayer)
        for quantizer in (layer.weight_quantizer, layer.bias_quantizer)
    }
    return (module for module in model.modules() if isinstance(module, Quantizer) and module not in own)


def observe(model: nn.Module, wanted: list[Quantizer], batches: Batches, show: Stages) -> dict[Quantizer, Statistics]:
    """Return what the tensors of some quantizers hold while nothing is quantized. Raises NonFiniteError with the name.

    All of ``wanted`` lie inside ``model``.
    """
    seen = {quantizer: Statistics() for quantizer in wanted}

    def see(quantizer: Quantizer, arguments: tuple[Tensor, ...]) -> None:
        seen[quantizer].add(arguments[0], quantizer.what)

    with undisturbed(model), hooked(wanted, see):
        for module in model.modules():
            if isinstance(module, Quantizer | Int32Bias):
                module.enabled = False
        run(model, batches, show, "calibrating activations")
    return seen


class Products:
    """Sums of outer products of a layer's input vectors, in float64."""

    def __init__(self, layer: QuantLayer) -> None:
        """Begin with nothing seen."""
        self.layer, self.n = layer, 0
        k = layer.weight_matrix().shape[1]
        self.sums = torch.zeros(k, k, dtype=torch.float64)

    def add(self, x: Tensor) -> None:
        """Add the vectors of an input."""
        rows = self.layer.input_rows(x.detach().float())
        self.n += len(rows)
        self.sums += rows.T @ rows

    def hessian(self) -> Tensor:
        """Return ``2/n X^T X`` ``[K, K]`` of the n vectors, float32. Raises CalibrationError where there are none."""
        if not self.n:
            quantizer = self.layer.weight_quantizer
            assert quantizer is not None  # its spec asks for the Hessian
            raise CalibrationError(
                f"{quantizer.what}: '{quantizer.spec}' got no calibration data: "
                "the layer was never called; leave it out of the recipe, or give batches that reach it"
            )
        return (self.sums * (2 / self.n)).float()


@contextmanager
def hooked(modules: Iterable[nn.Module], hook: Callable[[Any, tuple[Any, ...]], None]) -> Iterator[None]:
    """Call ``hook`` with each module and its arguments before it runs, inside."""
    handles = [module.register_forward_pre_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
