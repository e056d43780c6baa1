"""Objectives with targets from counts: next tokens of frequent prefixes, and smoothed rows of a word grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from octavo.errors import ModelError
from octavo.lab.language.gpt.next_token import IGNORED, Batch, NextToken, Objective, scored, trained_loss
from octavo.lab.language.gpt.next_token_counts import PrefixTable, bigram_table
from octavo.lab.language.gpt.word_grid import GridSoftmax, GridTable
from octavo.lab.language.techniques import number, register, whole


@dataclass(frozen=True, kw_only=True)
class PrefixTargets:
    """The next token, and the corpus frequencies of next tokens where a window begins with a frequent prefix.

    At the first ``positions`` of a window whose whole prefix is in the table, ``weight`` times the cross-entropy with
    the frequencies is added, in the compact form: of the ``largest`` frequencies alone, scaled so that the expected
    target is the whole distribution. Source: compact and consistent next tokens (CoCoNT).
    """

    positions: int = 8
    largest: int = 8
    weight: float = 1.0

    def __post_init__(self) -> None:
        """Check every field."""
        whole(self, "positions", least=1, most=64)
        whole(self, "largest", least=1, most=1024)
        number(self, "weight", least=0, most=1e3)


@dataclass(frozen=True, kw_only=True)
class RowSmoothing:
    """For a grid head: a share ``strength`` of the row's target goes to rows that follow the previous token.

    ``largest``: next tokens of each token that are kept. The target is biased, so ``strength`` falls in a line to 0 at
    the fraction ``until`` of the run. Evaluation knows nothing of it.
    """

    strength: float = 0.1
    largest: int = 32
    until: float = 0.6

    def __post_init__(self) -> None:
        """Check every field."""
        number(self, "strength", least=0, most=1)
        whole(self, "largest", least=1, most=1 << 16)
        number(self, "until", least=1e-6, most=1)


@register("objective", "prefix_targets", PrefixTargets, examples=(PrefixTargets(positions=3, largest=4),),
          off=((PrefixTargets(weight=0.0), NextToken()),))  # fmt: skip
class PrefixObjective(Objective):
    """:class:`PrefixTargets` as an objective; :meth:`count` comes first."""

    def __init__(self, config: PrefixTargets, model: Any) -> None:
        """Keep the configuration."""
        super().__init__()
        self.config, self._model = config, model
        self.table: PrefixTable | None = None

    def count(self, stream: Tensor) -> None:
        """Count prefixes and next tokens in a stream of training ids."""
        sizes = {"longest": self.config.positions, "largest": self.config.largest}
        self.table = PrefixTable(stream, self._model.vocabulary, **sizes, end_of_text=self._model.end_of_text)

    def loss(self, model: Any, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum and its parts. Raises ModelError before :meth:`count`."""
        hidden_BTD = model.hidden(batch.ids_BT, window=batch.window)
        total, parts = trained_loss(model.head, hidden_BTD, batch.targets_BT)
        if not self.config.weight:
            return total, parts
        if self.table is None:
            raise ModelError("PrefixTargets has no counts; call model.objective.count(stream) with training ids first")
        early = slice(0, self.config.positions)
        rows_Bk, targets_Bk = self.table.rows(batch.ids_BT[:, early]), batch.targets_BT[:, early]
        known_Bk = (rows_Bk >= 0) & (targets_Bk.cpu() != IGNORED)
        if not bool(known_Bk.any()):
            return total, {**parts, "prefix": torch.zeros_like(total.detach())}
        rows_N = rows_Bk[known_Bk]
        top_Nr, mass_Nr = self.table.ids[rows_N], self.table.mass[rows_N]
        here = known_Bk.to(hidden_BTD.device)
        top_Nr, mass_Nr, y_N = top_Nr.to(here.device), mass_Nr.to(here.device), targets_Bk[here]
        log_probs_NV = model.head.log_probs(hidden_BTD[:, early][here])
        top_weight_Nr, own_weight_N = compact_targets(top_Nr, mass_Nr, y_N)
        added = -(top_weight_Nr * log_probs_NV.gather(1, top_Nr)).sum()
        added = added - (own_weight_N * log_probs_NV.gather(1, y_N[:, None])[:, 0]).sum()
        return total + self.config.weight * added, {**parts, "prefix": added.detach()}


def compact_targets(top_Nr: Tensor, mass_Nr: Tensor, y_N: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights of the top tokens, ``[N, r]``, and of the token that came, ``[N]``.

    With p the mass of the top: ``v * mass`` where the token is one of them, else ``u * mass`` and 1 for the token;
    ``u = 1 / (1.5 - p)``, ``v = (1 - (1 - p) u) / p``. Over the next token this is the whole distribution on average.
    """
    p_N1 = mass_Nr.sum(1, keepdim=True)
    u_N1 = 1 / (1.5 - p_N1)
    v_N1 = (1 - (1 - p_N1) * u_N1) / p_N1
    inside_N1 = ((top_Nr == y_N[:, None]) & (mass_Nr > 0)).any(1, keepdim=True)
    return torch.where(inside_N1, v_N1, u_N1) * mass_Nr, (~inside_N1[:, 0]).to(mass_Nr.dtype)


@register("objective", "row_smoothing", RowSmoothing, examples=(RowSmoothing(largest=4),),
          off=((RowSmoothing(strength=0.0), NextToken()),),
          beside=(("embedding", GridTable()), ("head", GridSoftmax())))  # fmt: skip
class RowSmoothingObjective(Objective):
    """:class:`RowSmoothing` as an objective; :meth:`count` comes first."""

    def __init__(self, config: RowSmoothing, model: Any) -> None:
        """Keep the configuration. Raises ModelError for a head without rows."""
        super().__init__()
        if not isinstance(model.head, GridSoftmax):
            raise ModelError(f"RowSmoothing needs rows to smooth: a GridSoftmax; got {type(model.head).__name__}")
        self.config, self._model = config, model
        self.table: tuple[Tensor, Tensor] | None = None

    @property
    def strength(self) -> float:
        """The share of the row's target that is smoothed now."""
        return self.config.strength * max(0.0, 1 - self.progress / self.config.until)

    def count(self, stream: Tensor) -> None:
        """Count pairs in a stream of training ids."""
        self.table = bigram_table(stream, self._model.vocabulary, self.config.largest, self._model.end_of_text)

    def loss(self, model: Any, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum and its parts. Raises ModelError before :meth:`count`."""
        return self.smoothed(model, model.hidden(batch.ids_BT, window=batch.window), batch)

    def smoothed(self, model: Any, hidden_BTD: Tensor, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return :meth:`loss` of hidden states that are there."""
        total, parts = trained_loss(model.head, hidden_BTD, batch.targets_BT)
        if not self.strength:
            return total, parts
        if self.table is None:
            raise ModelError("RowSmoothing has no counts; call model.objective.count(stream) with training ids first")
        hidden_ND, y_N = scored(hidden_BTD, batch.targets_BT)
        before_N = batch.ids_BT.flatten()[batch.targets_BT.flatten() != IGNORED]
        ids_Nk, mass_Nk = (part.to(before_N.device)[before_N] for part in self.table)
        grid, rows_NR = model.head.grid, model.head.row_log_probs(hidden_ND)
        row_Nk = grid.cell_V[ids_Nk] // grid.side
        share_Nk = mass_Nk / mass_Nk.sum(1, keepdim=True).clamp_min(1e-9)
        seen_N = (mass_Nk > 0).any(1)
        smoothed_N = -(share_Nk * rows_NR.gather(1, row_Nk)).sum(1)
        own_N = -rows_NR.gather(1, (grid.cell_V[y_N] // grid.side)[:, None])[:, 0]
        added = self.strength * torch.where(seen_N, smoothed_N - own_N, 0.0).sum()
        return total + added, {**parts, "smoothing": added.detach()}
