"""Runs calibration data through a model, and collects statistics of activations and Hessians of layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from octavo import _core
from octavo.data.batches import Batches, call_numbered
from octavo.display.progress import Stages
from octavo.errors import CalibrationError
from octavo.graph.tensor_statistics import Statistics
from octavo.nn.int32_bias import Int32Bias
from octavo.nn.quant_layer import QuantLayer
from octavo.nn.quantizer import Quantizer
from octavo.tensors.fixed_order import one_thread
from octavo.train.unpadded_samples import masks_of

_ROWS = 256  # of sums of products that are copied at once


def run(model: nn.Module, batches: Batches, show: Stages, label: str) -> None:
    """Run every batch through ``model``."""
    with show.stage(label, len(batches)) as advance:
        for number, batch in enumerate(batches):
            call(model, batch, number)
            advance()


def call(model: nn.Module, batch: Any, number: int) -> Any:
    """Return what ``model`` gives for one batch, whose masks :func:`seen_of` knows meanwhile.

    Raises as :func:`octavo.data.batches.call_numbered`.
    """
    with counting(model, batch):
        return call_numbered(model, batch, number)


_masks: ContextVar[tuple[Tensor, ...]] = ContextVar("masks", default=())


@contextmanager
def counting(model: nn.Module, batch: Any) -> Iterator[None]:
    """Have :func:`seen_of` know the masks of a batch inside."""
    masks = masks_of(model, batch).values()
    token = _masks.set(tuple(mask.bool() for mask in masks if not bool(mask.all())))
    try:
        yield
    finally:
        _masks.reset(token)


def seen_of(x: Tensor) -> Tensor:
    """Return the positions of a layer's input that no mask of the batch hides.

    ``x``: ``[samples, positions, ...]`` or ``[samples * positions, ...]``, where a mask of the batch is ``[samples,
    positions]``: as ``[seen, ...]``. Others come back as they are.
    """
    for mask in _masks.get():
        if x.shape[:2] == mask.shape:
            return x[mask.to(x.device)]
        if x.ndim == 2 and len(x) == mask.numel():
            return x[mask.flatten().to(x.device)]
    return x


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluate inside, torch in one thread: the same results whatever number it has.

    Modes, buffers, random numbers and switches of quantizers are as before afterwards.
    """
    modes = {module: module.training for module in model.modules()}
    switches = {module: module.enabled for module in model.modules() if isinstance(module, Quantizer | Int32Bias)}
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers() if not buffer.is_meta]
    model.eval()
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), one_thread():
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
        seen[quantizer].add(seen_of(arguments[0]), quantizer.what)

    with undisturbed(model), hooked(wanted, see):
        for module in model.modules():
            if isinstance(module, Quantizer | Int32Bias):
                module.enabled = False
        run(model, batches, show, "calibrating activations")
    return seen


class Products:
    """Sums of outer products of a layer's input vectors, in float64, vector after vector.

    The same on any processor and any number of threads, and however the vectors are shared out among calls.
    """

    def __init__(self, layer: QuantLayer) -> None:
        """Begin with nothing seen."""
        self.layer, self.n = layer, 0
        k = layer.weight_matrix().shape[1]
        self.sums = torch.zeros(k, k, dtype=torch.float64)  # the upper triangle

    def add(self, x: Tensor) -> None:
        """Add the vectors of an input, those that no mask hides."""
        rows = self.layer.input_rows(seen_of(x.detach())).to("cpu", torch.float32).contiguous()
        self.n += len(rows)
        _core._add_outer_products(len(rows), len(self.sums), rows.data_ptr(), self.sums.data_ptr())

    def hessian(self) -> Tensor:
        """Return ``2/n X^T X`` ``[K, K]`` of the n vectors, float32. Raises CalibrationError where there are none."""
        if not self.n:
            quantizer = self.layer.weight_quantizer
            assert quantizer is not None  # its spec asks for the Hessian
            raise CalibrationError(
                f"{quantizer.what}: '{quantizer.spec}' got no calibration data: "
                "the layer was never called; leave it out of the recipe, or give batches that reach it"
            )
        hessian = torch.empty(self.sums.shape)
        for start in range(0, len(hessian), _ROWS):  # H is large of wide layers: a part at a time is in float64
            end = start + _ROWS
            upper, left = self.sums[start:end].triu(start), self.sums[:, start:end].triu(1 - start)
            hessian[start:end] = (upper + left.T) * (2 / self.n)
        return hessian


@contextmanager
def hooked(modules: Iterable[nn.Module], hook: Callable[[Any, tuple[Any, ...]], None]) -> Iterator[None]:
    """Call ``hook`` with each module and its arguments before it runs, inside."""
    handles = [module.register_forward_pre_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Have a module compute something else inside; its hooks stay."""
    before = vars(module).get("forward")
    vars(module)["forward"] = forward
    try:
        yield
    finally:
        if before is None:
            del vars(module)["forward"]
        else:
            vars(module)["forward"] = before
