"""The embedding of tokens: a table, with smearing of the previous token and hashed pairs where asked for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from octavo.lab.language.techniques import choice, register, whole

# Multipliers of the hash of a pair, odd and without a common pattern.
_FIRST, _SECOND = 0x9E3779B1, 0x85EBCA77
_SMEAR_INPUTS = 12


@dataclass(frozen=True, kw_only=True)
class TokenTable:
    """A row of the width for every token.

    ``smear``: ``x_t += strength * sigmoid(w . x_t[:12]) x_{t-1}``, the strength learned from 0. ``pairs``: rows of a
    table that starts at zero, of which the one that the previous and the own token hash to is added with a sign of the
    pair and a learned factor; 0 for none.
    """

    smear: bool = False
    pairs: int = 0

    def __post_init__(self) -> None:
        """Check every field."""
        choice(self, "smear", (True, False))
        whole(self, "pairs", least=0)


@register(
    "embedding",
    "table",
    TokenTable,
    examples=(TokenTable(), TokenTable(smear=True, pairs=64)),
    off=((TokenTable(smear=True, pairs=64), TokenTable()),),
)
class TokenEmbedding(nn.Module):
    """:class:`TokenTable` as a module. ``rows``: of the table, the vocabulary or more where the head pads it."""

    def __init__(self, config: TokenTable, vocabulary: int, width: int, rows: int) -> None:
        """Make the tables."""
        super().__init__()
        self.config = config
        self.table = unfilled_table(rows, width)
        self.rules = {"table.weight": "embedding"}
        if config.smear:
            self.smear_gate = nn.Linear(min(_SMEAR_INPUTS, width), 1, bias=False)
            self.smear_strength = nn.Parameter(torch.empty(()))
            self.rules |= {"smear_gate.weight": "matrix", "smear_strength": "zero"}
        if config.pairs:
            self.pair_table = unfilled_table(config.pairs, width)
            self.pair_strength = nn.Parameter(torch.empty(()))
            self.rules |= {"pair_table.weight": "zero", "pair_strength": "one"}

    @property
    def looks_back(self) -> bool:
        """Whether a vector depends on the token before, too."""
        return self.config.smear or self.config.pairs > 0

    def forward(self, ids_BT: Tensor, documents_BT: Tensor | None = None) -> Tensor:
        """Return the vectors ``[B, T, D]``; nothing crosses the border of a document where they are named."""
        x_BTD = self.table(ids_BT)
        if not self.looks_back or ids_BT.shape[1] < 2:
            return x_BTD
        same_BT1 = torch.ones_like(ids_BT[:, 1:, None], dtype=x_BTD.dtype)
        if documents_BT is not None:
            same_BT1 = (documents_BT[:, 1:] == documents_BT[:, :-1])[..., None].to(x_BTD.dtype)
        later_BTD = x_BTD[:, 1:]
        if self.config.smear:
            gate_BT1 = torch.sigmoid(self.smear_gate(later_BTD[..., : self.smear_gate.in_features]))
            later_BTD = later_BTD + self.smear_strength * gate_BT1 * same_BT1 * x_BTD[:, :-1]
        if self.config.pairs:
            row_BT, sign_BT = pair_rows(ids_BT[:, :-1], ids_BT[:, 1:], self.config.pairs)
            told_BTD = self.pair_table(row_BT) * sign_BT[..., None] * same_BT1
            later_BTD = later_BTD + self.pair_strength * told_BTD
        return torch.cat([x_BTD[:, :1], later_BTD.to(x_BTD.dtype)], 1)


def pair_rows(before: Tensor, after: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Return the row, and the sign as 1.0 or -1.0, that each pair of tokens hashes to.

    The sign lets two pairs share a row: what one adds, the other takes away, so that neither is fitted by the other.
    """
    mixed = (before * _FIRST + after * _SECOND) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * _SECOND) & 0xFFFFFFFF
    mixed = mixed ^ (mixed >> 13)
    return (mixed >> 1) % rows, 1.0 - 2.0 * (mixed & 1).float()


def unfilled_table(rows: int, width: int) -> nn.Embedding:
    """Return a table of rows that train, not filled yet: drawing numbers twice takes seconds for a large one."""
    return nn.Embedding(rows, width, _weight=torch.empty(rows, width))
