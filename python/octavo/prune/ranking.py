"""Rankings: the choice of units to prune. Counts are exact, ties are broken by the index, pruned units stay pruned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from octavo.errors import ModelError, NonFiniteError

SCOPES = ("local", "global", "isomorphic")


@dataclass
class Ranked:
    """Scores of one :class:`~octavo.prune.granularity.Units` for a ranking.

    ``scores``: float ``[count]``, the lowest are pruned first. ``gone``: bool ``[count]``, pruned before. ``rows``:
    number of rows of equal length that are ranked separately; their counts differ by at most one.
    """

    name: str
    cohort: tuple[object, ...]
    sparsity: float
    scores: Tensor
    gone: Tensor
    rows: int = 1

    def __post_init__(self) -> None:
        """Refuse NaN and infinity. Raises NonFiniteError."""
        if not bool(torch.isfinite(self.scores).all()):
            raise NonFiniteError(f"{self.name}: scores hold NaN or infinity; accepted are finite weights and gradients")


def lowest(scores: Tensor, count: int) -> Tensor:
    """Return the ``count`` lowest of ``scores`` ``[n]`` as bool ``[n]``; ties are broken by the lower index.

    Exact: ``lowest(scores, count).sum() == count``.
    """
    chosen = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
    if count <= 0:
        return chosen
    if count >= scores.numel():
        return ~chosen
    chosen = scores < (bound := _smallest(scores, count))
    ties = (scores == bound).nonzero().flatten()
    chosen[ties[: count - int(chosen.count_nonzero())]] = True
    return chosen


def _smallest(scores: Tensor, number: int) -> float:
    """Return the value of the ``number``-th smallest score; numpy's selection is many times faster than torch's."""
    if scores.device.type == "cpu":
        return float(np.partition(scores.numpy(), number - 1)[number - 1])
    return float(scores.kthvalue(number).values)


def prune_local(ranked: Ranked) -> Tensor:
    """Return the ``round(sparsity * count)`` units to prune, bool ``[count]``."""
    scores = ranked.scores.masked_fill(ranked.gone, -torch.inf)
    wanted = _wanted(ranked.name, ranked.sparsity, scores.numel(), int(ranked.gone.count_nonzero()))
    if ranked.rows == 1:
        return lowest(scores, wanted)
    # Ranked by the position in the row: each row loses the same number, the first ones one more. Sorting is stable.
    places = scores.view(ranked.rows, -1).argsort(dim=1, stable=True).argsort(dim=1).flatten()
    return lowest(places.double().masked_fill(ranked.gone, -1), wanted)


def prune_together(members: Sequence[Ranked], floor: float) -> list[Tensor]:
    """Return the units to prune of members ranked together: ``round(sparsity * all)``, at most ``1 - floor`` of each.

    The highest ``ceil(floor * count)`` scores of each member are never pruned. Raises ModelError if the floors leave
    too few.
    """
    sparsity, total = members[0].sparsity, sum(member.scores.numel() for member in members)
    names = members[0].name if len(members) == 1 else f"{members[0].name} and {len(members) - 1} more"
    wanted = _wanted(names, sparsity, total, sum(int(member.gone.count_nonzero()) for member in members))
    ranking = []
    for member in members:
        scores = member.scores.masked_fill(member.gone, -torch.inf)
        n = scores.numel()
        protected_count = math.ceil(floor * n)
        free = lowest(scores, n - protected_count) | member.gone
        ranking.append(scores.masked_fill(~free, torch.inf))
    together = torch.cat(ranking)
    available = int((together < torch.inf).sum())
    if wanted > available:
        raise ModelError(
            f"{names}: sparsity {sparsity:g} prunes {wanted} of {total}, and a floor of {floor:g} leaves {available} "
            "to prune; lower floor or sparsity"
        )
    return list(lowest(together, wanted).split([member.scores.numel() for member in members]))


def prune_n_of_m(ranked: Ranked, columns: int, keep: int, group: int) -> Tensor:
    """Return all but the ``keep`` highest of every ``group`` elements of rows of ``columns``, bool ``[count]``.

    Of a short last group of r, ``ceil(r keep / group)`` are kept. Raises ModelError if more are pruned already.
    """
    if not ranked.scores.numel():
        return ranked.gone.clone()
    scores = ranked.scores.masked_fill(ranked.gone, -torch.inf).view(-1, columns)
    short = columns % group
    padded = functional.pad(scores, (0, (group - short) % group), value=torch.inf).view(len(scores), -1, group)
    places = padded.argsort(dim=-1, stable=True).argsort(dim=-1)
    counts = torch.full((padded.shape[1], 1), group - keep, device=scores.device)
    if short:
        counts[-1] = short - -(-short * keep // group)
    chosen = (places < counts).flatten(1)[:, :columns].flatten()
    if bool((ranked.gone & ~chosen).any()):
        raise ModelError(f"{ranked.name}: its mask prunes more than {group - keep} in a group of {group}; fold first")
    return chosen


def _wanted(names: str, sparsity: float, total: int, gone: int) -> int:
    wanted = round(sparsity * total)
    if wanted < gone:
        raise ModelError(
            f"{names}: sparsity {sparsity:g} means {wanted} of {total}, and {gone} are pruned already; pruned units "
            "stay pruned, fold_model makes them plain zeros"
        )
    return wanted
