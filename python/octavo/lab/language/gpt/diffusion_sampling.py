"""Sampling from masked diffusion: hidden tokens are revealed in steps; what is visible stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from octavo.errors import ModelError, SettingError

Denoise = Callable[[Tensor, Tensor], Tensor]


@torch.no_grad()
def unmask(
    denoise: Denoise, ids_BT: Tensor, masked_BT: Tensor, *, steps: int, temperature: float = 1.0, generator: Any = None
) -> Tensor:
    """Return ids ``[B, T]`` with every hidden one drawn; visible ones are those given.

    ``denoise``: from ids and what of them is hidden to log-probabilities ``[B, T, V]``. In each of ``steps`` steps from
    t to s a hidden token is revealed with probability ``(t - s) / t``, drawn from its prediction; t goes evenly from 1
    to 0, so all are revealed by the last. ``temperature``: 0 takes the most likely token.
    """
    if steps < 1:
        raise SettingError(f"steps is {steps}; accepted is 1 and more")
    ids_BT, masked_BT = ids_BT.clone(), masked_BT.clone()
    for left in range(steps, 0, -1):
        chance_BT = torch.rand(ids_BT.shape, generator=generator).to(ids_BT.device)
        shown_BT = masked_BT & (chance_BT < 1 / left)  # t = left / steps, s = (left - 1) / steps
        if not bool(shown_BT.any()):
            continue
        log_probs_NV = denoise(ids_BT, masked_BT)[shown_BT]
        if temperature:
            probs_NV = (log_probs_NV / temperature).softmax(-1).cpu()
            drawn_N = torch.multinomial(probs_NV, 1, generator=generator)[:, 0].to(ids_BT.device)
        else:
            drawn_N = log_probs_NV.argmax(-1)
        ids_BT[shown_BT] = drawn_N
        masked_BT &= ~shown_BT
    return ids_BT


@torch.no_grad()
def continued(
    model: Any, prompt: Tensor, tokens: int, *, steps: int = 0, temperature: float = 1.0, generator: Any = None
) -> Tensor:
    """Return a prompt ``[P]`` and ``tokens`` ids drawn after it, by a model whose objective is masked diffusion.

    Block after block, each in ``steps`` steps, 0 for as many as it has hidden tokens. Raises ModelError for another
    model, SettingError for an empty prompt: give it the id that begins documents.
    """
    objective = model.objective
    if not hasattr(objective, "hidden"):
        raise ModelError(
            f"{type(objective).__name__} is no masked diffusion; octavo.lab.language.gpt.step decodes its model"
        )
    if not len(prompt) or tokens < 1:
        raise SettingError(f"a prompt of {len(prompt)} ids and {tokens} tokens; accepted is 1 of each and more")
    length = len(prompt) - 1 + tokens  # the first id is the one before the window
    size = objective.config.block or length
    first_11, ids_1T = prompt[None, :1], torch.zeros(1, length, dtype=torch.long, device=prompt.device)
    ids_1T[0, : len(prompt) - 1] = prompt[1:]
    for start in range((len(prompt) - 1) // size * size, length, size):
        end = min(start + size, length)
        own_1S = ids_1T[:, start:end]
        masked_1S = (torch.arange(start, end, device=prompt.device) >= len(prompt) - 1)[None]

        def denoise(ids_1S: Tensor, hidden_1S: Tensor, start: int = start, end: int = end) -> Tensor:
            before_1T = ids_1T[:, :start]
            under_1T = torch.cat([torch.zeros_like(before_1T, dtype=torch.bool), hidden_1S], 1)
            states = objective.hidden(model, first_11, torch.cat([before_1T, ids_1S], 1), under_1T, since=start)
            return model.head.log_probs(states.flatten(0, 1)).unflatten(0, ids_1S.shape)

        ids_1T[:, start:end] = unmask(
            denoise, own_1S, masked_1S, steps=steps or int(masked_1S.sum()), temperature=temperature,
            generator=generator,
        )  # fmt: skip
    return torch.cat([prompt[:1], ids_1T[0]])
