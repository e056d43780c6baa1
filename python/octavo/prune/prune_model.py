"""prune_model: masks by a criterion, at once or gradually in training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from octavo.data.batches import Batches
from octavo.display.progress import Report, Stages
from octavo.errors import CalibrationError, ModelError
from octavo.nn.masks import ATTRIBUTE, Masks, masks_of, require_zero, watch_tied
from octavo.nn.meta_tensors import refuse_meta
from octavo.nn.model_copies import deep_copy
from octavo.nn.quant_layer import QuantLayer
from octavo.nn.quantizer import Quantizer
from octavo.prune.granularity import Granularity, MatrixUnits, Units
from octavo.prune.groups import Group, Kind, groups
from octavo.prune.importance import (
    CRITERIA,
    GATHERED,
    Loss,
    gathered_products,
    input_norms,
    magnitudes,
    movement_sums,
    name_of,
    random_scores,
    taylor_scores,
    taylor_sums,
    wanda_scores,
    weighs_inputs,
)
from octavo.prune.ranking import SCOPES, Ranked, prune_local, prune_n_of_m, prune_together
from octavo.prune.rescale import rescale
from octavo.prune.sparsity_schedule import Schedule
from octavo.prune.structure_units import structure_units
from octavo.prune.target_layers import Sparsity, Targets, check_sparsity, selected_layers, target_of
from octavo.storage.arguments import checks_arguments

_NOTE = "_octavo_pruning"


@checks_arguments
def prune_model(
    model: nn.Module,
    sparsity: Sparsity | None = None,
    *,
    criterion: str = "magnitude",
    granularity: str = "element",
    scope: str | None = None,
    schedule: Schedule | None = None,
    targets: Targets = None,
    floor: float = 0.01,
    seed: int = 0,
    calibration: Iterable[Any] | None = None,
    samples: int | None = 128,
    loss: Loss | None = None,
    inputs: Any = None,
    inplace: bool = False,
    progress: bool | Report = True,
) -> nn.Module:
    """Return ``model`` with masks that prune a share of its weights; pruned weights are set to 0.

    Exactly ``round(sparsity * n)`` of n units are pruned; ties are broken by the lower index. Biases are pruned with
    structures alone. Simulated quantized layers are pruned before their quantizer: the mask is chosen on the float
    weight, and static scales of the weight are chosen again. Weights pruned by an earlier call stay pruned. After an
    error the model is unchanged.

    Source: Sun et al. 2023, Wanda; Molchanov et al. 2019 (``taylor``); Sanh et al. 2020 (``movement``).

    Args:
        model: float or simulated.
        sparsity: share of units to prune, 0 to below 1; or selector to share, where the last selector that matches a
            layer decides. N:M needs none.
        criterion: ``magnitude`` (L1), ``random`` (from ``seed``), ``wanda`` and ``taylor`` (from ``calibration``),
            ``movement`` (accumulated in training, with a schedule).
        granularity: ``element``, ``row``, ``column``, ``block:RxC``, ``N:M``; or a structure, which is pruned in all of
            its tensors, biases included: ``head``, ``neuron`` (of a feed-forward layer), ``layer``.
        scope: ``local`` prunes the share of each tensor or structure (``wanda`` by element: of each row), ``global``
            ranks all units together, ``isomorphic`` the same parts of repeated blocks. Default: isomorphic for
            structures, else local.
        schedule: :class:`~octavo.prune.Cubic` or :class:`~octavo.prune.Iterative`. Masks begin with nothing pruned, and
            ``octavo.train.train(..., callbacks=[octavo.prune.callback(model)])`` prunes; runs resume bit for bit.
        targets: selectors of a recipe; default: every linear and convolutional layer.
        floor: share that each tensor keeps at least under ``global`` and ``isomorphic``.
        seed: of ``random``.
        calibration: batches, as :func:`octavo.quantize_model` takes them.
        samples: most samples of ``calibration``; None for all.
        loss: function of model and batch, for ``taylor``; default: the ``loss`` of a model of transformers.
        inputs: inputs on which structures are captured (:func:`octavo.prune.groups`); default: example inputs.
        inplace: prune ``model`` itself; else a deep copy of it.
        progress: a bar on a terminal; or a function of stage, done and total.

    Returns:
        The pruned model.

    Raises:
        ModelError: for invalid options, selectors and sparsities, and tensors on the meta device.
        FormatError: names a tensor whose format has no 0.
        CalibrationError: for missing data, and data that does not reach a layer.
        NonFiniteError: for weights or gradients with NaN or infinity.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 4, bias=False))
        >>> pruned = octavo.prune_model(model, granularity="2:4")  # two of each four, as sparse tensor cores take them
        >>> (pruned[0].weight != 0).view(4, 2, 4).sum(-1).tolist()
        [[2, 2], [2, 2], [2, 2], [2, 2]]
        >>> octavo.prune_model(model, 1.5)
        Traceback (most recent call last):
        octavo.errors.ModelError: sparsity is 1.5; accepted are shares from 0 to below 1
    """
    kind = Granularity.parse(granularity)
    pruning = Pruning(
        _sparsity(sparsity, granularity), criterion, granularity, scope, schedule, targets, floor, seed, calibration,
        samples, loss,
    )  # fmt: skip
    selected_layers(model, targets, pruning.sparsity)  # raises errors before the model is copied
    refuse_meta(model, "prune_model")
    if kind.is_structure:
        pruning = replace(pruning, groups=tuple(groups(model, inputs, kinds=[cast("Kind", kind.kind)])))
    if not inplace:
        model = deep_copy(model)
    units = pruning.units(model)
    if schedule is None:
        pruning.prune(model, units, Stages(progress))
    else:
        pruning.begin(model, units)
    watch_tied(model)
    vars(model)[_NOTE] = pruning
    return model


@checks_arguments
def callback(model: nn.Module) -> Pruning:
    """Return the callback of :func:`octavo.train.train` that prunes ``model`` in training.

    In a custom loop, call ``callback(model)(model, step)`` before update ``step``, from 0, and for ``taylor`` and
    ``movement`` ``.gradients(model, step)`` between backward and the optimizer's step.

    Args:
        model: of :func:`octavo.prune_model` with a schedule.

    Returns:
        The callback.

    Raises:
        ModelError: for a model without a schedule.

    Example:
        >>> schedule = octavo.prune.Cubic(steps=4)
        >>> model = octavo.prune_model(nn.Sequential(nn.Linear(64, 64)), 0.9, schedule=schedule)
        >>> prune, shares = octavo.prune.callback(model), []
        >>> for step in range(5):
        ...     prune(model, step)
        ...     shares.append(round(octavo.prune.report(model).sparsity, 2))
        >>> shares
        [0.0, 0.52, 0.79, 0.89, 0.9]
    """
    pruning = vars(model).get(_NOTE)
    if not isinstance(pruning, Pruning) or pruning.schedule is None:
        raise ModelError(
            f"{type(model).__name__}: has no schedule to prune by; octavo.prune_model(schedule=) gives one"
        )
    return pruning


@dataclass(frozen=True, eq=False)
class Pruning:
    """The validated options of :func:`prune_model`; with a schedule, the callback that prunes in training."""

    sparsity: Sparsity
    criterion: str
    granularity: str
    scope: str | None
    schedule: Schedule | None
    targets: Targets
    floor: float
    seed: int
    calibration: Iterable[Any] | None = field(repr=False)
    samples: int | None
    loss: Loss | None = field(repr=False)
    groups: tuple[Group, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        """Check options that need no model."""
        check_options(self.sparsity, self.criterion, self.granularity, self.scope, self.floor, self.seed)
        if self._kind.kind == "N:M" and self.schedule is not None:
            raise ModelError(f"granularity {self.granularity} has one sparsity; leave schedule out")
        if self.criterion == "movement" and self.schedule is None:
            raise ModelError("movement is gathered in training; give schedule=, such as octavo.prune.Cubic(steps=1000)")
        needs = self.criterion == "wanda" or (self.criterion == "taylor" and self.schedule is None)
        if needs and self.calibration is None:
            raise CalibrationError(f"criterion {self.criterion} needs data; give prune_model calibration=batches")

    @property
    def _kind(self) -> Granularity:
        return Granularity.parse(self.granularity)

    def __deepcopy__(self, memo: dict[int, Any]) -> Pruning:
        """Return itself: options are immutable, and calibration data is no part of the model."""
        return self

    @checks_arguments
    def units(self, model: nn.Module) -> list[Units]:
        """Return the units of every target.

        Args:
            model: the model to prune.

        Returns:
            Units by tensor or structure.

        Raises:
            ModelError: as :func:`prune_model`, before anything is changed.
            FormatError: as :func:`prune_model`, before anything is changed.
        """
        layers = selected_layers(model, self.targets, self.sparsity)
        units: Sequence[Units]
        if self._kind.is_structure:
            units = structure_units(model, self.groups, layers)
        else:
            units = [MatrixUnits(target_of(model, path, share), self._kind) for path, share in layers.items()]
        for one in units:
            for place in one.places:
                _check_format(model, place)
        return list(units)

    @checks_arguments
    def begin(self, model: nn.Module, units: list[Units]) -> None:
        """Create the mask of every target, and buffers for scores that are accumulated in training.

        Args:
            model: the model to prune.
            units: of :meth:`units`.
        """
        for one in units:
            for path, name in one.places:
                layer = model.get_submodule(path)
                own = masks_of(layer, path)
                own.put(layer, name, own.keep(layer, name))
            if self.criterion in GATHERED:
                self._gathered(model, one)

    def _gathered(self, model: nn.Module, units: Units) -> Tensor:
        path, name = units.home
        layer = model.get_submodule(path)
        return masks_of(layer, path).scores(name, len(units.sizes), layer.get_parameter(name))

    # --- in training ------------------------------------------------------------------------------------------------

    def __call__(self, model: nn.Module, step: int) -> None:
        """Prune to the sparsity of the schedule before update ``step``."""
        assert self.schedule is not None  # callback gives no other
        if self.schedule.share(step, 0.0) is not None:
            self.prune(model, self.units(model), Stages(False), step)

    @checks_arguments
    def gradients(self, model: nn.Module, step: int) -> None:
        """Accumulate scores from the gradients of an update, before the optimizer uses them.

        Args:
            model: the model to prune.
            step: number of the update, from 0.
        """
        if self.criterion not in GATHERED or self.schedule is None or step >= self.schedule.last:
            return
        products = gathered_products(model)
        of = taylor_sums if self.criterion == "taylor" else movement_sums
        with torch.no_grad():
            for one in self.units(model):
                self._gathered(model, one).add_(of(one, products))

    # --- pruning ----------------------------------------------------------------------------------------------------

    @checks_arguments
    def prune(self, model: nn.Module, units: list[Units], show: Stages, step: int | None = None) -> None:
        """Write the masks of the options; with a schedule, those of a step.

        Args:
            model: the model to prune.
            units: of :meth:`units`.
            show: where progress is shown.
            step: number of the update, from 0.

        Raises:
            ModelError: for a step at which the schedule prunes nothing.
            CalibrationError: as :func:`prune_model`.
            NonFiniteError: as :func:`prune_model`.
        """
        with torch.no_grad():
            ranked = self._ranked(model, units, show, step)
            chosen = self._chosen(units, ranked)
        for one, pruned in zip(units, chosen, strict=True):
            for (path, name), elements in one.elements(pruned).items():
                layer = model.get_submodule(path)
                own = masks_of(layer, path)
                own.put(layer, name, own.keep(layer, name) & ~elements)
        for path in dict.fromkeys(path for one in units for path, _ in one.places):
            rescale(model.get_submodule(path), path)

    def _ranked(self, model: nn.Module, units: list[Units], show: Stages, step: int | None) -> list[Ranked]:
        def gone(path: str, name: str) -> Tensor:
            layer = model.get_submodule(path)
            own = getattr(layer, ATTRIBUTE, None)
            if isinstance(own, Masks):
                return ~own.keep(layer, name)
            return torch.zeros_like(layer.get_parameter(name), dtype=torch.bool)

        by_row = self.criterion == "wanda" and self._kind.kind == "element" and self.scope in (None, "local")
        ranked = []
        for one, scores in zip(units, self._scores(model, units, show), strict=True):
            share = one.sparsity
            if self.schedule is not None and step is not None:
                grown = self.schedule.share(step, share)
                if grown is None:
                    raise ModelError(f"step is {step}: the schedule prunes nothing there")
                share = grown
            past = one.whole(gone)
            wide = scores if scores.dtype == torch.float64 else scores.float()
            rows = one.target.shape[0] if by_row and isinstance(one, MatrixUnits) else 1
            ranked.append(Ranked(one.name, one.cohort, share, wide.to(past.device), past, rows))
        return ranked

    def _scores(self, model: nn.Module, units: list[Units], show: Stages) -> list[Tensor]:
        if self.criterion == "magnitude":
            return [magnitudes(model, one) for one in units]
        if self.criterion == "random":
            return [random_scores(one, self.seed) for one in units]
        if self.schedule is not None and self.criterion in GATHERED:
            return [self._gathered(model, one) for one in units]
        batches = Batches(self.calibration, self.samples)
        if self.criterion == "taylor":
            return taylor_scores(model, units, batches, self.loss, show)
        paths = dict.fromkeys(path for one in units for path, name in one.places if weighs_inputs(model, path, name))
        norms = input_norms(model, [target_of(model, path, 0.0) for path in paths], batches, show)
        return [wanda_scores(model, one, norms) for one in units]

    def _chosen(self, units: list[Units], ranked: list[Ranked]) -> list[Tensor]:
        if self._kind.kind == "N:M":
            keep, group = self._kind.sizes or (1, 1)
            columns = [one.target.shape[1] if isinstance(one, MatrixUnits) else 1 for one in units]
            return [prune_n_of_m(one, width, keep, group) for one, width in zip(ranked, columns, strict=True)]
        scope = self.scope or ("isomorphic" if self._kind.is_structure else "local")
        if scope == "local":
            return [prune_local(one) for one in ranked]
        cohorts: dict[tuple[object, ...], list[int]] = {}
        for number, one in enumerate(ranked):
            cohorts.setdefault((one.sparsity, one.cohort if scope == "isomorphic" else ()), []).append(number)
        chosen: dict[int, Tensor] = {}
        for numbers in cohorts.values():
            together = prune_together([ranked[number] for number in numbers], self.floor)
            chosen |= dict(zip(numbers, together, strict=True))
        return [chosen[number] for number in range(len(ranked))]


def check_options(
    sparsity: Sparsity | None, criterion: str, granularity: str, scope: str | None, floor: float, seed: int
) -> None:
    """Check the options that need neither model nor data. Raises ModelError."""
    for name, value, accepted in (("criterion", criterion, CRITERIA), ("scope", scope, SCOPES)):
        if value not in accepted and not (name == "scope" and value is None):
            raise ModelError(f"unknown {name} {value!r}; accepted are {', '.join(accepted)}")
    shares = _sparsity(sparsity, granularity)
    if not isinstance(shares, Mapping):
        check_sparsity(shares)
    if Granularity.parse(granularity).kind == "N:M" and scope not in (None, "local"):
        raise ModelError(f"granularity {granularity} ranks inside its groups; leave scope={scope!r} out")
    check_sparsity(floor, "floor")
    if not isinstance(seed, int):
        raise ModelError(f"seed is {seed!r}; accepted are whole numbers")


def _sparsity(sparsity: Sparsity | None, granularity: str) -> Sparsity:
    """Return the share to prune; N:M implies one. Raises ModelError if they contradict each other."""
    kind = Granularity.parse(granularity)
    if kind.kind != "N:M" or kind.sizes is None:
        if sparsity is None:
            raise ModelError("no sparsity given; it is a share from 0 to below 1, such as 0.5")
        return sparsity
    share = 1 - kind.sizes[0] / kind.sizes[1]
    if sparsity is None:
        return share
    for value in sparsity.values() if isinstance(sparsity, Mapping) else [sparsity]:
        if value != 0 and not math.isclose(value, share):
            raise ModelError(f"sparsity is {value!r}, and {granularity} prunes {share:g}; leave sparsity out")
    if isinstance(sparsity, Mapping):
        return {selector: share if value else value for selector, value in sparsity.items()}
    return share if sparsity else sparsity


def _check_format(model: nn.Module, place: tuple[str, str]) -> None:
    """Refuse a quantized parameter whose format has no 0."""
    layer = model.get_submodule(place[0])
    quantizer = getattr(layer, f"{place[1]}_quantizer", None) if isinstance(layer, QuantLayer) else None
    if isinstance(quantizer, Quantizer):
        require_zero(quantizer.format, name_of(place))
