"""Multi-token prediction in its three forms: heads on one trunk, a chain of modules, and the same logits again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import SettingError
from octavo.lab.language.gpt.gpt_network import Block, Norm
from octavo.lab.language.gpt.next_token import IGNORED, Batch, NextToken, Objective, scored
from octavo.lab.language.techniques import number, register, whole


@dataclass(frozen=True, kw_only=True)
class ParallelHeads:
    """Tokens t+1 to t+``ahead``: the model's own head, and for each further one a block on the shared trunk before it.

    All losses count alike. Heads are differentiated one after another, so one set of scores is held at a time.
    Source: Gloeckle et al. 2024.
    """

    ahead: int = 2

    def __post_init__(self) -> None:
        """Check the field."""
        whole(self, "ahead", least=1, most=8)


@dataclass(frozen=True, kw_only=True)
class ChainedModules:
    """Module j joins the state of module j - 1 with the vector of token t+j, and predicts token t+j+1.

    ``ahead``: tokens that are predicted, the plain next one included. ``weight`` of the mean loss of the modules.
    Source: DeepSeek-V3, section 2.2.
    """

    ahead: int = 2
    weight: float = 0.3

    def __post_init__(self) -> None:
        """Check every field."""
        whole(self, "ahead", least=1, most=8)
        number(self, "weight", least=0, most=1e3)


@dataclass(frozen=True, kw_only=True)
class RepeatedLogits:
    """The scores for token t+1 are scored against tokens t+2, t+3, ... too: no heads, a smoothing of targets.

    ``weights``: of tokens t+1, t+2, ...; all but the first fall in a line to 0 at the fraction ``until`` of the run.
    """

    weights: tuple[float, ...] = (1.0, 0.5, 0.25)
    until: float = 2 / 3

    def __post_init__(self) -> None:
        """Check every field."""
        if not 1 <= len(self.weights) <= 8 or self.weights[0] != 1 or min(self.weights) < 0:
            raise SettingError(f"weights is {self.weights!r}; accepted are 1.0 and up to 7 more of at least 0")
        number(self, "until", least=1e-6, most=1)


def further_targets(targets_BT: Tensor, further: int, end_of_text: int | None) -> Tensor:
    """Return the targets ``further`` positions on; -1 past the window, and where a document begins on the way there."""
    moved_BT = torch.full_like(targets_BT, IGNORED)
    if further >= targets_BT.shape[1]:
        return moved_BT
    moved_BT[:, : targets_BT.shape[1] - further] = targets_BT[:, further:]
    for back in range(further + 1 if further else 0):
        between_BT = torch.full_like(targets_BT, IGNORED)
        between_BT[:, : targets_BT.shape[1] - back] = targets_BT[:, back:]
        border_BT = between_BT == IGNORED
        if end_of_text is not None:
            border_BT = border_BT | (between_BT == end_of_text)
        moved_BT = moved_BT.masked_fill(border_BT, IGNORED)
    return moved_BT


def _sum_nll(model: Any, x_BTD: Tensor, targets_BT: Tensor) -> Tensor:
    return model.head.nll(*scored(model.final_norm(x_BTD), targets_BT)).sum()


def _parts(first: Tensor, targets_BT: Tensor, more: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"nll": first.detach(), "tokens": (targets_BT != IGNORED).sum(), **more}


@register("objective", "parallel_heads", ParallelHeads, examples=(ParallelHeads(ahead=3),),
          off=((ParallelHeads(ahead=1), NextToken()),))  # fmt: skip
class ParallelHeadsObjective(Objective):
    """:class:`ParallelHeads` as an objective."""

    def __init__(self, config: ParallelHeads, model: Any) -> None:
        """Make a block for each further token."""
        super().__init__()
        self.end_of_text = model.end_of_text
        last = model.mixer(model.layers - 1)
        self.blocks = nn.ModuleList([Block(model, last) for _ in range(config.ahead - 1)])

    def loss(self, model: Any, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum over all heads, and its parts."""
        x_BTD, context = model.trunk(batch.ids_BT, window=batch.window)
        first = _sum_nll(model, x_BTD, batch.targets_BT)
        total, parts = first, _parts(first, batch.targets_BT, {})
        if not len(self.blocks):
            return total, parts
        weights = [p for owner in (*self.blocks, model.final_norm, model.head) for p in owner.parameters()]
        shared = getattr(model.head, "_shared", ())
        weights += [p for owner in shared for p in owner.parameters()]
        losses = [
            partial(self._further_loss, model, context, block, batch.targets_BT, further)
            for further, block in enumerate(self.blocks, 1)
        ]
        more = OneAfterAnother.apply(losses, x_BTD, *weights)
        return total + more, {**parts, "further": more.detach()}

    def _further_loss(
        self, model: Any, context: Any, block: Any, targets_BT: Tensor, further: int, x_BTD: Tensor
    ) -> Tensor:
        return _sum_nll(model, block(x_BTD, context), further_targets(targets_BT, further, self.end_of_text))


class OneAfterAnother(torch.autograd.Function):
    """The sum of ``losses(x)``, each differentiated before the next is computed, so that one graph lives at a time."""

    @staticmethod
    def forward(ctx: Any, losses: Any, x: Tensor, *weights: Tensor) -> Tensor:
        """Return the sum; gradients are computed here, with a factor of 1."""
        wanted = [weight for weight in weights if weight.requires_grad]
        sums: list[Tensor | None] = [None] * (1 + len(wanted))
        total = torch.zeros((), device=x.device)
        alone = x.detach().requires_grad_()
        for loss in losses:
            with torch.enable_grad():
                value = loss(alone)
                found = torch.autograd.grad(value, [alone, *wanted], allow_unused=True)
            total = total + value.detach()
            sums = [b if a is None else a if b is None else a + b for a, b in zip(sums, found, strict=True)]
        ctx.places = [weight.requires_grad for weight in weights]
        ctx.sums = sums
        return total

    @staticmethod
    def backward(ctx: Any, *factors: Tensor) -> Any:
        """Return the gradients times the factor of the sum."""
        given = iter([None if one is None else one * factors[0] for one in ctx.sums])
        x = next(given)
        return None, x, *(next(given) if wanted else None for wanted in ctx.places)


@register("objective", "chained_modules", ChainedModules, examples=(ChainedModules(ahead=3),),
          off=((ChainedModules(ahead=1), NextToken()),))  # fmt: skip
class ChainedModulesObjective(Objective):
    """:class:`ChainedModules` as an objective."""

    def __init__(self, config: ChainedModules, model: Any) -> None:
        """Make a matrix and a block for each module."""
        super().__init__()
        self.config, self.end_of_text = config, model.end_of_text
        last, modules = model.mixer(model.layers - 1), range(config.ahead - 1)
        self.joins = nn.ModuleList([nn.Linear(2 * model.width, model.width, bias=False) for _ in modules])
        self.blocks = nn.ModuleList([Block(model, last) for _ in modules])
        self.norm = Norm(model.width, gains=False)
        self.rules = {f"joins.{at}.weight": "matrix" for at in modules}

    def loss(self, model: Any, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum, with the modules' weighted, and its parts."""
        x_BTD, context = model.trunk(batch.ids_BT, window=batch.window)
        first = _sum_nll(model, x_BTD, batch.targets_BT)
        total, parts = first, _parts(first, batch.targets_BT, {})
        states = self.states(model, x_BTD, batch.targets_BT, context)
        if not states:
            return total, parts
        more = torch.zeros_like(first)
        for further, state_BTD in enumerate(states, 1):
            more = more + _sum_nll(model, state_BTD, further_targets(batch.targets_BT, further, self.end_of_text))
        return total + self.config.weight / len(states) * more, {**parts, "further": more.detach()}

    def states(self, model: Any, x_BTD: Tensor, targets_BT: Tensor, context: Any) -> list[Tensor]:
        """Return the state of every module, ``[B, T, D]``; that of module j at t has seen tokens up to t+j."""
        found = []
        for further, (join, block) in enumerate(zip(self.joins, self.blocks, strict=True), 1):
            known_BT = further_targets(targets_BT, further - 1, None).clamp_min(0)  # past the window: never scored
            told_BTD = self.norm(model.embedding(known_BT))
            x_BTD = block(join(torch.cat([self.norm(x_BTD), told_BTD], -1)), context)
            found.append(x_BTD)
        return found


@register("objective", "repeated_logits", RepeatedLogits, examples=(RepeatedLogits(),),
          off=((RepeatedLogits(weights=(1.0,)), NextToken()),))  # fmt: skip
class RepeatedLogitsObjective(Objective):
    """:class:`RepeatedLogits` as an objective."""

    def __init__(self, config: RepeatedLogits, model: Any) -> None:
        """Keep the configuration."""
        super().__init__()
        self.config, self.end_of_text = config, model.end_of_text

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights of tokens t+1, t+2, ... now."""
        left = max(0.0, 1 - self.progress / self.config.until)
        return (1.0, *(weight * left for weight in self.config.weights[1:]))

    def loss(self, model: Any, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted sum and its parts."""
        hidden_BTD = model.hidden(batch.ids_BT, window=batch.window)
        weights = self.weights
        first = model.head.nll(*scored(hidden_BTD, batch.targets_BT)).sum()
        total, parts = first, _parts(first, batch.targets_BT, {})
        if not any(weights[1:]):
            return total, parts
        log_probs_NV = model.head.log_probs(hidden_BTD.flatten(0, 1))
        for further, weight in enumerate(weights[1:], 1):
            y_N = further_targets(batch.targets_BT, further, self.end_of_text).flatten()
            taken_N = log_probs_NV.gather(1, y_N.clamp_min(0)[:, None])[:, 0]
            total = total - weight * torch.where(y_N == IGNORED, 0.0, taken_N).sum()
        return total, {**parts, "further": (total - first).detach()}
