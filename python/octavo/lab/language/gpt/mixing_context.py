"""What a mixer is told besides the vectors: positions, documents, a window, values of tokens; and its interface."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class MixingContext:
    """The surroundings of the vectors ``x_BTD``.

    ``positions_T``: of each in its sequence, int64. ``documents_BT``: a number that grows where a document begins;
    None where documents are not kept apart. ``window``: positions that may be seen, the own one included, None for
    all. ``values_BTD``: vectors that the layer's value embedding adds to the values, None for none. ``seen_TS``: which
    position may see which, bool or added to scores, in place of causal order, window and documents; an objective gives
    one, or a text that is read on.
    ``in_a_row``: no position is left out between two of them.
    ``ids_BT``: the tokens of the positions, and ``embed``: from ids to vectors, for mixers that read other texts, too.
    """

    positions_T: Tensor
    documents_BT: Tensor | None = None
    window: int | None = None
    values_BTD: Tensor | None = None
    seen_TS: Tensor | None = None
    in_a_row: bool = True
    ids_BT: Tensor | None = None
    embed: Any = None

    def with_values(self, values_BTD: Tensor | None) -> MixingContext:
        """Return the same with other values."""
        return replace(self, values_BTD=values_BTD)

    def at(self, places_K: Tensor) -> MixingContext:
        """Return the context of some of the positions alone, by their places."""
        documents_BK = None if self.documents_BT is None else self.documents_BT[:, places_K]
        values_BKD = None if self.values_BTD is None else self.values_BTD[:, places_K]
        return MixingContext(self.positions_T[places_K], documents_BK, self.window, values_BKD, in_a_row=False)


class Mixer(Protocol):
    """Mixes positions inside a block; every mixer is an ``nn.Module`` with these.

    ``keeps_documents``: sees nothing of other documents where the context names them. ``takes_values``: adds values of
    tokens to its own. ``reads_positions``, where there is one: mixes a part of the positions as the context names them,
    not as they follow each other. ``reads_on``, where there is one: ``read_on`` continues after the positions before,
    of which it keeps a window. ``step`` and ``first_state`` decode one position at a time; the state is the mixer's
    own.
    """

    keeps_documents: bool
    takes_values: bool

    def forward(self, x_BTD: Tensor, context: MixingContext) -> Tensor:
        """Return ``[B, T, D]``; position t depends on positions up to t alone."""
        ...

    def first_state(self, batch: int, device: torch.device) -> Any:
        """Return the state before the first position."""
        ...

    def step(self, x_BD: Tensor, state: Any, context: MixingContext) -> tuple[Tensor, Any]:
        """Return the output ``[B, D]`` of the next position, and the state after it."""
        ...


def smaller(first: int | None, second: int | None) -> int | None:
    """Return the smaller of two windows, None standing for no limit."""
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)


def documents(ids_BT: Tensor, end_of_text: int) -> Tensor:
    """Return the number of the document of each token: every ``end_of_text`` begins one."""
    return (ids_BT == end_of_text).cumsum(1)
