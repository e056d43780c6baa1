"""Criteria: the scores by which units are ranked; units with the lowest scores are pruned first.

``magnitude``: mean |w| of the unit (L1; Han et al., 2015, https://arxiv.org/abs/1506.02626). ``random``: a permutation
drawn for each tensor from the seed and its name. ``wanda``: mean of |w_ij| ||x_j||, where ||x_j|| is the norm of input
j over the calibration data (Sun et al., 2023, https://arxiv.org/abs/2306.11695). ``taylor``: |sum of w g| of the unit
over its size, averaged over batches (Molchanov et al., 2019, https://arxiv.org/abs/1906.10771). ``movement``: minus the
mean of w g, summed over steps of training (Sanh et al., 2020, https://arxiv.org/abs/2005.07683).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from octavo.data.batches import Batches, call_on
from octavo.display.progress import Stages
from octavo.errors import CalibrationError, FormatError, ModelError
from octavo.nn.registry import kind_of
from octavo.prune.granularity import MatrixUnits, Units
from octavo.prune.target_layers import Target
from octavo.quant.calibration import run, seen_of, undisturbed
from octavo.recipe.sites import join
from octavo.tensors.fixed_order import ordered_sum
from octavo.train.unpadded_samples import unpadded

CRITERIA = ("magnitude", "random", "wanda", "taylor", "movement")
GATHERED = ("taylor", "movement")  # scores that are accumulated in training

Loss = Callable[[nn.Module, Any], Tensor]
Place = tuple[str, str]


def parameter_at(model: nn.Module, place: Place) -> nn.Parameter:
    """Return the parameter of a place: the path of its module, and its name there."""
    parameter = model.get_submodule(place[0])._parameters[place[1]]
    assert parameter is not None  # units name parameters that are there
    return parameter


def magnitudes(model: nn.Module, units: Units) -> Tensor:
    """Return the mean magnitude of every unit."""
    return _mean(units, units.sums(lambda path, name: parameter_at(model, (path, name)).detach().abs()))


def random_scores(units: Units, seed: int) -> Tensor:
    """Return a permutation of 0 to count - 1 that depends only on the seed and the name of the units."""
    named = hashlib.sha256(f"{seed} {units.name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(named[:8], "little", signed=True))
    count = len(units.sizes)
    return (torch.randperm(count, generator=generator) + 0.5).double() / max(count, 1)


def wanda_scores(model: nn.Module, units: Units, norms: Mapping[str, tuple[Target, Tensor]]) -> Tensor:
    """Return the mean of |w| times the norm of its input, ``[K]`` by path; biases, which have no input, count 0."""

    def values(path: str, name: str) -> Tensor:
        parameter = parameter_at(model, (path, name)).detach().abs()
        if name != "weight" or path not in norms:
            return torch.zeros_like(parameter)
        target, norm = norms[path]
        return target.weight_of(target.matrix(parameter) * norm.to(parameter.device, parameter.dtype))

    return _mean(units, units.sums(values))


def taylor_sums(units: Units, products: Callable[[str, str], Tensor]) -> Tensor:
    """Return |sum of w g| / size for every unit; ``products``: returns w g of a parameter."""
    return _mean(units, units.sums(products).abs())


def movement_sums(units: Units, products: Callable[[str, str], Tensor]) -> Tensor:
    """Return minus the mean of w g of every unit."""
    return -_mean(units, units.sums(products))


def _mean(units: Units, sums: Tensor) -> Tensor:
    if isinstance(units, MatrixUnits) and units.granularity.kind in ("element", "N:M"):
        return sums
    return sums / units.sizes.to(sums.device, sums.dtype)


def weighs_inputs(model: nn.Module, path: str, name: str) -> bool:
    """Whether a parameter is a weight that multiplies the input of a layer."""
    kind = kind_of(model.get_submodule(path))
    return name == "weight" and kind is not None and not kind.is_lookup


def input_norms(
    model: nn.Module, targets: Sequence[Target], batches: Batches, show: Stages
) -> dict[str, tuple[Target, Tensor]]:
    """Return for each target, by path, the norms of its inputs over all batches, float64 ``[K]``.

    Raises ModelError for layers whose product is not one matrix product, CalibrationError for layers that were not
    called.
    """
    sums: dict[str, Tensor] = {}
    batches = unpadded(model, batches)

    def watch(target: Target) -> Any:
        def see(layer: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            x = arguments[0] if arguments else next(iter(keywords.values()))
            try:
                rows = target.view.input_rows(seen_of(x.detach()).float())
            except FormatError:
                raise ModelError(
                    f"{target.path}: wanda weighs inputs that one matrix multiplies, and those of this "
                    f"{target.kind} are none; take magnitude, or leave it out of targets"
                ) from None
            squares = ordered_sum(rows.double().square(), 0)
            sums[target.path] = sums[target.path] + squares if target.path in sums else squares

        return see

    handles = [target.layer.register_forward_pre_hook(watch(target), with_kwargs=True) for target in targets]
    try:
        with undisturbed(model):
            run(model, batches, show, "weighing inputs")
    finally:
        for handle in handles:
            handle.remove()
    for target in targets:
        if target.path not in sums:
            raise CalibrationError(
                f"{target.path}: got no calibration data, the layer was never called; leave it out of targets, or give "
                "batches that reach it"
            )
    return {target.path: (target, sums[target.path].sqrt()) for target in targets}


def taylor_scores(
    model: nn.Module, units: Sequence[Units], batches: Batches, loss: Loss | None, show: Stages
) -> list[Tensor]:
    """Return the scores of ``taylor``, averaged over the batches. Raises ModelError if no weight gets a gradient."""
    places = list(dict.fromkeys(place for one in units for place in one.places))
    weights = [parameter_at(model, place) for place in places]
    totals: list[Tensor | None] = [None] * len(units)
    count = 0
    stage = show.stage("weighing gradients", len(batches))
    with undisturbed(model), torch.enable_grad(), _requiring_gradients(weights), stage as advance:
        for batch in batches:
            value = _loss_of(model, batch, loss)
            if not value.requires_grad:
                raise ModelError(
                    "taylor: the loss has no gradient; it is to be made from the model's output, outside of "
                    "torch.inference_mode"
                )
            gradients = torch.autograd.grad(value, weights, allow_unused=True)
            if all(gradient is None for gradient in gradients):
                raise ModelError("taylor: the loss depends on none of the weights to prune")
            products = {
                place: weight.detach() * (0 if gradient is None else gradient)
                for place, weight, gradient in zip(places, weights, gradients, strict=True)
            }
            for number, one in enumerate(units):
                scores = taylor_sums(one, lambda path, name: products[path, name])  # noqa: B023 - called here
                total = totals[number]
                totals[number] = scores if total is None else total + scores
            count += 1
            advance()
    return [total / count for total in totals if total is not None]


def _loss_of(model: nn.Module, batch: Any, loss: Loss | None) -> Tensor:
    value = call_on(model, batch) if loss is None else loss(model, batch)
    if loss is None:
        value = getattr(value, "loss", None)
    if not isinstance(value, Tensor) or value.ndim:
        raise ModelError(
            f"taylor needs a loss, a tensor of shape (); got a {type(value).__name__}: give loss=function(model, "
            "batch), or batches with labels of a model of transformers"
        )
    return value


@contextmanager
def _requiring_gradients(weights: Sequence[nn.Parameter]) -> Iterator[None]:
    """Enable gradients of frozen weights inside."""
    frozen = [weight for weight in weights if not weight.requires_grad]
    for weight in frozen:
        weight.requires_grad_(True)
    try:
        yield
    finally:
        for weight in frozen:
            weight.requires_grad_(False)


def gathered_products(model: nn.Module) -> Callable[[str, str], Tensor]:
    """Return a function from a parameter to w g with the gradient in ``grad``; zeros without a gradient."""

    def products(path: str, name: str) -> Tensor:
        parameter = parameter_at(model, (path, name))
        if parameter.grad is None:
            return torch.zeros_like(parameter)
        return parameter.detach() * parameter.grad

    return products


def name_of(place: Place) -> str:
    """Return the full name of a parameter."""
    return join(*place)
