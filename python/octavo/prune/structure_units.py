"""Heads, neurons and layers as units of pruning: the slices of a dependency group in all of its tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from octavo.errors import ModelError
from octavo.prune.groups import Group, Place, Slice


@dataclass(frozen=True, eq=False)
class StructureUnits:
    """The units of one dependency group. The producers and consumers of a pruned unit are 0.

    ``shapes``: shapes of the group's parameters, by name.
    """

    group: Group
    sparsity: float
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def name(self) -> str:
        """The module and the kind, as in ``encoder.layer.0.attention (heads)``."""
        return f"{self.group.name or 'the model'} ({self.group.kind}s)"

    @property
    def cohort(self) -> tuple[object, ...]:
        """Kind and number, and the parameters' names without numbers, with their shapes: equal subgraphs."""
        named = sorted((re.sub(r"\d+", "*", name), self.shapes[name]) for name in self._names)
        return (self.group.kind, len(self.group.units), *named)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        if self.group.kind == "layer":
            slices = [one for unit in self.group.units for one in (*unit.producers, *unit.consumers)]
            return tuple(dict.fromkeys(one.name for one in slices))
        return tuple(dict.fromkeys(place.name for place in self._places))

    @property
    def _places(self) -> tuple[Place, ...]:
        return (*self.group.producers, *self.group.consumers)

    @property
    def home(self) -> tuple[str, str]:
        """The last parameter, a weight that reads the units."""
        return _split(self._names[-1])

    @property
    def places(self) -> tuple[tuple[str, str], ...]:
        """Every parameter that contains the units."""
        return tuple(map(_split, self._names))

    @cached_property
    def sizes(self) -> Tensor:
        """Elements of each unit."""
        return self.sums(lambda path, name: torch.ones(self.shapes[_joined(path, name)])).long()

    def sums(self, values: Callable[[str, str], Tensor]) -> Tensor:
        """Return the sums over all tensors, in float64."""
        tensors = {name: values(*_split(name)).double() for name in self._names}
        if self.group.kind == "layer":
            return torch.stack([
                torch.stack([one.of(tensors[one.name]).sum() for one in (*unit.producers, *unit.consumers)]).sum()
                for unit in self.group.units
            ])  # fmt: skip
        parts = []
        for place in self._places:
            tensor = tensors[place.name].movedim(place.dim, 0)
            along = tensor.reshape(len(tensor), -1).sum(1)
            parts.append(along[place.indices.to(along.device)].sum(1))
        return torch.stack(parts).sum(0)

    def elements(self, pruned: Tensor) -> dict[tuple[str, str], Tensor]:
        """Return the elements of every parameter."""
        gone = {name: torch.zeros(self.shapes[name], dtype=torch.bool, device=pruned.device) for name in self._names}
        for one in self._slices(pruned):
            gone[one.name].index_fill_(one.dim, one.indices.to(pruned.device), True)
        return {_split(name): mask for name, mask in gone.items()}

    def _slices(self, pruned: Tensor) -> list[Slice]:
        """Return the slices of the pruned units, one per place."""
        if self.group.kind == "layer":
            units = [self.group.units[int(number)] for number in pruned.nonzero()]
            return [one for unit in units for one in (*unit.producers, *unit.consumers)]
        chosen = pruned.cpu()
        return [Slice(place.name, place.dim, place.indices[chosen].flatten()) for place in self._places]

    def whole(self, pruned: Callable[[str, str], Tensor]) -> Tensor:
        """Return the units of which every element is pruned already."""
        counts = self.sums(pruned)
        return counts == self.sizes.to(counts.device)


def structure_units(model: nn.Module, groups: Sequence[Group], shares: Mapping[str, float]) -> list[StructureUnits]:
    """Return the units of groups in selected layers.

    ``shares``: sparsity by path of a layer. The sparsity of a group is that of its consumers. Raises ModelError if
    these differ, or if no group is left.
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters(remove_duplicate=False)}
    units = []
    for group in groups:
        readers = [_split(one.name)[0] for one in (group.consumers or _ends(group))]
        sparsities = sorted({shares[path] for path in readers if path in shares})
        if len(sparsities) > 1:
            raise ModelError(
                f"{group.name}: its {group.kind}s are given sparsities {', '.join(map(str, sparsities))}; they go "
                "together"
            )
        if sparsities:
            units.append(StructureUnits(group, sparsities[0], shapes))
    if not units and shares:
        kinds = sorted({group.kind for group in groups})
        raise ModelError(f"targets: none of the selected layers holds a {' or '.join(kinds)} that goes together")
    return units


def _ends(group: Group) -> list[Slice]:
    return [one for unit in group.units for one in unit.consumers]


def _split(name: str) -> tuple[str, str]:
    path, _, last = name.rpartition(".")
    return path, last


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
