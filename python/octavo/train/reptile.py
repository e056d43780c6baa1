"""Reptile: after every few updates the weights move back part of the way to their former values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import ConfigError
from octavo.train.train_config import TrainConfig

Make = Callable[[nn.Module, TrainConfig], torch.optim.Optimizer]


def with_reptile(make: Make, *, every: int, rate: float) -> Make:
    """Return an ``optimizer`` argument of :func:`octavo.train.train`: that of ``make``, with outer steps.

    From weights w, ``every`` inner updates lead to v; then both become ``w + rate (v - w)``. Rate 1 equals the inner
    training bit for bit. The outer weights are part of the optimizer's state, so a run can resume between two outer
    steps. Raises ConfigError for fewer than 1 update, or a rate outside 0 to 1. Source: Nichol et al. 2018.
    """
    if every < 1 or not 0 < rate <= 1:
        raise ConfigError(f"every is {every} and rate {rate}; accepted are 1 update and more, and rates up to 1")

    def make_with_outer_steps(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
        return reptile(make(model, config), every=every, rate=rate)

    return make_with_outer_steps


def reptile(optimizer: torch.optim.Optimizer, *, every: int, rate: float) -> torch.optim.Optimizer:
    """Add outer steps to an optimizer of torch, and return it."""
    before: dict[Tensor, Tensor] = {}

    def parameters(inner: Any) -> list[Tensor]:
        return [one for group in inner.param_groups for one in group["params"] if one.grad is not None]

    @torch.no_grad()
    def begin(inner: Any, args: Any, kwargs: Any) -> None:
        # Stored outside the state until the inner optimizer has created its own state, which it does if that is empty.
        before.update({one: one.clone() for one in parameters(inner) if "outer" not in inner.state[one]})

    @torch.no_grad()
    def end(inner: Any, args: Any, kwargs: Any) -> None:
        for one in parameters(inner):
            state = inner.state[one]
            if "outer" not in state:
                state["outer"] = before.pop(one)
                state["inner_updates"] = torch.zeros((), dtype=torch.float32)
            state["inner_updates"] += 1
            if int(state["inner_updates"]) == every:
                one.copy_(state["outer"].lerp_(one, rate))
                state["inner_updates"].zero_()

    optimizer.register_step_pre_hook(begin)
    optimizer.register_step_post_hook(end)
    return optimizer
