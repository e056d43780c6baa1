"""The mean of earlier positions: a context that gates may look at, since the future is no part of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from octavo.lab.language.gpt.mixing_context import MixingContext


def causal_mean(x_BTD: Tensor, context: MixingContext) -> Tensor:
    """Return the mean of all positions before each one, of its document, float32; zeros where there is none."""
    x_BTD = x_BTD.float()
    before_BTD = functional.pad(x_BTD.cumsum(1)[:, :-1], (0, 0, 1, 0))
    count_BT = torch.arange(x_BTD.shape[1], device=x_BTD.device).expand(x_BTD.shape[:2])
    if (told := context.documents_BT) is not None:
        begins_BT = functional.pad(told[:, 1:] != told[:, :-1], (1, 0))
        first_BT = torch.where(begins_BT, count_BT, 0).cummax(1).values
        before_BTD = before_BTD - before_BTD.gather(1, first_BT[..., None].expand_as(before_BTD))
        count_BT = count_BT - first_BT
    return before_BTD / count_BT.clamp_min(1)[..., None]


def first_mean(batch: int) -> Any:
    """Return the state of :func:`next_mean` before the first position."""
    return {"sum": None, "count": torch.zeros(batch, 1), "document": None}


def next_mean(x_BD: Tensor, state: Any, context: MixingContext) -> tuple[Tensor, Any]:
    """Return the mean of the positions before this one, float32 ``[B, D]``, and the state with this one."""
    x_BD, told = x_BD.float(), context.documents_BT
    sum_BD = torch.zeros_like(x_BD) if state["sum"] is None else state["sum"]
    count_B1 = state["count"].to(x_BD.device)
    if told is not None and state["document"] is not None:
        same_B1 = (told == state["document"]).float()
        sum_BD, count_B1 = sum_BD * same_B1, count_B1 * same_B1
    new = {"sum": sum_BD + x_BD, "count": count_B1 + 1, "document": told}
    return sum_BD / count_B1.clamp_min(1), new
