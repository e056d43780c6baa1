"""torch's fused AdamW as a function of a group's settings."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim.adamw import adamw


def fused_adamw(
    group: dict[str, Any],
    weights: list[Tensor],
    gradients: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    steps: list[Tensor],
) -> None:
    """Update ``weights`` and their moments in place, float32, and increment each of ``steps``.

    ``group``: ``lr``, ``betas``, ``eps`` and ``weight_decay``. Non-contiguous tensors are updated through copies,
    because torch's call assumes contiguous memory.
    """
    changed = [*weights, *first, *second]
    dense = [value.contiguous() for value in changed]
    count = len(weights)
    adamw(
        dense[:count],
        [gradient.contiguous() for gradient in gradients],
        dense[count : 2 * count],
        dense[2 * count :],
        [],
        steps,
        fused=True,
        amsgrad=False,
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
    )
    for value, copy in zip(changed, dense, strict=True):
        if copy is not value:
            value.copy_(copy)
