"""Trees of tensors that are kept for later: in memory while they are small, else in a file that is mapped."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from octavo.data.batches import map_leaves, tensors_in

_PLAIN = (Tensor, bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
MOST_HELD = 1 << 28
"""Bytes that a list of trees holds in memory; what is appended beyond them lies in files."""

FULL_DISK = "cannot be written; set TMPDIR to a folder with more space"


class KeptTrees:
    """A list of trees of tensors, such as the outputs of a module for each batch.

    Trees that come back are the caller's own: writing into them changes none that is kept. Files are in a folder for
    temporary files, and go with the list.
    """

    def __init__(self, lists: int = 1) -> None:
        """Begin empty; ``lists``: of which this is one, share the memory."""
        self._most = MOST_HELD // lists
        self._trees: list[Any] = []
        self._nbytes = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __len__(self) -> int:
        """Return the number of trees."""
        return len(self._trees)

    def __getitem__(self, number: int) -> Any:
        """Return a tree; of one in a file, pages that nobody reads are not read."""
        tree = self._trees[number]
        if isinstance(tree, _InFile):
            return tree.read()
        return map_leaves(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, tree)

    def is_full(self, nbytes: int) -> bool:
        """Tell whether so many bytes more go into a file."""
        return self._nbytes + nbytes > self._most

    def append(self, tree: Any) -> None:
        """Keep the tensors of a tree as they are now. Raises OSError where a file cannot be written."""
        nbytes = sum(tensor.nbytes for tensor in tensors_in(tree))
        own = map_leaves(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, tree)
        if self.is_full(nbytes) and all(type(tensor) is Tensor for tensor in tensors_in(own)):
            self._folder = self._folder or tempfile.TemporaryDirectory(prefix="octavo-")
            place = Path(self._folder.name, str(len(self._trees)))
            try:
                self._trees.append(_InFile.written(own, place))
            except RuntimeError as error:  # of torch's writer, which says nothing of the disk
                raise OSError(f"{place} {FULL_DISK}: {error}") from error
        else:
            self._trees.append(own)
            self._nbytes += nbytes

    def forget_numbers(self) -> None:
        """Leave tensors of the same shapes on the device "meta", which refuse to be used, and free the others."""
        self._trees = [without_numbers(self[number]) for number in range(len(self))]
        self._nbytes = 0
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


@dataclass(frozen=True)
class _InFile:
    """A tree whose tensors are a list in a file; ``leaves`` has its other leaves, ``tensors`` the places of those."""

    place: Path
    structure: TreeSpec
    leaves: list[Any]
    tensors: list[int]

    @classmethod
    def written(cls, tree: Any, place: Path) -> _InFile:
        """Write the tensors of a tree."""
        leaves, structure = tree_flatten(tree)
        tensors = [number for number, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        torch.save([leaves[number] for number in tensors], place)
        others = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        return cls(place, structure, others, tensors)

    def read(self) -> Any:
        """Map the file for this process alone."""
        leaves = list(self.leaves)
        for number, tensor in zip(self.tensors, torch.load(self.place, mmap=True, weights_only=True), strict=True):
            leaves[number] = tensor
        return tree_unflatten(leaves, self.structure)


def can_keep(tree: Any) -> bool:
    """Tell whether a tree holds tensors and plain values alone: objects may be written into later."""
    return all(
        can_keep(dict(leaf)) if isinstance(leaf, Mapping) else isinstance(leaf, _PLAIN) for leaf in tree_leaves(tree)
    )


def without_numbers(tree: Any) -> Any:
    """Return a tree with tensors on the device "meta"."""
    return map_leaves(lambda leaf: leaf.to("meta") if isinstance(leaf, Tensor) else leaf, tree)
