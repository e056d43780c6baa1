"""Measured divergences: what each format does to each group of layers, one at a time, on calibration data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from octavo.data.batches import Batches
from octavo.display.progress import Report, Stages
from octavo.errors import ConfigError
from octavo.graph.tensor_statistics import Statistics
from octavo.nn.meta_tensors import refuse_meta
from octavo.nn.model_copies import shared_copy
from octavo.quant.calibration import Products, seen_of, undisturbed
from octavo.recipe.rule import KEEP, read_spec, spec_text
from octavo.recipe.sites import Site
from octavo.recipe.spec import Spec
from octavo.search.fingerprints import identity_of, warn_of_unknown
from octavo.search.fisher_scores import fisher_scores
from octavo.search.forked_workers import check_workers, measured_by
from octavo.search.journal import Journal
from octavo.search.layer_groups import Found, LayerGroup, find_groups
from octavo.search.layer_sensitivity import ROLES, Sensitivity
from octavo.search.output_divergence import Output
from octavo.search.prefix_cache import SharedPasses
from octavo.search.rounded_layers import input_of, input_quantizer, rounded_weight, rounds_input, simulated
from octavo.storage.arguments import checks_arguments
from octavo.tensors.formats import Format
from octavo.train.unpadded_samples import unpadded

METHODS = ("divergence", "fisher")
_FORMAT_TEXT = 4  # bytes of a static scale, beside the text of its format


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
    """Return what every format costs every group of layers of a float model, in loss and in bytes.

    One group is rounded at a time, and the outputs are compared with those of the float model: relative entropy of
    scores (``kl``), 1 - cosine of embeddings (``cosine``); ``divergence`` and ``output``, a function of the model's
    output and the batch that returns ``[rows, channels]``, decide otherwise. ``batches``: as for
    :func:`octavo.quantize_model`, ``samples`` of them. ``formats``: as recipes write them, ``int4:g32@mse``; ``keep``
    is always among them. ``roles``: ``weight``, ``input`` or both. Layers that read one tensor, that hold one
    parameter, and experts of a mixture form one group, and so do layers that a selector of ``share`` names; those that
    ``exclude`` names stay. ``method`` ``fisher``: an estimate from one backward pass a batch, instead of a forward pass
    for each group and format.

    Only what comes after the changed layer runs; ``notes`` of the result tell where that was not possible. ``workers``:
    processes that measure, forks of this one with a thread each; for models on the CPU. ``journal``:
    a folder, or an open Journal: what was measured is found there again, after ``kill -9`` too. ``subject``: a
    text that names the model, the data and ``output`` there; without it they are known by content, and an
    IdentityWarning names what has none that can be read. The model is never written: a copy of its modules, over the
    memory of its parameters, is measured.

    Raises ConfigError, FormatError, ModelError and DTypeError for arguments that do not fit, CalibrationError for
    batches that the model cannot take.
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
    model = shared_copy(model)
    refuse_meta(model, "measure_sensitivity")
    data = list(unpadded(model, Batches(batches, samples)))
    found = find_groups(model, data[0], roles, share, exclude)
    show = Stages(progress)
    with undisturbed(model):
        if journal is not None and method != "fisher" and not subject:
            known = identity_of(model=model, data=data, output=output)
            warn_of_unknown(known.unknown)
            subject = str(known)
        run = _Run(model, data, found, specs, output, divergence, show)
        if method == "fisher":
            loss = fisher_scores(model, data, found.groups, run.passes.reader, run.rounded, specs, show)
        else:
            loss = _measured(run, journal, subject, show, workers)
    return Sensitivity(
        groups=tuple(group.group for group in found.groups),
        formats=(*(spec_text(spec) for spec in specs), KEEP),
        loss=np.column_stack([loss, np.zeros(len(loss))]),
        nbytes=np.array([[*(_nbytes(group, spec) for spec in specs), group.held] for group in found.groups]),
        fixed_nbytes=found.fixed_nbytes,
        parameters=found.parameters,
        divergence=run.passes.reader.kind,
        method=method,
        kept=found.kept,
        notes=(*found.notes, *run.passes.notes, *_without_effect(found, loss)),
    )


def _specs(formats: Iterable[str | Format | Spec]) -> list[Spec]:
    given = [formats] if isinstance(formats, str | Format | Spec) else list(formats)
    specs = list(dict.fromkeys(spec for text in given if (spec := read_spec(text)) is not None))
    if not specs:
        raise ConfigError("no format to measure; give some, such as 'int4:g32', 'int8:channel', 'nf4'")
    return specs


def _nbytes(found: LayerGroup, spec: Spec) -> int:
    """Return the bytes of a group in a format on disk; of inputs those of their fixed scales."""
    if found.group.role == "input":
        fixed = spec.calibration is not None and spec.format.scale_type is not None
        return len(found.sites) * (_FORMAT_TEXT + len(str(spec.format))) if fixed else 0
    return sum(site.nbytes(spec.format) for site in found.unique)


def _without_effect(found: Found, loss: np.ndarray[Any, Any]) -> Iterator[str]:
    still = [group.group.name for group, row in zip(found.groups, loss, strict=True) if not np.nan_to_num(row).any()]
    if still:
        yield f"no format of these changes the output on this data: {', '.join(still[:6])}"


class _Run:
    """The model, its data and its cached passes, and each group in each format."""

    def __init__(
        self, model: nn.Module, batches: list[Any], found: Found, specs: list[Spec], output: Output | None,
        divergence: str | None, show: Stages,
    ) -> None:  # fmt: skip
        """Run the batches through the float model."""
        self.model, self.found, self.specs = model, found, specs
        self._seen: dict[str, Statistics] = {}
        self._hessians: tuple[LayerGroup | None, dict[str, Tensor]] = (None, {})
        layers = {model.get_submodule(site.module): site for group in found.groups for site in group.sites}
        with show.stage("running the float model", len(batches)) as advance:
            self.passes = SharedPasses(model, batches, layers, output=output, divergence=divergence, advance=advance)
        inputs = {module for group in found.groups if group.group.role == "input" for module in self.modules(group)}
        if inputs and any(spec.calibration is not None and spec.format.scale_type is not None for spec in specs):
            with _hooked(list(inputs), lambda module, x: self._see(layers[module].module, x)):
                for _ in self.passes.rows([]):
                    pass

    def _see(self, path: str, x: Tensor) -> None:
        self._seen.setdefault(path, Statistics()).add(seen_of(x), f"{path}: input")

    def modules(self, found: LayerGroup) -> list[nn.Module]:
        """Return the layers of a group."""
        return [self.model.get_submodule(site.module) for site in found.sites]

    def rounded(self, found: LayerGroup, spec: Spec) -> dict[Site, Any] | None:
        """Return what each tensor of a group becomes: a weight, or the quantizer of an input; None if it cannot be."""
        made: dict[Site, Any] = {}
        for site in found.unique if found.group.role == "weight" else found.sites:
            one: Any
            if found.group.role == "weight":
                one = rounded_weight(self.model, site, spec, partial(self._hessian, found, site, spec))
            else:
                one = input_quantizer(site, spec, self._seen.get(site.module))
            if one is None:
                return None
            made[site] = one
        return made

    def _hessian(self, found: LayerGroup, site: Site, spec: Spec) -> Tensor:
        """Return the Hessian of a layer's inputs in the float model; those of one group are kept at a time."""
        if self._hessians[0] is not found:
            products = {
                self.model.get_submodule(one.module): Products(
                    simulated(self.model.get_submodule(one.module), spec, one.module)
                )
                for one in found.unique
                if not one.is_lookup
            }
            with _hooked(list(products), lambda module, x: products[module].add(x)):
                for _ in self.passes.rows(list(products)):
                    pass
            named = {one.module: products.get(self.model.get_submodule(one.module)) for one in found.unique}
            self._hessians = (found, {path: made.hessian() for path, made in named.items() if made is not None})
        return self._hessians[1][site.module]

    def divergence(self, found: LayerGroup, spec: Spec) -> float:
        """Return the mean divergence with one group rounded; NaN where it cannot be."""
        made = self.rounded(found, spec)
        if made is None:
            return math.nan
        with _changed(self.model, found, made):
            return self.passes.divergence(self.modules(found))


@contextmanager
def _changed(model: nn.Module, found: LayerGroup, made: dict[Site, Any]) -> Iterator[None]:
    """Put rounded weights in place of a group's, or round its inputs, inside: of the copy that is measured."""
    with ExitStack() as stack:
        for site, one in made.items():
            if found.group.role == "weight":
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


def _measured(
    run: _Run, given: Journal | Path | str | None, subject: str, show: Stages, workers: int
) -> np.ndarray[Any, Any]:
    """Measure group after group, format after format, what the journal does not hold yet."""
    groups, specs = run.found.groups, run.specs
    loss = np.full((len(groups), len(specs)), math.nan)

    def settings(row: int, column: int) -> dict[str, Any]:
        group = groups[row].group
        return {
            "sensitivity": subject, "role": group.role, "layers": list(group.layers),
            "format": str(specs[column]), "divergence": run.passes.reader.kind,
        }  # fmt: skip

    with ExitStack() as stack:
        journal = given if isinstance(given, Journal) or given is None else stack.enter_context(Journal(given))
        advance = stack.enter_context(show.stage("measuring sensitivity", loss.size))
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
