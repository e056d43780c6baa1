"""tune: better codes for a fixed assignment, by GPTQ, HQQ and bias correction, each kept only if it helps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import nn

from octavo.data.batches import Batches, call_numbered
from octavo.data.kept_trees import KeptTrees
from octavo.display.notebook import InNotebooks
from octavo.display.progress import Report, Stages
from octavo.errors import CalibrationError, ConfigError, DTypeError, FormatError, ModelError, NonFiniteError
from octavo.nn.model_copies import deep_copy, shared_copy
from octavo.nn.registry import kind_of
from octavo.quant.algorithms.bias import correct_bias_model
from octavo.quant.apply_recipe import quantized_beside
from octavo.quant.calibration import undisturbed
from octavo.recipe import Recipe
from octavo.recipe.fit import misfit
from octavo.recipe.rule import KEEP, read_spec
from octavo.recipe.spec import Calibration, Spec
from octavo.search.assignment_recipe import to_recipe
from octavo.search.kept_solutions import KeptSolutions
from octavo.search.layer_sensitivity import Group, Sensitivity
from octavo.search.output_divergence import Output, Reader, reader_of
from octavo.search.pareto_front import Point
from octavo.search.rounded_layers import rounded_once, simulated
from octavo.search.solver_parts import parts_of, swapped_parts
from octavo.storage.arguments import checks_arguments
from octavo.train.concurrent_batches import in_turn, run_batches
from octavo.train.unpadded_samples import parted

if TYPE_CHECKING:
    from rich.table import Table

METHODS = ("gptq", "hqq", "bias")
_UNFIT = (CalibrationError, DTypeError, FormatError, ModelError, NonFiniteError)  # errors of an inapplicable method
_CHOSEN = ("gptq", "hqq", "mse", "kl", "quantile", "minmax")  # methods that choose codes or scales of a weight
_FEW = 4  # layers in a line
_HELD_OUT = 4  # one of this many samples is held out of the solvers and evaluates


@dataclass(frozen=True)
class Step:
    """One attempt: ``method`` on ``formats``, the loss with it, and whether it was kept."""

    method: str
    formats: tuple[str, ...]
    loss: float
    kept: bool


@dataclass(frozen=True)
class Tuned(InNotebooks):
    """The result of :func:`tune`. ``model``: quantized, not packed. ``recipe``: its formats and solvers.

    ``before``, ``loss``: divergence from the float model without any method, and with the methods that were kept.
    Corrected biases are only in the model; a recipe cannot express them. ``left_out``: methods that do not fit a layer
    or a model, each with the reason.
    """

    model: nn.Module
    recipe: Recipe
    before: float
    loss: float
    steps: tuple[Step, ...]
    left_out: tuple[tuple[str, str], ...] = ()

    def to_table(self) -> Table:
        """Return one row for each attempt.

        Returns:
            A table of rich.
        """
        from octavo.display.console import table

        rows = table("method", "formats", ">loss", "kept")
        rows.add_row("rounding", "all", f"{self.before:.3e}", "")
        for step in self.steps:
            rows.add_row(step.method, ", ".join(step.formats), f"{step.loss:.3e}", "yes" if step.kept else "no")
        return rows

    def __str__(self) -> str:
        """Return the table as plain text, and a line for each method that was left out."""
        from octavo.display.console import plain_text

        return "\n".join([plain_text(self.to_table()), *(f"{name}: left out, {why}" for name, why in self.left_out)])


@checks_arguments
def tune(
    model: nn.Module,
    point: Point | Mapping[str, str],
    sensitivity: Sensitivity,
    batches: Iterable[Any],
    *,
    methods: Sequence[str] = METHODS,
    output: Output | None = None,
    divergence: str | None = None,
    samples: int | None = 128,
    parts: int = 8,
    progress: bool | Report = True,
) -> Tuned:
    """Return a float model quantized by an assignment, with the methods that beat plain rounding in the same run.

    A method is kept only where it lowers the divergence from the float model on every fourth sample. Solvers do not see
    these samples if there are two samples or more. ``gptq`` and ``hqq`` solve all weights whose format takes them.
    Then the layers of one format, and one part of the model after the other, are swapped between the solved and the
    rounded model, and each has what is better. What the assignment itself names, such as ``nf4@gptq`` or
    ``int4:g32@mse``, is tried against plain rounding in the same way. ``bias`` corrects all biases, or none: the
    correction of a layer follows from those before it. Formats and bytes do not change. ``model`` is not changed:
    copies are run.

    Args:
        model: the float model of ``sensitivity``.
        point: a Point, or format texts by group.
        sensitivity: losses by group and format.
        batches: as for :func:`octavo.quantize_model`.
        methods: of ``gptq``, ``hqq`` and ``bias``, tried in this order.
        output: as for :func:`measure_sensitivity`.
        divergence: as for :func:`measure_sensitivity`.
        samples: most samples of ``batches``; None for all.
        parts: groups of consecutive blocks that are swapped apart, each of which takes a forward pass; 1: the whole
            model alone.
        progress: a bar on a terminal; or a function of stage, done and total.

    Returns:
        The quantized model, not packed, its recipe, and every attempt.

    Raises:
        ConfigError: for unknown methods and an assignment that does not fit.
        FormatError: as :func:`octavo.quantize_model`.
        CalibrationError: as :func:`octavo.quantize_model`.
        NonFiniteError: as :func:`octavo.quantize_model`.
    """
    tuned = tuned_beside(
        model, point, sensitivity, batches, methods=methods, parts=parts, output=output, divergence=divergence,
        samples=samples, store_of=lambda recipe: None, progress=progress,
    )  # fmt: skip
    return replace(tuned, model=deep_copy(tuned.model))


def solved_on(model: nn.Module, batches: Iterable[Any], samples: int | None) -> list[Any]:
    """Return the batches that solvers see in :func:`tune`."""
    return parted(model, Batches(batches, samples), _HELD_OUT)[0]


def tuned_beside(
    model: nn.Module,
    point: Point | Mapping[str, str],
    sensitivity: Sensitivity,
    batches: Iterable[Any],
    *,
    methods: Sequence[str],
    parts: int,
    output: Output | None,
    divergence: str | None,
    samples: int | None,
    store_of: Callable[[Recipe], KeptSolutions | None],
    progress: bool | Report,
) -> Tuned:
    """Return what :func:`tune` does, with a model over the memory of the float model's matrices.

    ``store_of``: the solved layers of a recipe on the samples that solvers see; None where nothing is kept.
    """
    for method in methods:
        if method not in METHODS:
            raise ConfigError(f"method {method!r} is none; accepted are {', '.join(METHODS)}")
    if parts < 1:
        raise ConfigError(f"parts is {parts}; accepted are whole numbers from 1 on")
    model = shared_copy(model)
    solved, judged = parted(model, Batches(batches, samples), _HELD_OUT)
    loss_of = judge(model, judged, output, divergence)
    choice = dict(point.choice if isinstance(point, Point) else point)
    show = Stages(progress)

    def built(choice: Mapping[str, str]) -> nn.Module:
        recipe = to_recipe(choice, sensitivity)
        return quantized_beside(model, recipe, calibration=solved, samples=None, store=store_of(recipe))

    called = _called(model, solved)
    first = built(choice)
    best = _State(choice, first, loss_of(first))
    before = best.loss
    steps: list[Step] = []
    left_out: list[tuple[str, str]] = []
    trials = _Trials(sensitivity.groups, built, loss_of, parts, steps, left_out)
    with show.stage("tuning", len(methods)) as advance:
        if methods:
            best = trials.improved("rounding", _rounded(sensitivity.groups, best.choice), best)
        for method in methods:
            try:
                if method == "bias":
                    corrected = built(best.choice)
                    correct_bias_model(corrected, model, solved, samples=None, progress=False)
                    now = loss_of(corrected)
                    steps.append(Step(method, (), now, now < best.loss))
                    best = _State(best.choice, corrected, now) if now < best.loss else best
                else:
                    changes = _changes(model, sensitivity.groups, method, best.choice, called, left_out)
                    best = trials.improved(method, changes, best)
            except _UNFIT as error:  # the model without the method was built before
                left_out.append((method, str(error)))
            advance()
    return Tuned(best.model, to_recipe(best.choice, sensitivity), before, best.loss, tuple(steps), tuple(left_out))


def _changes(
    model: nn.Module,
    groups: Sequence[Group],
    method: str,
    choice: Mapping[str, str],
    called: set[str],
    left_out: list[tuple[str, str]],
) -> dict[str, str]:
    """Return the format with a solver of each group that can have it; reasons for others are added to ``left_out``."""
    solver_formats: dict[str, str] = {}
    reasons: dict[str, list[str]] = {}
    for group in groups:
        spec = None if choice[group.name] == KEEP else read_spec(choice[group.name])
        solved_before = spec is not None and spec.calibration is not None and spec.calibration.method in METHODS
        if group.role != "weight" or spec is None or solved_before:
            continue
        solved = Spec(spec.format, Calibration(method))
        if (reason := _unfit(model, group, solved, method, called)) is None:
            solver_formats[group.name] = str(solved)
        else:
            reasons.setdefault(reason, []).append(group.name)
    for reason, names in reasons.items():
        more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
        left_out.append((f"{method} on {', '.join(names[:_FEW])}{more}", reason))
    return solver_formats


def _unfit(model: nn.Module, group: Group, solved: Spec, method: str, called: set[str]) -> str | None:
    """Return why a group cannot have a solver, None where it can."""
    if (problem := misfit("weight", solved)) is not None:
        return problem
    if len(group.tensors) != len(group.layers):
        return "the weight is tied: it would change for every layer that reads it"
    if method != "gptq":
        return None
    if not called.issuperset(group.layers):
        return "no batch reaches the layer, whose inputs it needs"
    for layer in group.layers:
        module = model.get_submodule(layer)
        kind = kind_of(module)
        if kind is None or kind.is_lookup:
            return "rows that are looked up have no inputs to solve for"
        if not simulated(module, Spec(solved.format), layer).has_input_rows:
            return "no one matrix multiplies the layer's input"
    return None


@dataclass(frozen=True)
class _State:
    """A model that was built by a choice of formats, and its loss."""

    choice: dict[str, str]
    model: nn.Module
    loss: float


@dataclass(frozen=True)
class _Trials:
    """What tries a change of some groups: all at once, then part by part.

    ``parts``: blocks that are tried apart at most. ``steps``, ``left_out``: get what was tried, and what was not kept.
    """

    groups: Sequence[Group]
    built: Callable[[Mapping[str, str]], nn.Module]
    loss_of: Callable[[nn.Module], float]
    parts: int
    steps: list[Step]
    left_out: list[tuple[str, str]]

    def improved(self, method: str, changes: Mapping[str, str], start: _State) -> _State:
        """Return the state of least loss. ``changes``: other formats by the name of a group."""
        if not changes:
            return start
        formats = tuple(dict.fromkeys(start.choice[name] for name in changes))
        every = self._state(start.choice | dict(changes))
        better = every.loss < start.loss
        self.steps.append(Step(method, formats, every.loss, better))
        best, other = (every, start) if better else (start, every)
        members = [group for group in self.groups if group.name in changes]
        parts = parts_of(members, start.choice, self.parts)
        taken, swaps = swapped_parts(best.model, other.model, parts, best.loss, self.loss_of)
        if not taken:
            return best
        # A layer is solved for the inputs that the layers before it leave: the mixture is made anew, and judged.
        mixed = self._state({name: (other if name in taken else best).choice[name] for name in best.choice})
        is_better = mixed.loss < best.loss
        self.steps.append(Step(method, formats, mixed.loss, is_better))
        if is_better and better:
            self.left_out.extend(
                (
                    f"{method} in {swap.part.label}",
                    f"a divergence of {swap.before:.3e} on held-out data with it, {swap.swapped:.3e} without it",
                )
                for swap in swaps
                if swap.is_better
            )
        return mixed if is_better else best

    def _state(self, choice: dict[str, str]) -> _State:
        model = self.built(choice)
        return _State(choice, model, self.loss_of(model))


def _rounded(groups: Sequence[Group], choice: Mapping[str, str]) -> dict[str, str]:
    """Return the format without its solver or criterion of each group whose format names one."""
    plain: dict[str, str] = {}
    for group in groups:
        spec = None if choice[group.name] == KEEP else read_spec(choice[group.name])
        method = None if spec is None or spec.calibration is None else spec.calibration.method
        if spec is not None and group.role == "weight" and method in _CHOSEN:
            plain[group.name] = str(spec.format)
    return plain


def _called(model: nn.Module, batches: Sequence[Any]) -> set[str]:
    """Return the paths of the modules that forward passes call; gptq needs their inputs."""
    paths: set[str] = set()
    handles = [
        module.register_forward_pre_hook(lambda _, args, path=path: paths.add(path))
        for path, module in model.named_modules()
    ]
    try:
        with undisturbed(model):
            for number, batch in enumerate(batches):
                call_numbered(model, batch, number)
    finally:
        for handle in handles:
            handle.remove()
    return paths


def judge(
    model: nn.Module, batches: Sequence[Any], output: Output | None, divergence: str | None
) -> Callable[[nn.Module], float]:
    """Return a function that gives the mean divergence of another model from ``model`` on batches."""
    readers: list[Reader] = []
    references, count = KeptTrees(), 0

    def refer(number: int, batch: Any) -> int:
        result = call_numbered(model, batch, number)
        with in_turn("references"):
            if not readers:
                readers.append(reader_of(result, batch, output, divergence))
            rows = readers[0].rows(result, batch)
            references.append(readers[0].reference(rows, narrow=references.is_full(rows.nbytes)))
        return len(rows)

    with undisturbed(model):
        for seen in run_batches(model, batches, refer):
            count += seen

    def loss_of(other: nn.Module) -> float:
        def loss(number: int, batch: Any) -> float:
            return readers[0].sum(references[number], readers[0].rows(call_numbered(other, batch, number), batch))

        with undisturbed(other), rounded_once(other):
            total = sum(run_batches(other, batches, loss))
        return total / max(count, 1)

    return loss_of
