"""Units of a model's groups that nothing reads, and units with a constant output that can move into the next bias."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from octavo.data.batches import call_on
from octavo.prune.groups import Group, Place

_CONSTANT = 1e-5  # largest relative spread over tokens of a number that counts as constant


def used_indices(parameter: Tensor, dim: int) -> Tensor:
    """Return which indices of a dimension have a value that is not zero, bool ``[size]``."""
    return (parameter.detach() != 0).movedim(dim, 0).reshape(parameter.shape[dim], -1).any(1)


def unread(group: Group, parameters: Mapping[str, Tensor]) -> Tensor:
    """Return which units of a group nothing reads: all of their consumers are zero; bool ``[units]``."""
    return _all_zero(group.consumers, parameters, len(group.units))


def _all_zero(places: Sequence[Place], parameters: Mapping[str, Tensor], units: int) -> Tensor:
    zero = torch.ones(units, dtype=torch.bool)
    for place in places:
        used = used_indices(parameters[place.name], place.dim).cpu()
        zero &= ~used[place.indices].any(1)
    return zero


@dataclass(frozen=True)
class Constants:
    """Units whose output does not depend on the input. ``units``: bool ``[units]``.

    ``numbers``: the outputs by the name of the weight that reads them, float64 ``[units, indices of a unit]``.
    """

    group: Group
    units: Tensor
    numbers: Mapping[str, Tensor]

    def added(self, chosen: Tensor, parameters: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Yield the names of biases with the contribution of the ``chosen`` units, float64."""
        chosen = chosen & self.units
        for place in self.group.consumers if bool(chosen.any()) else ():
            numbers = self.numbers[place.name][chosen].flatten()
            if bool((numbers != 0).any()):
                read = parameters[place.name].detach().index_select(place.dim, place.indices[chosen].flatten())
                yield _bias(place.name), numbers @ read.movedim(place.dim, 0).double()


def constants(model: nn.Module, group: Group, parameters: Mapping[str, Tensor], inputs: Any) -> Constants:
    """Return the units whose rows are all zero, and their outputs. A nonzero output needs a consumer with a bias."""
    matrices = [place for place in group.producers if parameters[place.name].ndim > 1]
    units = _all_zero(matrices, parameters, len(group.units))
    layers = {place.name: _reader(model, place.name) for place in group.consumers}
    if not matrices or not bool(units.any()) or None in layers.values():
        return Constants(group, torch.zeros_like(units), {})
    seen = _inputs_of({name: layer for name, layer in layers.items() if layer is not None}, model, inputs)
    numbers: dict[str, Tensor] = {}
    for place in group.consumers:
        if place.name not in seen:
            return Constants(group, torch.zeros_like(units), {})
        x = seen[place.name].reshape(-1, seen[place.name].shape[-1]).cpu()[:, place.indices]  # [tokens, units, indices]
        units &= (x - x[:1]).abs().amax((0, 2)) <= _CONSTANT * max(1.0, float(x.abs().max()))
        if _bias(place.name) not in parameters:
            units &= (x == 0).all(2).all(0)
        numbers[place.name] = x[0].double()
    return Constants(group, units, numbers)


def _bias(weight: str) -> str:
    return f"{weight.rpartition('.')[0]}.bias"


def _reader(model: nn.Module, name: str) -> nn.Module | None:
    """Return the layer that multiplies its input with a parameter; None for other parameters."""
    path, _, last = name.rpartition(".")
    module = model.get_submodule(path)
    return module if last == "weight" and hasattr(module, "bias") else None


@torch.no_grad()
def _inputs_of(layers: Mapping[str, nn.Module], model: nn.Module, inputs: Any) -> dict[str, Tensor]:
    """Run the model and return the input of each layer, by the name of its weight."""
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(_: nn.Module, arguments: tuple[Any, ...]) -> None:
            seen.setdefault(name, arguments[0])

        return hook

    handles = [layer.register_forward_pre_hook(keep(name)) for name, layer in layers.items()]
    try:
        call_on(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return seen
