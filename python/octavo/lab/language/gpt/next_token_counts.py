"""Counts of next tokens in training text: after one token, and after whole prefixes of a few."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

NO_TOKEN = 0
"""The id in cells of a table that hold no token; their weight is 0."""

# Of the rolling hash of a prefix, modulo 2 ** 64.
_STEP = np.uint64(0x9E3779B97F4A7C15)


def bigram_table(stream: Tensor, vocabulary: int, largest: int, end_of_text: int | None) -> tuple[Tensor, Tensor]:
    """Return the most frequent next tokens of each token and their relative frequencies, ``[V, largest]`` each.

    Frequencies are of all occurrences, so that a row adds up to 1 at most. Pairs that cross into another document,
    with ``end_of_text`` as second token, do not count. Ties by id.
    """
    ids = stream.cpu().numpy().astype(np.int64)
    first, second = ids[:-1], ids[1:]
    if end_of_text is not None:
        first, second = first[second != end_of_text], second[second != end_of_text]
    return _largest(first, np.arange(vocabulary), second, vocabulary, largest)


class PrefixTable:
    """The most frequent next tokens after prefixes of 1 to ``longest`` tokens that occur twice or more.

    ``keys``: sorted hashes of prefixes. ``ids``, ``mass``: next tokens and their frequencies, ``[prefixes, largest]``.
    """

    def __init__(self, stream: Tensor, vocabulary: int, *, longest: int, largest: int, end_of_text: int | None) -> None:
        """Count a stream of training ids; nothing is counted across the border of a document."""
        ids = stream.cpu().numpy().astype(np.int64)
        keys, following = [], []
        hashes = np.zeros(len(ids), dtype=np.uint64)  # of the prefix that begins at each position
        whole = np.ones(len(ids), dtype=bool)
        for length in range(1, min(longest, len(ids) - 1) + 1):
            count = len(ids) - length
            hashes, whole = hashes[:count], whole[:count]
            hashes = (hashes + ids[length - 1 : length - 1 + count].astype(np.uint64) + np.uint64(1)) * _STEP
            if end_of_text is not None:
                whole = whole & (ids[length : length + count] != end_of_text)
            keys.append(hashes[whole])
            following.append(ids[length : length + count][whole])
        every, after = np.concatenate(keys), np.concatenate(following)
        known, place, counts = np.unique(every, return_inverse=True, return_counts=True)
        frequent = np.flatnonzero(counts >= 2)
        kept = counts[place] >= 2
        places = np.searchsorted(frequent, place[kept])
        self.ids, self.mass = _largest(places, np.arange(len(frequent)), after[kept], vocabulary, largest)
        self.keys = torch.from_numpy(
            known[frequent].view(np.int64) ^ np.int64(-(2**63))
        )  # in the order of signed numbers

    def rows(self, ids_BT: Tensor) -> Tensor:
        """Return the row of the prefix that ends at each position, ``[B, T]``; -1 where it is not in the table."""
        ids = ids_BT.cpu().numpy().astype(np.uint64)
        hashes = np.zeros(len(ids), dtype=np.uint64)
        found = []
        for at in range(ids.shape[1]):
            hashes = (hashes + ids[:, at] + np.uint64(1)) * _STEP
            found.append(torch.from_numpy(hashes.view(np.int64) ^ np.int64(-(2**63))))
        keys_BT = torch.stack(found, 1)
        if not len(self.keys):
            return torch.full_like(keys_BT, -1)
        place_BT = torch.searchsorted(self.keys, keys_BT).clamp_max(len(self.keys) - 1)
        return torch.where(self.keys[place_BT] == keys_BT, place_BT, -1)


def _largest(
    groups: NDArray[Any], names: NDArray[Any], values: NDArray[Any], vocabulary: int, largest: int
) -> tuple[Tensor, Tensor]:
    """Return the most frequent values of each group, and their share of the group, ``[len(names), largest]``."""
    ids = np.full((len(names), largest), NO_TOKEN, dtype=np.int64)
    mass = np.zeros((len(names), largest), dtype=np.float32)
    pairs, counts = np.unique(groups.astype(np.int64) * vocabulary + values, return_counts=True)
    group, value = pairs // vocabulary, pairs % vocabulary
    order = np.lexsort((value, -counts, group))
    group, value, counts = group[order], value[order], counts[order]
    rank = np.arange(len(group)) - np.searchsorted(group, group)
    total = np.bincount(group, weights=counts, minlength=len(names))
    kept = rank < largest
    ids[group[kept], rank[kept]] = value[kept]
    mass[group[kept], rank[kept]] = counts[kept] / total[group[kept]]
    return torch.from_numpy(ids), torch.from_numpy(mass)
