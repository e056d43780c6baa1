"""Measured divergences: the effect of each format on each group of layers, one at a time, on calibration data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from octavo.data.batches import Batches, call_numbered, samples_of
from octavo.display.progress import Report, Stages
from octavo.errors import ConfigError
from octavo.graph.tensor_statistics import Statistics
from octavo.nn.meta_tensors import refuse_meta
from octavo.nn.model_copies import shared_copy
from octavo.nn.rewriting import rewrite_modules
from octavo.quant.calibration import Products, seen_of, undisturbed
from octavo.quant.expert_ranges import share_ranges
from octavo.recipe.expert_families import expert_family
from octavo.recipe.rule import KEEP, read_spec, spec_text
from octavo.recipe.sites import Site
from octavo.recipe.spec import Spec
from octavo.search.fingerprints import identity_of, warn_of_unknown
from octavo.search.fisher_scores import fisher_scores
from octavo.search.forked_workers import check_workers, measured_by
from octavo.search.journal import Journal
from octavo.search.layer_groups import LayerGroup, ModelGroups, find_groups
from octavo.search.layer_sensitivity import ROLES, Sensitivity
from octavo.search.output_divergence import Output, Reader, reader_of
from octavo.search.prefix_cache import SharedPasses
from octavo.search.rounded_layers import input_of, input_quantizer, rounded_weight, rounds_input, simulated
from octavo.storage.arguments import checks_arguments
from octavo.tensors.formats import Format
from octavo.train.unpadded_samples import unpadded

METHODS = ("divergence", "fisher", "auto")
#: Multiply-adds of isolated divergences beyond which ``auto`` estimates: minutes on two cores.
MOST_MACS = 3 * 10**13
_SCALE_BYTES = 4  # bytes of a static scale, stored beside the text of its format


@checks_arguments
def measure_sensitivity(
    model: nn.Module,
    batches: Iterable[Any],
    formats: Iterable[str | Format | Spec],
    *,
    roles: Sequence[str] = ("weight",),
    share: Iterable[str] = (),
    exclude: Iterable[str] = (),
    method: str = "divergence",
    output: Output | None = None,
    divergence: str | None = None,
    samples: int | None = 128,
    workers: int = 1,
    journal: Journal | Path | str | None = None,
    subject: str = "",
    progress: bool | Report = True,
) -> Sensitivity:
    """Return the loss and the bytes of every group of layers of a float model in every format.

    One group is rounded at a time, and the outputs are compared with those of the float model. Layers that read one
    tensor, layers with one parameter, the experts of a mixture, and the layers that a selector of ``share`` names form
    one group. Only the modules after the changed layer run; ``notes`` of the result say where that was not possible.
    The model is never written: a copy of its modules, which shares the memory of its parameters, is measured.

    Args:
        model: a float model.
        batches: as for :func:`octavo.quantize_model`.
        formats: as recipes write them, ``int4:g32@mse``; ``keep`` is always added.
        roles: ``weight``, ``input`` or both.
        share: selectors of layers that form one group.
        exclude: selectors of layers that are not quantized.
        method: ``divergence``; or ``fisher``, an estimate from one backward pass per batch, instead of a forward pass
            for each group and format; or ``auto``: ``divergence`` unless its passes take too many multiply-adds.
        output: function of the model's output and the batch that returns the vectors to compare, ``[rows, channels]``.
        divergence: ``kl``, relative entropy of scores; ``cosine``, 1 - cosine of embeddings; or ``mse``. Default: by
            the model's outputs.
        samples: most samples of ``batches``; None for all.
        workers: processes that measure, forks of this one with a thread each; for models on the CPU.
        journal: a folder, or an open Journal, with results that are not measured again, also after ``kill -9``.
        subject: a text that names the model, the data and ``output`` in the journal. Without it they are identified by
            content, and an IdentityWarning names parts that cannot be digested.
        progress: a bar on a terminal; or a function of stage, done and total.

    Returns:
        Losses and bytes, ``[groups, formats]``.

    Raises:
        ConfigError: for arguments that do not fit.
        FormatError: for an unknown format.
        ModelError: for a model that cannot be measured.
        DTypeError: for another kind of object.
        CalibrationError: for batches that the model cannot take.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
        >>> sensitivity = octavo.search.measure_sensitivity(model, [torch.randn(16, 64)], ["mxint8", "mxint4"])
        >>> [group.name for group in sensitivity.groups], sensitivity.nbytes.tolist()
        (['0', '2'], [[4224, 2176, 16384], [528, 272, 2048]])
    """
    specs = _specs(formats)
    for role in roles:
        if role not in ROLES:
            raise ConfigError(f"role {role!r} is none that is measured; accepted are {' and '.join(ROLES)}")
    if not roles or isinstance(roles, str):
        raise ConfigError(f"roles are {roles!r}; accepted is a tuple of {' and '.join(ROLES)}")
    if method not in METHODS:
        raise ConfigError(f"method is {method!r}; accepted are {', '.join(METHODS)}")
    check_workers(workers)
    model = rewrite_modules(shared_copy(model))
    refuse_meta(model, "measure_sensitivity")
    data = list(unpadded(model, Batches(batches, samples)))
    groups = find_groups(model, data[0], roles, share, exclude)
    show, notes = Stages(progress), []
    if method == "auto":
        macs = _macs(groups, data, len(specs))
        method = "divergence" if macs <= MOST_MACS else "fisher"
        if method == "fisher":
            notes = [f"estimated by one backward pass: isolated divergences are {macs:.1e} multiply-adds"]
    with undisturbed(model):
        if journal is not None and not subject:
            known = identity_of(model=model, data=data, output=output)
            warn_of_unknown(known.unknown)
            subject = str(known)
        run = _Run(model, data, groups, specs, output, divergence, show)
        with ExitStack() as stack:
            if journal is not None and not isinstance(journal, Journal):
                journal = stack.enter_context(Journal(journal))
            if method == "fisher":
                loss = _estimated(run, data, journal, subject, show)
            else:
                run.passes  # noqa: B018 - of the model as it is, before a group is rounded
                loss = _measured(run, journal, subject, show, workers)
    return Sensitivity(
        groups=tuple(group.group for group in groups.groups),
        formats=(*(spec_text(spec) for spec in specs), KEEP),
        loss=np.column_stack([loss, np.zeros(len(loss))]),
        nbytes=np.array([[*(_nbytes(group, spec) for spec in specs), group.nbytes] for group in groups.groups]),
        fixed_nbytes=groups.fixed_nbytes,
        parameters=groups.parameters,
        divergence=run.reader.kind,
        method=method,
        kept=groups.kept,
        notes=(*notes, *groups.notes, *run.notes, *_without_effect(groups, loss)),
    )


def _macs(groups: ModelGroups, data: Sequence[Any], formats: int) -> float:
    """Return the multiply-adds of isolated divergences: each of a pass through half of the model."""
    one = sum(group.group.macs for group in groups.groups if group.group.role == "weight")
    return one * sum(max(samples_of(batch), 1) for batch in data) * len(groups.groups) * formats / 2


def _specs(formats: Iterable[str | Format | Spec]) -> list[Spec]:
    choices = [formats] if isinstance(formats, str | Format | Spec) else list(formats)
    specs = list(dict.fromkeys(spec for text in choices if (spec := read_spec(text)) is not None))
    if not specs:
        raise ConfigError("no format to measure; give some, such as 'int4:g32', 'int8:channel', 'nf4'")
    return specs


def _nbytes(group: LayerGroup, spec: Spec) -> int:
    """Return the bytes of a group in a format on disk; for inputs, the bytes of their static scales."""
    if group.group.role == "input":
        fixed = spec.calibration is not None and spec.format.scale_type is not None
        return len(group.sites) * (_SCALE_BYTES + len(str(spec.format))) if fixed else 0
    return sum(site.nbytes(spec.format) for site in group.unique)


def _without_effect(groups: ModelGroups, loss: np.ndarray[Any, Any]) -> Iterator[str]:
    still = [group.group.name for group, row in zip(groups.groups, loss, strict=True) if not np.nan_to_num(row).any()]
    if still:
        yield f"no format of these changes the output on this data: {', '.join(still[:6])}"


_HESSIAN_BYTES = 1 << 30
"""Bytes of the sums of products of a group's inputs that are gathered in one pass."""


class _Run:
    """The model, its data and its cached passes, and each group in each format."""

    def __init__(
        self, model: nn.Module, batches: list[Any], groups: ModelGroups, specs: list[Spec], output: Output | None,
        divergence: str | None, show: Stages,
    ) -> None:  # fmt: skip
        """Run the batches through the float model where inputs need scales."""
        self.model, self.groups, self.specs = model, groups.groups, specs
        self._batches, self._how, self._show = batches, (output, divergence), show
        self._seen: dict[str, Statistics] = {}
        self._hessians: tuple[tuple[Site, ...], dict[str, Tensor]] = ((), {})
        layers = self._layers = {
            model.get_submodule(site.module): site for group in groups.groups for site in group.sites
        }
        inputs = {module for group in groups.groups if group.group.role == "input" for module in self.modules(group)}
        if inputs and any(spec.calibration is not None and spec.format.scale_type is not None for spec in specs):
            with _hooked(list(inputs), lambda module, x: self._see(layers[module].module, x)):
                for _ in self.passes.rows([]):
                    pass
            experts = [path for path in (layers[module].module for module in inputs) if expert_family(path)]
            for path in experts:
                self._seen.setdefault(path, Statistics())
            share_ranges([(path, self._seen[path]) for path in experts])

    @cached_property
    def passes(self) -> SharedPasses:
        """Passes of all batches through the float model, which first run it."""
        output, divergence = self._how
        with self._show.stage("running the float model", len(self._batches)) as advance:
            return SharedPasses(
                self.model, self._batches, self._layers, output=output, divergence=divergence, advance=advance
            )

    @cached_property
    def reader(self) -> Reader:
        """How outputs are compared: as the first batch's output, or the caller, says."""
        if "passes" in vars(self):
            return self.passes.reader
        return reader_of(call_numbered(self.model, self._batches[0], 0), self._batches[0], *self._how)

    @property
    def notes(self) -> list[str]:
        """Where passes could not be shortened."""
        return self.passes.notes if "passes" in vars(self) else []

    def _see(self, path: str, x: Tensor) -> None:
        self._seen.setdefault(path, Statistics()).add(seen_of(x), f"{path}: input")

    def modules(self, group: LayerGroup) -> list[nn.Module]:
        """Return the layers of a group."""
        return [self.model.get_submodule(site.module) for site in group.sites]

    def rounded(self, group: LayerGroup, spec: Spec) -> dict[Site, Any] | None:
        """Return the rounded weights of a group, or the quantizers of its inputs; None if it cannot have the format."""
        rounding: dict[Site, Any] = {}
        for site in group.unique if group.group.role == "weight" else group.sites:
            one: Any
            if group.group.role == "weight":
                one = rounded_weight(self.model, site, spec, partial(self._hessian, group, site, spec))
            else:
                one = input_quantizer(site, spec, self._seen.get(site.module))
            if one is None:
                return None
            rounding[site] = one
        return rounding

    def _hessian(self, group: LayerGroup, site: Site, spec: Spec) -> Tensor | None:
        """Return the Hessian of a layer's inputs in the float model; the Hessians of one group are cached.

        Of many experts those are of a part, which is as much as a bound of memory holds. None of an expert that no
        token of the data reached.
        """
        if site not in self._hessians[0]:
            of_group = [one for one in group.unique if not one.is_lookup]
            most = max(1, _HESSIAN_BYTES // (8 * max(one.row for one in of_group) ** 2))
            start = of_group.index(site) // most * most
            part = tuple(of_group[start : start + most])
            products = {
                self.model.get_submodule(one.module): Products(
                    simulated(self.model.get_submodule(one.module), spec, one.module)
                )
                for one in part
            }
            with _hooked(list(products), lambda module, x: products[module].add(x)):
                for _ in self.passes.rows(list(products)):
                    pass
            named = {one.module: products[self.model.get_submodule(one.module)] for one in part}
            self._hessians = (part, {
                path: sums.hessian() for path, sums in named.items() if sums.n or expert_family(path) is None
            })  # fmt: skip
        return self._hessians[1].get(site.module)

    def divergence(self, group: LayerGroup, spec: Spec) -> float:
        """Return the mean divergence with one group rounded; NaN if the group cannot have the format."""
        rounding = self.rounded(group, spec)
        if rounding is None:
            return math.nan
        with _changed(self.model, group, rounding):
            return self.passes.divergence(self.modules(group))


@contextmanager
def _changed(model: nn.Module, group: LayerGroup, rounding: dict[Site, Any]) -> Iterator[None]:
    """Replace the weights of a group by rounded ones, or round its inputs, inside; ``model`` is the measured copy."""
    with ExitStack() as stack:
        for site, one in rounding.items():
            if group.group.role == "weight":
                parameter = site.tensor
                assert parameter is not None  # a weight has one
                stack.callback(setattr, parameter, "data", parameter.data)
                parameter.data = one
            else:
                layer = model.get_submodule(site.module)
                stack.callback(layer.register_forward_pre_hook(rounds_input(one), with_kwargs=True).remove)
        yield


@contextmanager
def _hooked(modules: Sequence[nn.Module], see: Callable[[nn.Module, Tensor], None]) -> Iterator[None]:
    handles = [
        module.register_forward_pre_hook(
            lambda layer, args, kwargs: see(layer, input_of(args, kwargs)), with_kwargs=True
        )
        for module in modules
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _estimated(
    run: _Run, data: Sequence[Any], journal: Journal | None, subject: str, show: Stages
) -> np.ndarray[Any, Any]:
    """Return the estimates of all groups and formats: those of the journal, or new ones, which are added to it."""
    settings = {
        "sensitivity": subject, "method": "fisher", "samples": sum(samples_of(batch) for batch in data),
        "groups": [[group.group.role, *group.group.layers] for group in run.groups],
        "formats": [str(spec) for spec in run.specs], "divergence": run.reader.kind,
    }  # fmt: skip
    record = None if journal is None else journal.find(settings, "row")
    if record is None:
        loss = fisher_scores(run.model, data, run.groups, run.reader, run.rounded, run.specs, show)
        if journal is not None:
            rows = [[None if math.isnan(one) else one for one in row] for row in loss.tolist()]
            journal.add(settings, row={"loss": rows})
        return loss
    assert journal is not None  # the record is of it
    with journal.decoding():
        stored = [[math.nan if one is None else float(one) for one in row] for row in record["row"]["loss"]]
        return np.array(stored).reshape(len(run.groups), len(run.specs))


def _measured(run: _Run, journal: Journal | None, subject: str, show: Stages, workers: int) -> np.ndarray[Any, Any]:
    """Return the losses of all groups and formats; those that the journal lacks are measured and added to it."""
    groups, specs = run.groups, run.specs
    loss = np.full((len(groups), len(specs)), math.nan)

    def settings(row: int, column: int) -> dict[str, Any]:
        group = groups[row].group
        return {
            "sensitivity": subject, "role": group.role, "layers": list(group.layers),
            "format": str(specs[column]), "divergence": run.passes.reader.kind,
        }  # fmt: skip

    with show.stage("measuring sensitivity", loss.size) as advance:
        left = []
        for row, column in np.ndindex(loss.shape):
            record = None if journal is None else journal.find(settings(row, column), "loss")
            if record is None:
                left.append((row, column))
                continue
            loss[row, column] = math.nan if record["loss"] is None else float(record["loss"])
            advance()
        measured = measured_by(workers, lambda at: run.divergence(groups[at[0]], specs[at[1]]), left)
        for (row, column), value in measured:
            if journal is not None:
                journal.add(settings(row, column), loss=None if math.isnan(value) else value)
            loss[row, column] = value
            advance()
    return loss
