"""The analyses of this room as passes of a pipeline. Each returns its report and does not change the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from octavo.graph import analysis
from octavo.graph.analysis import Report
from octavo.graph.costs import Costs
from octavo.graph.graph_content import GraphContent
from octavo.graph.model_passes import Pass, PassInputs, register_pass
from octavo.recipe import Recipe


@dataclass(frozen=True)
class NoOptions:
    """The configuration of a pass that has none."""


@dataclass(frozen=True)
class CostsConfig:
    """``recipe``: costs as if the model were packed by it."""

    recipe: str | None = None

    def __post_init__(self) -> None:
        """Read the recipe once. Raises FormatError."""
        if self.recipe is not None:
            object.__setattr__(self, "recipe", str(Recipe.of(self.recipe)))


@dataclass(frozen=True)
class StatisticsConfig:
    """``quantiles``: shares from 0 to 1."""

    quantiles: tuple[float, ...] = (0.001, 0.5, 0.999)

    def __post_init__(self) -> None:
        """Check the shares. Raises ModelError."""
        analysis.check_quantiles(self.quantiles)


def _of_graph(name: str, read: Callable[[GraphContent], Report]) -> None:
    def run(model: nn.Module, config: NoOptions, pass_inputs: PassInputs) -> Report:
        return read(pass_inputs.graph(model, name))

    register_pass(Pass(name, None, NoOptions, run))


def _costs(model: nn.Module, config: CostsConfig, pass_inputs: PassInputs) -> Costs:
    return pass_inputs.graph(model, "costs").costs(config.recipe)


def _sparsity(model: nn.Module, config: NoOptions, pass_inputs: PassInputs) -> Report:
    return analysis.sparsity(model)


def _statistics(model: nn.Module, config: StatisticsConfig, pass_inputs: PassInputs) -> Report:
    batches: Any = () if pass_inputs.calibration is None else pass_inputs.calibration
    return analysis.tensor_statistics(model, batches, quantiles=config.quantiles)


for _name in ("operator_counts", "module_counts", "block_counts", "dead_branches"):
    _of_graph(_name, getattr(analysis, _name))
register_pass(Pass("costs", None, CostsConfig, _costs))
register_pass(Pass("sparsity", None, NoOptions, _sparsity))
register_pass(Pass("tensor_statistics", None, StatisticsConfig, _statistics))
