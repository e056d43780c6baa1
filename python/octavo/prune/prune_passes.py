"""Pruning, compacting and folding as passes of a pipeline of :mod:`octavo.graph`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from octavo.errors import ModelError
from octavo.graph.model_passes import Pass, PassInputs, TransformReport
from octavo.prune.compact_model import CompactReport, compact_model
from octavo.prune.fold_model import fold_model
from octavo.prune.prune_model import check_options, prune_model
from octavo.prune.prune_report import report


@dataclass(frozen=True)
class PruneConfig:
    """The options of :func:`octavo.prune_model` that a file can store; ``targets``: selectors, none for all."""

    sparsity: float | None = None
    criterion: str = "magnitude"
    granularity: str = "element"
    scope: str | None = None
    targets: tuple[str, ...] = ()
    floor: float = 0.01
    seed: int = 0
    samples: int = 128

    def __post_init__(self) -> None:
        """Check the options once. Raises ModelError."""
        check_options(self.sparsity, self.criterion, self.granularity, self.scope, self.floor, self.seed)
        if not isinstance(self.samples, int) or isinstance(self.samples, bool) or self.samples < 1:
            raise ModelError(f"samples is {self.samples!r}; accepted are whole numbers of at least 1")


@dataclass(frozen=True)
class CompactConfig:
    """Compacting has no options."""


@dataclass(frozen=True)
class FoldConfig:
    """Folding has no options."""


def _prune(model: nn.Module, config: PruneConfig, pass_inputs: PassInputs) -> tuple[nn.Module, TransformReport]:
    masked = prune_model(
        model, config.sparsity, criterion=config.criterion, granularity=config.granularity, scope=config.scope,
        targets=config.targets or None, floor=config.floor, seed=config.seed, samples=config.samples,
        calibration=pass_inputs.calibration, inputs=pass_inputs.inputs, inplace=True, progress=False,
    )  # fmt: skip
    return masked, _report(masked)


def _fold(model: nn.Module, config: FoldConfig, pass_inputs: PassInputs) -> tuple[nn.Module, TransformReport]:
    before = _report(model)
    return fold_model(model, inplace=True), before


def _compact(model: nn.Module, config: CompactConfig, pass_inputs: PassInputs) -> tuple[nn.Module, CompactReport]:
    return compact_model(model, pass_inputs.inputs, inplace=True)


def _report(model: nn.Module) -> TransformReport:
    rows = report(model).to_report()
    return TransformReport(rows.columns, rows.rows)


PRUNE = Pass("prune", "masks", PruneConfig, _prune, also_on=("quantization",))
COMPACT = Pass("compact", "masks", CompactConfig, _compact)
FOLD_MASKS = Pass("fold_masks", "fold", FoldConfig, _fold)
