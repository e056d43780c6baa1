"""Where generation stands: special tokens, and the state that a decoder carries from one token to the next."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

PAD, START, END = 0, 1, 2

Tensors = dict[str, Tensor]


@dataclass
class State:
    """State of generation: tensors whose first dimension is the row, so that rows can be chosen and repeated.

    ``memory``: what the decoder needs of the encoded source. ``cache``: what it keeps of the tokens so far; slabs of
    keys and values are ``[B, heads, max_length, width]``, of which the first ``length`` positions are filled.
    """

    memory: Tensors
    cache: Tensors = field(default_factory=dict)
    length: int = 0

    def select(self, rows: Tensor) -> State:
        """Return the state of ``rows`` (indices, repeated or left out as given)."""
        memory = {name: value[rows] for name, value in self.memory.items()}
        return State(memory, {name: value[rows] for name, value in self.cache.items()}, self.length)
