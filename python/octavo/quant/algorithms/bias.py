"""Biases corrected for the mean error of a quantized layer (Nagel et al. 2019)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from octavo.data.batches import Batches
from octavo.display.progress import Report, Stages
from octavo.errors import DTypeError, ModelError, NonFiniteError, ShapeError
from octavo.nn.model_copies import shared_copy
from octavo.nn.packed_layer import PackedLayer
from octavo.nn.registry import kind_of
from octavo.nn.rewriting import rewrite_modules
from octavo.quant.algorithms.walk import Walk
from octavo.quant.calibration import run, seen_of, undisturbed
from octavo.storage.arguments import checks_arguments
from octavo.tensors.fixed_order import ordered_sum
from octavo.train.concurrent_batches import in_turn
from octavo.train.unpadded_samples import unpadded


@dataclass(frozen=True)
class BiasCorrections:
    """The result of :func:`correct_bias_model`.

    ``added``: what each layer's bias gained, ``[channels]``, by the layer's name. ``without_bias``: layers that have
    no bias to correct. ``not_reached``: layers that no batch reached.
    """

    added: dict[str, Tensor]
    without_bias: tuple[str, ...]
    not_reached: tuple[str, ...]

    def __str__(self) -> str:
        """Return a line for each layer."""
        lines = [f"{name}: largest {delta.abs().max():.3g}" for name, delta in self.added.items()]
        lines += [f"{name}: no bias; create=True makes one" for name in self.without_bias]
        return "\n".join([*lines, *(f"{name}: not reached" for name in self.not_reached)])


@checks_arguments
def correct_bias_model(
    model: nn.Module,
    reference: nn.Module,
    calibration: Iterable[Any],
    *,
    create: bool = False,
    samples: int | None = 512,
    progress: bool | Report = True,
) -> BiasCorrections:
    """Add to the biases of a quantized model the mean error of its layers' outputs, channel by channel, in place.

    Linear layers and convolutions of the same name correspond. Layers are corrected in the order they run, each after
    those before it; layers with the same input together. After an error biases are as they were.
    Source: Nagel et al. 2019, Data-Free Quantization, the empirical form of its bias correction.

    Args:
        model: quantized.
        reference: the float model that it came from.
        calibration: batches, as :func:`octavo.quantize_model` takes them.
        create: give layers without a bias one; else they are reported.
        samples: most samples of ``calibration``; None for all.
        progress: a bar on a terminal; or a function of stage, done and total.

    Returns:
        The corrections by layer.

    Raises:
        DTypeError: for objects that are no models.
        ModelError: for two models without a layer in common.
        ShapeError: where a layer's outputs differ in shape.
        CalibrationError: without data.
        NonFiniteError: for NaN and infinity; names the layer.

    Example:
        >>> model = nn.Sequential(nn.Linear(16, 4))
        >>> batch = torch.randn(64, 16) + 1
        >>> quantized = octavo.quantize_model(model, "int2:g16")
        >>> before = (quantized(batch) - model(batch)).mean(0).abs().max()
        >>> corrections = octavo.quant.correct_bias_model(quantized, model, [batch])
        >>> bool((quantized(batch) - model(batch)).mean(0).abs().max() < 1e-5 < before)
        True
    """
    for argument, label in ((model, "model"), (reference, "reference")):
        if not isinstance(argument, nn.Module):
            raise DTypeError(f"{label} is a {type(argument).__name__}; accepted is a torch.nn.Module")
    batches, show, reference = Batches(calibration, samples), Stages(progress), shared_copy(reference)
    reference = rewrite_modules(reference)  # experts as the layers that the quantized model has
    layers = {name: layer for name, layer in model.named_modules() if _is_layer(layer)}
    twins = {name: layer for name, layer in reference.named_modules() if _is_layer(layer) and name in layers}
    if not twins:
        why = "pass the quantized model and the float model that it came from"
        if any(isinstance(module, PackedLayer) for module in (*model.modules(), *reference.modules())):
            why = "a packed layer's bias is fixed; correct the model before octavo.pack_model"
        raise ModelError(f"model and reference have no linear layer or convolution of the same name; {why}")
    batches = unpadded(reference, batches)
    without = tuple(name for name in twins if layers[name].bias is None) if not create else ()
    targets = {name: layers[name] for name in twins if name not in without}
    with undisturbed(reference), _observed({name: twins[name] for name in targets}) as means:
        run(reference, batches, show, "running the reference")
    wanted = {name: mean.value for name, mean in means.items()}
    reached = {name: layer for name, layer in targets.items() if name in wanted}
    _check_shapes(reference, reached)
    before = {name: None if layer.bias is None else layer.bias.detach().clone() for name, layer in reached.items()}
    try:
        added = _correct(model, reached, wanted, batches, show)
    except BaseException:
        for name, bias in before.items():
            _restore(reached[name], bias)
        raise
    return BiasCorrections(added, without, tuple(name for name in targets if name not in added))


def has_biases(model: nn.Module) -> bool:
    """Whether a model has a bias that :func:`correct_bias_model` could correct."""
    return any(_is_layer(layer) and layer.bias is not None for layer in model.modules())


def _is_layer(module: nn.Module) -> bool:
    kind = kind_of(module)
    return isinstance(module, nn.Conv3d) or (kind is not None and kind.float_class is not None and "bias" in kind.roles)


def _axis(layer: nn.Module) -> int:
    """Return the dimension of a batch of outputs that channels lie along, counted from the end."""
    kernel = getattr(layer, "kernel_size", None)
    return -1 if kernel is None else -1 - len(kernel)


def _check_shapes(reference: nn.Module, layers: dict[str, nn.Module]) -> None:
    for name, layer in layers.items():
        own, other = (cast("Tensor", each.weight).shape for each in (layer, reference.get_submodule(name)))
        if own != other:
            raise ShapeError(
                f"{name}: the weight has shape {tuple(own)}, in the reference "
                f"{tuple(other)}; pass the model that this one was quantized from"
            )


class _Mean:
    """Mean of a layer's outputs, ``[channels]``, summed in float64."""

    def __init__(self) -> None:
        self.sum, self.count = torch.zeros(1, dtype=torch.float64), 0

    def add(self, name: str, axis: int, output: Tensor) -> None:
        output = seen_of(output.detach()) if axis == -1 else output.detach()
        rows = output.movedim(axis, -1).flatten(0, -2) if output.ndim > 1 else output[None]
        sums = ordered_sum(rows.double(), 0)
        if not torch.isfinite(sums).all():
            raise NonFiniteError(f"{name}: the outputs hold NaN or infinity; calibrate with finite data")
        self.sum, self.count = self.sum + sums, self.count + len(rows)

    @property
    def value(self) -> Tensor:
        return self.sum / self.count


@contextmanager
def _observed(layers: dict[str, nn.Module]) -> Iterator[dict[str, _Mean]]:
    """Yield the means of the outputs of ``layers``, by name, of those that run inside."""
    means: dict[str, _Mean] = {}

    def see(name: str, layer: nn.Module, output: Tensor) -> None:
        with in_turn(name):
            means.setdefault(name, _Mean()).add(name, _axis(layer), output)

    handles = [
        layer.register_forward_hook(lambda module, _, output, name=name: see(name, module, output))
        for name, layer in layers.items()
    ]
    try:
        yield means
    finally:
        for handle in handles:
            handle.remove()


def _correct(
    model: nn.Module, layers: dict[str, nn.Module], wanted: dict[str, Tensor], batches: Batches, show: Stages
) -> dict[str, Tensor]:
    names = {layer: name for name, layer in layers.items()}
    added = {}
    with undisturbed(model), show.stage("correcting biases", len(layers)) as advance:
        walk = Walk(model, layers.values(), batches, changes="bias")
        for stage in walk.stages:
            staged = {names[layer]: layer for layer in stage.layers}
            means = walk.run_to(stage, functools.partial(_observed, staged))
            for name, layer in staged.items():
                if name in means:
                    added[name] = add_to_bias(layer, wanted[name] - means[name].value)
                walk.done(layer)
                advance()
    return added


def add_to_bias(layer: nn.Module, delta: Tensor) -> Tensor:
    """Add to a layer's bias, made where it has none, and return what was added, in the dtype of its weight."""
    weight, bias = cast("Tensor", layer.weight), cast("Tensor | None", layer.bias)
    delta = delta.to(weight.device, weight.dtype)
    if bias is None:
        layer.bias = nn.Parameter(delta.clone())
    else:
        bias.data += delta
    return delta


def _restore(layer: nn.Module, bias: Tensor | None) -> None:
    if bias is None:
        layer.register_parameter("bias", None)
    else:
        cast("Tensor", layer.bias).data.copy_(bias)
