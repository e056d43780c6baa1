"""Trees of tensors that are kept for later: in memory while they are small, else in a file that is mapped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from octavo.data.batches import map_leaves, tensors_in
from octavo.data.file_tensors import MOST_HELD, in_file

_PLAIN = (Tensor, bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


class KeptTrees:
    """A list of trees of tensors, such as the outputs of a module for each batch.

    Trees that come back are the caller's own: writing into them changes none that is kept. Files go with the list.
    """

    def __init__(self, lists: int = 1) -> None:
        """Begin empty; ``lists``: of which this is one, share the memory."""
        self._most = MOST_HELD // lists
        self._trees: list[Any] = []
        self._nbytes = 0

    def __len__(self) -> int:
        """Return the number of trees."""
        return len(self._trees)

    def __getitem__(self, number: int) -> Any:
        """Return a copy of a tree."""
        return map_leaves(_own, self._trees[number])

    def is_full(self, nbytes: int) -> bool:
        """Tell whether so many bytes more go into a file."""
        return self._nbytes + nbytes > self._most

    def append(self, tree: Any) -> None:
        """Keep the tensors of a tree as they are now. Raises OSError where a file cannot be written."""
        nbytes = sum(tensor.nbytes for tensor in tensors_in(tree))
        if self.is_full(nbytes) and all(type(tensor) is Tensor for tensor in tensors_in(tree)):
            self._trees.append(map_leaves(_filed, tree))
        else:
            self._trees.append(map_leaves(lambda leaf: _own(leaf.detach()) if isinstance(leaf, Tensor) else leaf, tree))
            self._nbytes += nbytes

    def forget_numbers(self) -> None:
        """Leave tensors of the same shapes on the device "meta", which refuse to be used, and free the others."""
        self._trees = [without_numbers(self[number]) for number in range(len(self))]
        self._nbytes = 0


@dataclass(frozen=True)
class _Filed:
    """A tensor in a file, of one on a device."""

    tensor: Tensor
    device: torch.device


def _filed(leaf: Any) -> Any:
    return _Filed(in_file(leaf), leaf.device) if isinstance(leaf, Tensor) else leaf


def _own(leaf: Any) -> Any:
    if isinstance(leaf, _Filed):
        return leaf.tensor.to(leaf.device, copy=True)
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def can_keep(tree: Any) -> bool:
    """Tell whether a tree holds tensors and plain values alone: objects may be written into later."""
    return all(
        can_keep(dict(leaf)) if isinstance(leaf, Mapping) else isinstance(leaf, _PLAIN) for leaf in tree_leaves(tree)
    )


def without_numbers(tree: Any) -> Any:
    """Return a tree with tensors on the device "meta"."""
    return map_leaves(lambda leaf: leaf.to("meta") if isinstance(leaf, Tensor) else leaf, tree)
