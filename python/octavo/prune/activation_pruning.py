"""Pruning of activations: inputs of layers become 0. Independent of weight pruning, and a baseline.

``calibrated``: one threshold per layer, from calibration data. ``quantile``: the threshold is a quantile of each input,
as in MASE's toolkit by default; every forward pass computes it. ``random``: any elements, as MASE's random pruning.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from statistics import median
from typing import Any

from torch import Tensor, nn

from octavo.data.batches import Batches
from octavo.display.progress import Report as Progress
from octavo.display.progress import Stages
from octavo.errors import CalibrationError, ModelError
from octavo.graph import Report
from octavo.graph.tensor_statistics import Statistics
from octavo.nn.input_threshold import InputThreshold, RandomInputs, input_thresholds
from octavo.nn.model_copies import deep_copy, shared_copy
from octavo.prune.target_layers import Targets, check_sparsity, selected_layers
from octavo.quant.calibration import run, seen_of, undisturbed
from octavo.storage.arguments import checks_arguments
from octavo.train.unpadded_samples import unpadded

METHODS = ("calibrated", "quantile", "random")


@checks_arguments
def prune_activations(
    model: nn.Module,
    sparsity: float,
    *,
    method: str = "calibrated",
    targets: Targets = None,
    calibration: Iterable[Any] | None = None,
    samples: int | None = 128,
    seed: int = 0,
    inplace: bool = False,
    progress: bool | Progress = True,
) -> nn.Module:
    """Return the model with a share of each target's inputs set to 0, the smallest or random ones.

    This holds in training and in evaluation mode. Weights do not change. :func:`restore_activations` removes the
    thresholds. Model folders and the engine do not store them. :func:`activation_report` measures shares and time.

    Args:
        model: the model.
        sparsity: share of the inputs, 0 to below 1.
        method: ``calibrated``: a fixed threshold of ``abs(x)``, measured on ``calibration`` without pruning (within the
            error of :func:`octavo.graph.tensor_statistics`); on other data the share is approximate. ``quantile``:
            meets the share exactly except for ties, at the cost of a selection in every forward pass. ``random``: in
            training other elements for every batch, in evaluation those that ``seed`` draws.
        targets: selectors of a recipe; default: every linear and convolutional layer.
        calibration: batches, as :func:`octavo.quantize_model` takes them; ``calibrated`` alone needs them.
        samples: most samples of ``calibration``; None for all.
        seed: of ``random``.
        inplace: change ``model`` itself; else a copy.
        progress: a bar on a terminal; or a function of stage, done and total.

    Returns:
        The model.

    Raises:
        ModelError: for invalid options.
        CalibrationError: for missing data, and data that does not reach a layer.

    Example:
        >>> model = octavo.prune.prune_activations(nn.Sequential(nn.Linear(4, 4, bias=False)), 0.5, method="quantile")
        >>> _ = nn.init.eye_(model[0].weight)
        >>> model(torch.tensor([[1.0, -4.0, 3.0, -2.0]]))
        tensor([[ 0., -4.,  3.,  0.]], grad_fn=...)
    """
    if method not in METHODS:
        raise ModelError(f"unknown method {method!r}; accepted are {', '.join(METHODS)}")
    share = check_sparsity(sparsity)
    paths = list(selected_layers(model, targets, share))
    if method == "calibrated" and calibration is None:
        raise CalibrationError("method calibrated needs data; give calibration=batches, or take method='quantile'")
    if not inplace:
        model = deep_copy(model)
    restore_activations(model)
    thresholds = (
        _thresholds(model, paths, share, Batches(calibration, samples), Stages(progress))
        if method == METHODS[0]
        else {}
    )
    for number, path in enumerate(paths):
        own = (
            RandomInputs(share, seed + number) if method == METHODS[2] else InputThreshold(share, thresholds.get(path))
        )
        own.train(model.training).attach(model.get_submodule(path))
    return model


@checks_arguments
def restore_activations(model: nn.Module) -> None:
    """Remove the thresholds of :func:`prune_activations` from a model, in place.

    Args:
        model: any model.
    """
    for _, layer, own in list(input_thresholds(model)):
        own.detach(layer)


def _thresholds(model: nn.Module, paths: list[str], share: float, batches: Batches, show: Stages) -> dict[str, float]:
    """Return the quantile of the magnitudes that reach each layer."""
    seen = {path: Statistics() for path in paths}
    batches = unpadded(model, batches)

    def watch(path: str) -> Any:
        def see(layer: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            x = arguments[0] if arguments else next(iter(keywords.values()))
            seen[path].add(seen_of(x.detach()).abs(), path)

        return see

    handles = [model.get_submodule(path).register_forward_pre_hook(watch(path), with_kwargs=True) for path in paths]
    try:
        with undisturbed(model):
            run(model, batches, show, "weighing activations")
    finally:
        for handle in handles:
            handle.remove()
    missing = next((path for path, statistics in seen.items() if not statistics.count), None)
    if missing is not None:
        raise CalibrationError(f"{missing}: got no calibration data; leave it out of targets, or give other batches")
    return {path: statistics.quantile(share) for path, statistics in seen.items()}


@checks_arguments
def activation_report(model: nn.Module, batches: Iterable[Any], *, repeats: int = 5) -> Report:
    """Return for each layer with a threshold the share of zeros in its inputs, before and after.

    The last row is the model: the median milliseconds of a pass over the batches with and without thresholds, after one
    warm-up pass each. Zero activations alone save no time.

    Args:
        model: of :func:`prune_activations`.
        batches: data to measure on.
        repeats: passes that are timed.

    Returns:
        A report of rows.

    Raises:
        ModelError: if no layer has a threshold.
    """
    if repeats < 1:
        raise ModelError(f"repeats is {repeats}; accepted are whole numbers of at least 1")
    model = shared_copy(model)
    layers = list(input_thresholds(model))
    if not layers:
        raise ModelError(f"{type(model).__name__}: no layer has a threshold; octavo.prune.prune_activations makes them")
    data = Batches(list(batches), None)
    counts = {path: [0, 0, 0] for path, _, _ in layers}

    def watch(path: str) -> Any:
        def see(own: nn.Module, arguments: tuple[Tensor], result: Tensor) -> None:
            numbers = (result.numel(), int((arguments[0] == 0).sum()), int((result == 0).sum()))
            counts[path] = [before + now for before, now in zip(counts[path], numbers, strict=True)]

        return see

    quiet = Stages(False)
    with undisturbed(model):
        handles = [own.register_forward_hook(watch(path)) for path, _, own in layers]
        try:
            run(model, data, quiet, "")
        finally:
            for handle in handles:
                handle.remove()
        with_them = _milliseconds(model, data, repeats)
        for _, _, own in layers:
            own.enabled = False
        try:
            without = _milliseconds(model, data, repeats)
        finally:
            for _, _, own in layers:
                own.enabled = True
    rows: list[tuple[Any, ...]] = []
    for path, _, own in layers:
        total, before, after = counts[path]
        threshold = None if own.threshold is None else float(own.threshold)
        rows.append((path, threshold, total, before / max(total, 1), after / max(total, 1), None, None))
    rows.append(("the model", None, None, None, None, with_them, without))
    columns = ("layer", ">threshold", ">inputs", ">zeros before", ">zeros after", ">ms", ">ms without")
    return Report(columns, tuple(rows))


def _milliseconds(model: nn.Module, batches: Batches, repeats: int) -> float:
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        run(model, batches, Stages(False), "")
        times.append(1000 * (time.perf_counter() - begin))
    return median(times[1:])
