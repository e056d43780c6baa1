"""Where a solver is kept: groups of layers that are swapped between two rounded models, one group after the other."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from octavo.nn.replace_modules import Undo, replace_modules
from octavo.search.layer_sensitivity import Group

_BLOCK = re.compile(r"^(.*?\.)?\d+(?=\.|$)")  # a path up to its first number


@dataclass(frozen=True)
class Part:
    """Groups of layers that are swapped together. ``label``: names them for people."""

    label: str
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Swap:
    """One part that was swapped: the divergence with it and without it, and whether that was kept."""

    part: Part
    swapped: float
    before: float

    @property
    def is_better(self) -> bool:
        """Whether the divergence fell."""
        return self.swapped < self.before


def parts_of(groups: Sequence[Group], choice: Mapping[str, str], most: int) -> list[Part]:
    """Return what is tried apart: the groups of each format, then consecutive blocks, at most ``most`` parts of them.

    A block is what has one number in its path, such as ``model.layers.3``; a group outside blocks is one of its own.
    """
    formats: dict[str, list[Group]] = {}
    blocks: dict[str, list[Group]] = {}
    for group in groups:
        formats.setdefault(choice[group.name], []).append(group)
        path = group.layers[0] if group.layers else group.name
        block = _BLOCK.match(path)
        blocks.setdefault(block.group() if block else group.name, []).append(group)
    by_format = [Part(text, tuple(members)) for text, members in formats.items()] if len(formats) > 1 else []
    names = list(blocks)
    size = -(-len(names) // max(most, 1))
    cut = [names[start : start + size] for start in range(0, len(names), size)]
    by_block = [Part(_label(some), tuple(group for name in some for group in blocks[name])) for some in cut]
    every = [*by_format, *(by_block if len(by_block) > 1 else ())]
    return every if most > 1 else []


def swapped_parts(
    model: nn.Module, other: nn.Module, parts: Sequence[Part], loss: float, loss_of: Callable[[nn.Module], float]
) -> tuple[set[str], list[Swap]]:
    """Swap the layers of one part after the other, and keep each swap that lowers the loss.

    ``model``, ``other``: with the same layers, rounded in two ways; both are as they were afterwards. Returns the names
    of the groups that are better in ``other``, and every swap. A part that was swapped before as a whole is swapped
    back.
    """
    taken: set[str] = set()
    swaps: list[Swap] = []
    for part in parts:
        names = {group.name for group in part.groups}
        proposed = taken - names if names <= taken else taken | names
        swapped = _loss_with(model, other, parts, proposed, loss_of)
        swaps.append(Swap(part, swapped, loss))
        if swapped < loss:
            taken, loss = proposed, swapped
    return taken, swaps


def _loss_with(
    model: nn.Module,
    other: nn.Module,
    parts: Sequence[Part],
    names: Collection[str],
    loss_of: Callable[[nn.Module], float],
) -> float:
    """Return the loss of ``model`` with the layers of some groups of ``other``."""
    layers = {layer for part in parts for group in part.groups if group.name in names for layer in group.layers}
    undo: Undo = []
    mixed = replace_modules(
        model, {id(model.get_submodule(layer)): other.get_submodule(layer) for layer in layers}, undo
    )
    try:
        return loss_of(mixed)
    finally:
        for step in reversed(undo):
            step()


def _label(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
