"""First values: every parameter has a rule, by its name; one without is an error."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from octavo.errors import ModelError

_CONSTANTS = {"zero": 0.0, "one": 1.0}


def initialize(model: nn.Module, initial: str) -> None:
    """Fill every parameter of ``model`` by the rule that its module's ``rules`` gives its name.

    Rules: ``matrix``; ``output``, a matrix that writes to the residual stream; ``embedding``, ``head``, and ``tied``,
    a table that is both; ``zero``, ``one``, or a number. ``initial``: of :class:`~octavo.lab.language.gpt.Stream`.
    Drawn from torch's global generator. Raises ModelError with the name of a parameter that no rule, or several, reach.
    """
    ruled: dict[int, int] = {}
    for owner in model.modules():
        for path, rule in getattr(owner, "rules", {}).items():
            parameter = _parameter(owner, path)
            if parameter is not None:
                ruled[id(parameter)] = ruled.get(id(parameter), 0) + 1
                _fill(parameter, rule, initial)
    for name, parameter in model.named_parameters():
        if ruled.get(id(parameter), 0) != 1:
            count = ruled.get(id(parameter), 0)
            raise ModelError(f"{name}: {count} rules give its first value; its module's rules give it one")


def _parameter(owner: nn.Module, path: str) -> nn.Parameter | None:
    """Return a parameter of a module, None where this configuration has none of that name."""
    at: object = owner
    for part in path.split("."):
        at = getattr(at, part, None)
    return at if isinstance(at, nn.Parameter) else None


@torch.no_grad()
def _fill(parameter: Tensor, rule: str, initial: str) -> None:
    if parameter.is_meta:
        return
    inputs = parameter.shape[-1] if parameter.ndim else 1
    torch_like = initial == "torch"
    if rule == "embedding":
        parameter.normal_()
    elif rule in ("matrix", "output", "head", "tied") and (torch_like or rule == "tied"):
        bound = 1 / math.sqrt(inputs)
        parameter.uniform_(-bound, bound)
    elif rule == "matrix":
        parameter.normal_(std=math.sqrt(0.33 / inputs))
    elif rule in ("output", "head"):
        parameter.zero_()
    else:
        parameter.fill_(_CONSTANTS[rule] if rule in _CONSTANTS else float(rule))
