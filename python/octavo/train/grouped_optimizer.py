"""One optimizer whose groups follow different rules: Muon for matrices, AdamW for the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from octavo.train.newton_schulz import cautious, orthogonalized, row_rescaled


class GroupedOptimizer(torch.optim.Optimizer):
    """Muon and AdamW by group; the groups are those of :func:`octavo.train.parameter_groups.assigned`.

    Muon: ``m = mu m + (1 - mu) g``, ``u = (1 - mu) g + mu m`` orthogonalized,
    ``w -= lr (sqrt(max(1, rows / columns)) u + decay w)``. AdamW is torch's. State is float32 beside float32 weights.
    """

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        """Take the groups."""
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            given = [parameter for parameter in group["params"] if parameter.grad is not None]
            if group["rule"] == "adamw":
                self._adamw(group, given)
            else:
                for parameter in given:
                    self._muon(group, parameter)
        return loss

    def _adamw(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        if not parameters:
            return
        states = [self.state[parameter] for parameter in parameters]
        for parameter, state in zip(parameters, states, strict=True):
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        adamw(
            parameters,
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _muon(self, group: dict[str, Any], weight: Tensor) -> None:
        state, gradient = self.state[weight], weight.grad
        assert gradient is not None  # step leaves out parameters without one
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["momentum"] = torch.zeros_like(weight)
            if group["row_rescale"]:
                state["second_moment"] = torch.zeros_like(weight[:, :1])
        momentum = momentum_at(group, int(state["step"]))
        state["step"] += 1
        state["momentum"].lerp_(gradient, 1 - momentum)
        update = orthogonalized(gradient.lerp(state["momentum"], momentum), exact=group["exact"]).to(weight.dtype)
        if group["row_rescale"]:
            update = row_rescaled(update, state["second_moment"], group["row_rescale"])
        rows, columns = weight.shape
        decayed = cautious(weight, update) if group["cautious"] else weight
        decay = decayed * (group["lr"] * group["weight_decay"])
        weight.sub_(decay).add_(update, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)


def momentum_at(group: dict[str, Any], step: int) -> float:
    """Return the momentum of Muon in the update that ``step`` others came before."""
    if step >= group["momentum_warmup"]:
        return float(group["momentum"])
    done = step / group["momentum_warmup"]
    return float(group["first_momentum"] + done * (group["momentum"] - group["first_momentum"]))
