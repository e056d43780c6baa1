"""Removal of units of a group: the indices of parameters to remove, and the numbers in modules to update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from octavo.prune.groups import Group, Place
from octavo.prune.sizes import NUMBERS, select_heads, selectable_heads

Removed = dict[tuple[str, int], Tensor]
"""Indices to remove of a dimension of a parameter, bool, by (name, dimension)."""

_OF_HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "heads", "nhead")
_OF_WIDTHS = ("all_head_size", "inner_dim", "split_size")


@dataclass(frozen=True)
class Counts:
    """Numbers before and after: query heads or neurons, and (``shared``) key and value heads."""

    kind: str
    before: int
    after: int
    shared_before: int
    shared_after: int


@dataclass(frozen=True)
class Removal:
    """The units of a group to remove: ``gone``, bool ``[units]``.

    For query heads that share keys and values, ``queries`` is the group with a unit for each query head, and
    ``gone_queries`` the query heads that are removed in addition.
    """

    group: Group
    gone: Tensor
    queries: Group | None = None
    gone_queries: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))

    def with_queries(self, queries: Group, dead: Tensor) -> Removal:
        """Also remove ``dead`` query heads, the same number in each remaining set, but not all of a set."""
        sets = dead.reshape(len(self.group.units), self.group.queries)
        most = min(int(sets[~self.gone].sum(1).min()), self.group.queries - 1)
        first = sets.cumsum(1) <= most
        return Removal(self.group, self.gone, queries, (sets & first & ~self.gone[:, None]).flatten())

    def mark(self, parameters: Mapping[str, Tensor], removed: Removed) -> None:
        """Mark the indices to remove."""

        def add(places: tuple[Place, ...], gone: Tensor) -> None:
            for place in places:
                size = parameters[place.name].shape[place.dim]
                marks = removed.setdefault((place.name, place.dim), torch.zeros(size, dtype=torch.bool))
                marks[place.indices[gone].flatten()] = True

        if bool(self.gone.any()):
            add((*self.group.producers, *self.group.consumers), self.gone)
        if self.queries is not None and bool(self.gone_queries.any()):
            add((*self.queries.producers, *self.queries.consumers), self.gone_queries)

    @property
    def counts(self) -> Counts:
        """The numbers before and after."""
        units, stay = len(self.group.units), int((~self.gone).sum())
        each = self.group.queries - int(self.gone_queries.sum()) // max(stay, 1)
        return Counts(self.group.kind, units * self.group.queries, stay * each, units, stay)

    def set_numbers(self, model: nn.Module) -> None:
        """Update the numbers of heads or neurons in the modules that contain the producers."""
        paths = {place.name.rpartition(".")[0].rpartition(".")[0] for place in self.group.producers}
        counts = self.counts
        if counts.before == counts.after:
            return
        for path in paths:
            holder = model.get_submodule(path)
            attributes = vars(holder)
            whole = selectable_heads(holder) if self.group.kind == "head" else None
            new = self._widths(counts) if self.group.kind == "neuron" else self._heads(counts, attributes)
            for name, (before, after) in new.items():
                if type(attributes.get(name)) is int and attributes[name] == before and name in NUMBERS:
                    attributes[name] = after
            if whole is not None:
                now = attributes["_buffers"].get("kept_heads")
                now = torch.arange(whole) if now is None else now.cpu()
                select_heads(holder, now[~self.gone].tolist(), whole)

    def _widths(self, counts: Counts) -> dict[str, tuple[int, int]]:
        return {"intermediate_size": (counts.before, counts.after)}

    def _heads(self, counts: Counts, attributes: Mapping[str, object]) -> dict[str, tuple[int, int]]:
        inside = next(place.indices.shape[1] for place in self.group.consumers) // self.group.queries
        new = dict.fromkeys(_OF_HEADS, (counts.before, counts.after))
        new |= dict.fromkeys(_OF_WIDTHS, (counts.before * inside, counts.after * inside))
        new["num_key_value_heads"] = (counts.shared_before, counts.shared_after)
        ratio = attributes.get("num_key_value_groups")
        if isinstance(ratio, int) and ratio:
            shared = counts.before // ratio  # 1 if all query heads share one key head, which is no unit and stays
            stay = counts.shared_after if shared == counts.shared_before else shared
            new["num_key_value_groups"] = (ratio, counts.after // stay)
        return new
