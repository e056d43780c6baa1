"""Groups of parameters, each with its own optimizer settings; every parameter in exactly one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from octavo.errors import ConfigError, OptimizerError
from octavo.nn.registry import kind_of
from octavo.storage.arguments import check_fields, checks_arguments
from octavo.train.grouped_optimizer import GroupedOptimizer
from octavo.train.moments_8bit import check_moments
from octavo.train.train_config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class ParameterGroup:
    """Parameters that one rule updates.

    ``names``: patterns of names, in which ``*`` matches anything. ``rule``: ``muon``, only for matrices, ``lion`` or
    ``adamw``. ``learning_rate``: at the peak of the schedule. ``cautious``: decay only values that the update moves
    towards 0. ``betas``: of AdamW and Lion; ``eps``: of AdamW. ``moments``: format of AdamW's moments for tensors of
    4096 numbers and more, ``dynamic8`` or a block format, None for float32. ``momentum``: of Muon; it rises linearly
    from ``first_momentum`` over the first ``momentum_warmup`` updates. ``row_rescale``: decay of NorMuon's second
    moment of rows, 0 for plain Muon. ``exact``: orthogonalize in float32 to convergence.

    Raises ConfigError with the field, its value and what is accepted.
    """

    names: tuple[str, ...]
    rule: str = "adamw"
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    cautious: bool = False
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    momentum: float = 0.95
    first_momentum: float = 0.85
    momentum_warmup: int = 0
    row_rescale: float = 0.0
    exact: bool = False
    moments: str | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        check_fields(self)
        if self.rule not in ("adamw", "lion", "muon"):
            raise ConfigError(f"rule is {self.rule!r}; accepted: adamw, lion, muon")
        check_moments(self.moments)
        if self.moments is not None and self.rule != "adamw":
            raise ConfigError(f"moments is {self.moments!r} for {self.rule}; accepted: None, or the rule adamw")
        if not self.learning_rate > 0:
            raise ConfigError(f"learning_rate is {self.learning_rate!r}; accepted: a number above 0")
        for name in ("momentum", "first_momentum", "row_rescale", "weight_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; accepted: at least 0 and below 1")
        if self.momentum_warmup < 0:
            raise ConfigError(f"momentum_warmup is {self.momentum_warmup!r}; accepted: updates, at least 0")


@checks_arguments
def grouped(groups: Sequence[ParameterGroup]) -> Callable[[nn.Module, TrainConfig], torch.optim.Optimizer]:
    """Return an ``optimizer`` argument of :func:`octavo.train.train`: a builder of one optimizer over these groups.

    Args:
        groups: every trained parameter is in exactly one.

    Returns:
        A function of model and configuration; it raises OptimizerError naming a parameter in no group or in several, a
        group without parameters, and a parameter of Muon that is no matrix.
    """

    def make(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
        return GroupedOptimizer(assigned(model, groups))

    return make


def assigned(model: nn.Module, groups: Sequence[ParameterGroup]) -> list[dict[str, Any]]:
    """Return the parameters of each group with its settings, in the form of torch's ``param_groups``."""
    members: list[list[nn.Parameter]] = [[] for _ in groups]
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        takers = [at for at, group in enumerate(groups) if _takes(group.names, name)]
        if len(takers) != 1:
            problem = f"groups {' and '.join(map(str, takers))} take it" if takers else "no group takes it"
            raise OptimizerError(f"{name}: {problem}; every trained parameter is in exactly one group")
        if groups[takers[0]].rule == "muon" and parameter.ndim != 2:
            raise OptimizerError(f"{name}: of shape {tuple(parameter.shape)}; Muon takes matrices alone, give it adamw")
        members[takers[0]].append(parameter)
    for at, (group, parameters) in enumerate(zip(groups, members, strict=True)):
        if not parameters:
            raise OptimizerError(f"group {at} takes no parameter: {', '.join(group.names)}")
    settings = [{name: value for name, value in asdict(group).items() if name != "names"} for group in groups]
    for one in settings:
        one["lr"] = one.pop("learning_rate")
    return [{"params": some, **one} for some, one in zip(members, settings, strict=True)]


@checks_arguments
def language_groups(
    model: nn.Module,
    *,
    muon: float = 0.025,
    embedding: float = 0.7,
    head: float = 0.004,
    scalars: float = 0.015,
    weight_decay: float = 0.05,
    betas: tuple[float, float] = (0.8, 0.95),
    row_rescale: float = 0.0,
    cautious: bool = False,
    momentum_warmup: int = 300,
) -> list[ParameterGroup]:
    """Return the groups of a language model: Muon for matrices of its blocks, AdamW for tables, head and the rest.

    Matrices are weights of linear layers inside ``blocks`` or ``objective``; kernels of convolutions and tensors with
    fewer dimensions are scalars. A head tied to its table is in the table's group, which then has the head's rate,
    because a head does not train at a rate of 0.7.

    Args:
        model: a GPT of :mod:`octavo.lab.language.gpt`.
        muon: learning rate of matrices.
        embedding: learning rate of tables.
        head: learning rate of the head.
        scalars: learning rate of the rest.
        weight_decay: of matrices.
        betas: of AdamW.
        row_rescale: decay of NorMuon's second moment of rows, 0 for plain Muon.
        cautious: decay only values that the update moves towards 0.
        momentum_warmup: updates over which Muon's momentum rises.

    Returns:
        The groups.
    """
    tables, matrices, heads, rest = [], [], [], []
    owners = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        owner = owners[name.rpartition(".")[0]]
        inner = name.startswith(("blocks.", "objective."))
        kind = kind_of(owner)
        if kind is not None and kind.is_lookup:
            tables.append(name)
        elif inner and kind is not None and parameter.ndim == 2:
            matrices.append(name)
        elif parameter.ndim >= 2 and name.startswith("head."):
            heads.append(name)
        else:
            rest.append(name)
    tied = not heads
    adam = {"rule": "adamw", "betas": betas, "eps": 1e-10, "weight_decay": 0.001}
    of_muon = {"row_rescale": row_rescale, "cautious": cautious, "momentum_warmup": momentum_warmup}
    groups = [
        ParameterGroup(
            names=tuple(matrices), rule="muon", learning_rate=muon, weight_decay=weight_decay, **of_muon  # type: ignore[arg-type]
        ),
        ParameterGroup(names=tuple(tables), learning_rate=head if tied else embedding, **adam),  # type: ignore[arg-type]
        ParameterGroup(names=tuple(heads), learning_rate=head, **adam),  # type: ignore[arg-type]
        ParameterGroup(names=tuple(rest), learning_rate=scalars, **adam),  # type: ignore[arg-type]
    ]  # fmt: skip
    return [group for group in groups if group.names]


def _takes(patterns: Iterable[str], name: str) -> bool:
    return any(pattern == name or fnmatchcase(name, pattern) for pattern in patterns)
