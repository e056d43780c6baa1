"""One optimizer with a rule per group: Muon for matrices, AdamW or Lion for the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from octavo.train.fused_adamw import fused_adamw
from octavo.train.moments_8bit import SMALLEST, update
from octavo.train.newton_schulz import cautious, orthogonalized, row_rescaled


class GroupedOptimizer(torch.optim.Optimizer):
    """Muon, AdamW and Lion by group; the groups are those of :func:`octavo.train.parameter_groups.assigned`.

    Muon: ``m = mu m + (1 - mu) g``, ``u = (1 - mu) g + mu m`` orthogonalized,
    ``w -= lr (sqrt(max(1, rows / columns)) u + decay w)``. AdamW is torch's; with
    ``moments`` its own are codes (:mod:`octavo.train.moments_8bit`). Lion: ``w -= lr (sign(b1 m + (1 - b1) g) +
    decay w)``, ``m = b2 m + (1 - b2) g``. All other state is float32, like the weights.
    """

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        """Take the groups."""
        super().__init__(groups, {})

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the result of :meth:`state_dict`. Codes keep their dtype; torch would convert them to the weights' one.

        Raises ValueError for groups or codes that do not fit the parameters.
        """
        states = state_dict["state"]
        floats = {number: {n: v for n, v in of.items() if not _is_code(n)} for number, of in states.items()}
        super().load_state_dict({**state_dict, "state": floats})
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        own = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, parameter in zip(numbers, own, strict=True):
            codes = {name: value for name, value in states.get(number, {}).items() if _is_code(name)}
            self.state[parameter] |= {name: value.to(parameter.device, copy=True) for name, value in codes.items()}

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if group["rule"] == "adamw":
                in_codes = [p for p in parameters if group.get("moments") and p.numel() >= SMALLEST]
                for parameter in in_codes:
                    update(group, parameter, self.state[parameter])
                code_ids = set(map(id, in_codes))
                self._adamw(group, [parameter for parameter in parameters if id(parameter) not in code_ids])
            elif group["rule"] == "lion":
                self._lion(group, parameters)
            else:
                self._muon(group, parameters)
        return loss

    def _adamw(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        if not parameters:
            return
        states = [self.state[parameter] for parameter in parameters]
        for parameter, state in zip(parameters, states, strict=True):
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        first, second, steps = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq", "step"))
        fused_adamw(group, parameters, gradients, first, second, steps)

    def _lion(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        first, second = group["betas"]
        for weight in parameters:
            state, gradient = self.state[weight], weight.grad
            assert gradient is not None  # step leaves out parameters without one
            if not state:
                state["momentum"] = torch.zeros_like(weight)
            moved = gradient.lerp(state["momentum"], first).sign_()
            weight.mul_(1 - group["lr"] * group["weight_decay"]).add_(moved, alpha=-group["lr"])
            state["momentum"].lerp_(gradient, 1 - second)

    def _muon(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        alike: dict[Any, list[Tensor]] = {}
        for weight in weights:
            state = self.state[weight]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32)
                state["momentum"] = torch.zeros_like(weight)
                if group["row_rescale"]:
                    state["second_moment"] = torch.zeros_like(weight[:, :1])
            alike.setdefault((weight.shape, weight.device, weight.dtype, int(state["step"])), []).append(weight)
        for (*_, step), some in alike.items():
            self._muon_stacked(group, some, momentum_at(group, step))

    def _muon_stacked(self, group: dict[str, Any], weights: list[Tensor], momentum: float) -> None:
        """Update matrices of one shape together, because many small calls would leave a GPU idle."""
        states = [self.state[weight] for weight in weights]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        momenta = [state["momentum"] for state in states]
        for state in states:
            state["step"] += 1
        torch._foreach_lerp_(momenta, gradients, 1 - momentum)
        mixed_NRC = torch.stack(torch._foreach_lerp(gradients, momenta, momentum))
        updates_NRC = orthogonalized(mixed_NRC, exact=group["exact"]).to(mixed_NRC.dtype)
        if group["row_rescale"]:
            seconds = [state["second_moment"] for state in states]
            second_NR1 = torch.stack(seconds)
            updates_NRC = row_rescaled(updates_NRC, second_NR1, group["row_rescale"])
            torch._foreach_copy_(seconds, list(second_NR1))
        updates = list(updates_NRC)
        decayed = list(map(cautious, weights, updates)) if group["cautious"] else weights
        torch._foreach_sub_(weights, torch._foreach_mul(decayed, group["lr"] * group["weight_decay"]))
        rows, columns = weights[0].shape
        torch._foreach_add_(weights, updates, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)


def _is_code(name: str) -> bool:
    return name.endswith(("_codes", "_scales"))


def momentum_at(group: dict[str, Any], step: int) -> float:
    """Return the momentum of Muon in the update after ``step`` others."""
    if step >= group["momentum_warmup"]:
        return float(group["momentum"])
    done = step / group["momentum_warmup"]
    return float(group["first_momentum"] + done * (group["momentum"] - group["first_momentum"]))
