"""``compact_model``: removes heads, neurons and layers without effect from a model; its output does not change."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from octavo.data.batches import call_on
from octavo.errors import ModelError
from octavo.graph.analysis import Report
from octavo.graph.example_inputs import example_inputs
from octavo.graph.exporting import held_tensors
from octavo.nn.masks import masked_layers
from octavo.nn.meta_tensors import refuse_meta
from octavo.nn.model_copies import deep_copy, shared_copy
from octavo.nn.registry import format_layers
from octavo.prune.configured_sizes import configure
from octavo.prune.dead_units import constants, unread
from octavo.prune.fold_model import fold_model
from octavo.prune.groups import Group, structure
from octavo.prune.removal import Removal, Removed
from octavo.prune.sizes import fit_layers, resize
from octavo.prune.stack_depth import remove_layers
from octavo.storage.arguments import checks_arguments

# Largest difference between the outputs of the model before and after, relative to the largest output.
_TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


@dataclass(frozen=True)
class CompactReport(Report):
    """The parts that :func:`compact_model` removed: a row for each group. ``parameters``: before and after."""

    parameters: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        """Return the table and the number of parameters as plain text."""
        before, after = self.parameters
        return f"{super().__str__()}\nparameters: {before:,} -> {after:,} ({after / max(before, 1):.1%})"


@checks_arguments
def compact_model(model: nn.Module, inputs: Any = None, *, inplace: bool = False) -> tuple[nn.Module, CompactReport]:
    """Remove heads, feed-forward neurons and layers without effect from a model, and report them.

    A unit is removed if all of its consumers are zero (:func:`groups`), as masks of ``prune_model`` and
    :func:`fold_model` make them, or if all of its producers are zero: its contribution is then constant and is added to
    the next bias. The same number of query heads is removed from each set that shares keys and values. At least one
    head and one neuron of a layer remain. A layer whose branches all end in zeros is removed if it is then the
    identity. Masks are folded: remaining zeros are plain weights.

    The output equals that of the model before, within 1e-5 of the largest number in float32 and 1e-10 in float64. The
    model keeps its class. Its sizes are stored with its configuration, and :func:`octavo.save_model`,
    :func:`octavo.load_model` and all commands use them.

    Args:
        model: float, pruned.
        inputs: as for :func:`octavo.graph.capture`; default: example inputs.
        inplace: change ``model`` itself; else a copy.

    Returns:
        The smaller model, and the report.

    Raises:
        DTypeError: for an argument that is no module.
        ModelError: for a model that is quantized, packed or has adapters, whose structure is unknown, or whose class
            cannot run with other sizes.
    """
    refuse_meta(model, "compact_model")
    _refuse_layers(model)
    if inplace:
        compact_model(model, inputs)  # raises any error before the model is changed
    dense, compact = (deep_copy(model), model) if inplace else (shared_copy(model), deep_copy(model))
    if next(masked_layers(compact), None) is not None:
        fold_model(compact, inplace=True)
    modes = {module: module.training for module in compact.modules()}
    dense.eval()
    compact.eval()
    try:
        report = _compact(dense, compact, _varied(dense, example_inputs(dense)) if inputs is None else inputs)
    finally:
        for module, training in modes.items():
            module.training = training
    return compact, report


def _refuse_layers(model: nn.Module) -> None:
    path = next((path for path, _ in format_layers(model)), None)
    if path is not None:
        kind = type(model.get_submodule(path)).__name__
        raise ModelError(f"{path}: a {kind}; a model is compacted before it is quantized, packed or given adapters")


def _compact(dense: nn.Module, compact: nn.Module, inputs: Any) -> CompactReport:
    parameters = dict(compact.named_parameters(remove_duplicate=False))
    before = _count(compact)
    dependencies = structure(compact, inputs)
    removals, rows = _removals(compact, dependencies.groups, parameters, inputs)
    removed: Removed = {}
    for removal in removals:
        removal.mark(parameters, removed)
        removal.set_numbers(compact)
    for (name, dim), gone in removed.items():
        remaining = (~gone).nonzero()[:, 0].to(parameters[name].device)
        resize(parameters[name], parameters[name].detach().index_select(dim, remaining))
    fit_layers(compact)
    went: list[str] = []
    rows += _remove_layers(dense, compact, dependencies.groups, parameters, went)
    if any(row[2] != row[3] for row in rows):
        _check(dense, compact, inputs)
        stay = [one for one in removals if not any(one.group.name.startswith(f"{path}.") for path in went)]
        configure(compact, _as_deep(dense, compact, dependencies.groups), [one.counts for one in stay])
    return CompactReport(
        ("kind", "where", ">before", ">after", ">zero, but there"), tuple(rows), (before, _count(compact))
    )


def _removals(
    model: nn.Module, groups: Sequence[Group], parameters: Mapping[str, nn.Parameter], inputs: Any
) -> tuple[list[Removal], list[tuple[Any, ...]]]:
    """Return the removals of each group of heads or neurons, and the rows of the report; add constants to biases."""
    single: dict[str, Group] = {}
    if any(group.queries > 1 for group in groups):
        single = {group.name: group for group in structure(model, inputs, query_heads=True).groups}
    removals: list[Removal] = []
    rows: list[tuple[Any, ...]] = []
    added: list[tuple[str, Tensor]] = []
    for group in groups:
        if group.kind == "layer":
            continue
        dead, constant = unread(group, parameters), constants(model, group, parameters, inputs)
        gone = dead | constant.units
        if bool(gone.all()):
            gone[0] = False  # one unit remains, because few classes run without any
        added += constant.added(gone & ~dead, parameters)
        removal = Removal(group, gone)
        if group.queries > 1:
            removal = removal.with_queries(single[group.name], unread(single[group.name], parameters))
        removals.append(removal)
        counts = removal.counts
        left = int(unread(single.get(group.name, group), parameters).sum()) - (counts.before - counts.after)
        rows.append((group.kind, group.name, counts.before, counts.after, max(left, 0)))
    for name, values in added:
        bias = parameters[name]
        bias.data.copy_(bias.data.double() + values.to(bias.device))
    return removals, rows


def _remove_layers(
    dense: nn.Module, compact: nn.Module, groups: Sequence[Group], parameters: Mapping[str, Tensor], went: list[str]
) -> Iterator[tuple[Any, ...]]:
    """Remove whole layers, and add their paths to ``went``; yield the rows of the report."""
    for group in groups:
        if group.kind == "layer":
            names = {unit.name: {piece.name for piece in unit.consumers} for unit in group.units}
            zero = [path for path, ends in names.items() if not any(bool(parameters[end].any()) for end in ends)]
            gone, total = remove_layers(compact, group.name, zero), len(_stack(dense, group.name))
            went += gone
            yield "layer", group.name, total, total - len(gone), len(zero) - len(gone)


def _stack(model: nn.Module, path: str) -> nn.ModuleList:
    stack = model.get_submodule(path)
    assert isinstance(stack, nn.ModuleList)
    return stack


def _as_deep(dense: nn.Module, compact: nn.Module, groups: Sequence[Group]) -> nn.Module:
    """Return ``dense`` with as many layers as ``compact`` has."""
    lost = {
        group.name: len(_stack(dense, group.name)) - len(_stack(compact, group.name))
        for group in groups
        if group.kind == "layer"
    }
    if not any(lost.values()):
        return dense
    shallow = copy.deepcopy(dense)
    for path, count in lost.items():
        parent, _, name = path.rpartition(".")
        setattr(shallow.get_submodule(parent), name, nn.ModuleList(list(_stack(shallow, path))[count:]))
    return shallow


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# --- the same output --------------------------------------------------------------------------------------------------


def _varied(model: nn.Module, inputs: Any) -> Any:
    """Return example inputs with random values, without using torch's global generator."""
    random = torch.Generator().manual_seed(0)
    config = getattr(model, "config", None)
    words = getattr(config, "vocab_size", None) or getattr(config, "vocabulary", None) or 2

    def vary(name: str, x: Tensor) -> Tensor:
        if x.is_meta or name == "labels":
            return x
        if x.is_floating_point():
            return torch.randn(x.shape, generator=random).to(x)
        if name == "attention_mask":
            return torch.ones_like(x)
        if name == "token_type_ids":
            return x
        return torch.randint(min(words - 1, 3), words, x.shape, generator=random).to(x)

    return {name: vary(name, x) if isinstance(x, Tensor) else x for name, x in inputs.items()}


@torch.no_grad()
def _check(dense: nn.Module, compact: nn.Module, inputs: Any) -> None:
    """Compare the outputs before and after. Raises ModelError if they differ, or if the class cannot run."""
    if isinstance(inputs, Mapping) and getattr(getattr(dense, "config", None), "use_cache", False):
        inputs = {"use_cache": False, **inputs}
    before = held_tensors(call_on(dense, inputs))
    kind = type(dense).__name__
    try:
        after = held_tensors(call_on(compact, inputs))
    except Exception as error:
        cause = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ModelError(
            f"{kind} cannot run with heads and neurons of other numbers: {cause}; fold its masks instead"
        ) from None
    for old, new in zip(before, after, strict=True):
        if not old.is_floating_point() or old.numel() == 0:
            continue
        old, new = old.double().nan_to_num(), new.double().nan_to_num()
        most = max(1.0, float(old.abs().max())) * _TOLERANCE.get(next(dense.parameters()).dtype, 1e-4)
        if old.shape != new.shape or float((old - new).abs().max()) > most:
            raise ModelError(
                f"{kind} does not give the same output with heads and neurons of other numbers; fold its masks instead"
            )
