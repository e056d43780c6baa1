"""Dependency groups: the rows and columns of a model's weights that are removed with a head, neuron or layer.

::

    for group in octavo.prune.groups(model):
        print(group.kind, group.name, len(group.units))

A unit may be removed if all of its *consumers*, the weights that read it, are zero: then the results of its
*producers* do not reach the output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from octavo.errors import ModelError, ShapeError
from octavo.graph import Graph, capture
from octavo.graph.example_inputs import example_inputs
from octavo.graph.exporting import take
from octavo.prune.axes import INSIDE, Part, leaves
from octavo.prune.flow import AS_A_WHOLE, Flow
from octavo.prune.residual import residual_layers
from octavo.storage.arguments import checks_arguments

Kind = Literal["head", "neuron", "layer"]


@dataclass(frozen=True)
class Slice:
    """Indices ``indices`` of dimension ``dim`` of the parameter ``name`` of the state dict."""

    name: str
    dim: int
    indices: Tensor

    @checks_arguments
    def of(self, tensor: Tensor) -> Tensor:
        """Return a copy of the slice of a tensor.

        Args:
            tensor: of the parameter's shape.

        Returns:
            The copy.

        Raises:
            ShapeError: for another shape.
        """
        last = int(self.indices.max()) if len(self.indices) else -1
        if tensor.ndim <= self.dim or tensor.shape[self.dim] <= last:
            shape = tuple(tensor.shape)
            raise ShapeError(f"tensor has shape {shape}; accepted are more than {last} places in dimension {self.dim}")
        return tensor.index_select(self.dim, self.indices.to(tensor.device))


@dataclass(frozen=True)
class Unit:
    """A removable unit: ``producers``, the rows that compute it, and ``consumers``, the columns that read it.

    ``name``: the path of a layer. A layer has no producers; its consumers are the weights that end its branches.
    """

    producers: tuple[Slice, ...]
    consumers: tuple[Slice, ...]
    name: str = ""


@dataclass(frozen=True)
class Place:
    """The slices of all units of a group in one parameter: ``indices`` is int64 ``[units, indices of a unit]``."""

    name: str
    dim: int
    indices: Tensor

    @checks_arguments
    def slice(self, unit: int) -> Slice:
        """Return the slice of one unit.

        Args:
            unit: number of the unit.

        Returns:
            The slice.
        """
        return Slice(self.name, self.dim, self.indices[unit])


class _Units(Sequence[Unit]):
    """Units created on access, because a large model has hundreds of thousands."""

    def __init__(self, count: int, producers: tuple[Place, ...], consumers: tuple[Place, ...]) -> None:
        self._count, self._producers, self._consumers = count, producers, consumers

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Unit: ...
    @overload
    def __getitem__(self, index: slice) -> list[Unit]: ...
    def __getitem__(self, index: int | slice) -> Unit | list[Unit]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(self._count))]
        number = range(self._count)[index]
        return Unit(
            tuple(place.slice(number) for place in self._producers),
            tuple(place.slice(number) for place in self._consumers),
        )


@dataclass(frozen=True, eq=False)
class Group:
    """Units of one kind at one place of a model.

    ``kind``: ``head``, ``neuron`` or ``layer``. ``name``: path of the module that contains all of its parameters.
    ``producers``, ``consumers``: its slices by parameter, for all units; empty for layers, whose units have separate
    parameters. ``queries``: query heads of a unit, in attention with shared keys and values (GQA).
    """

    kind: Kind
    name: str
    units: Sequence[Unit] = field(repr=False)
    producers: tuple[Place, ...] = field(default=(), repr=False)
    consumers: tuple[Place, ...] = field(default=(), repr=False)
    queries: int = 1


@dataclass(frozen=True, eq=False)
class Structure:
    """The dependency groups of a model. ``refused``: why modules with such structure have no group, by path."""

    groups: tuple[Group, ...]
    refused: dict[str, str]


@checks_arguments
def groups(
    model: nn.Module,
    inputs: Any = None,
    *,
    kinds: Sequence[Kind] = ("head", "neuron", "layer"),
    query_heads: bool = False,
) -> list[Group]:
    """Return the dependency groups of a model, in the order in which the model runs, layers last.

    A group is returned only if the graph shows that its units are independent.

    Args:
        model: the model; it is not run on data.
        inputs: as for :func:`octavo.graph.capture`; default: example inputs from the signature of ``forward``.
        kinds: kinds of units to return.
        query_heads: with several query heads for a key and value head, a unit is one query head; by default the key and
            value head with all of its query heads.

    Returns:
        The groups.

    Raises:
        ModelError: for a model without a group of these kinds, with the reasons, or that cannot be captured.
    """
    dependencies = structure(model, inputs, query_heads=query_heads)
    if not kinds:
        raise ModelError("kinds is empty; accepted are head, neuron and layer")
    chosen = [group for group in dependencies.groups if group.kind in kinds]
    if not chosen:
        reasons = "; ".join(f"{path}: {why}" for path, why in list(dependencies.refused.items())[:4])
        raise ModelError(
            f"{type(model).__name__}: no {' or '.join(kinds)} of it can be removed on its own"
            f"{reasons and ': ' + reasons}"
        )
    return chosen


@checks_arguments
def structure(model: nn.Module, inputs: Any = None, *, query_heads: bool = False) -> Structure:
    """Return all dependency groups of a model, and refused modules.

    Args:
        model: the model; it is not run on data.
        inputs: as for :func:`groups`.
        query_heads: as for :func:`groups`.

    Returns:
        The groups, and the reasons for modules without one.

    Raises:
        ModelError: for a model that cannot be captured.
    """
    graph = fixed_graph(model, example_inputs(model) if inputs is None else inputs)
    flow = Flow(graph, apart=frozenset(selected_biases(model)))
    all_groups, refused = _read(flow, query_heads)
    for path, ends in residual_layers(model, graph):
        if ends:
            all_groups.append(Group("layer", path, _layers(graph, ends)))
        else:
            refused.setdefault(path, "its layers are not their input plus branches that end in weights of their own")
    return Structure(tuple(all_groups), refused)


def fixed_graph(model: nn.Module, inputs: Any) -> Graph:
    """Return the graph of a model with the sizes of the inputs. Raises ModelError if it has no operators."""
    arguments = dict(inputs) if isinstance(inputs, Mapping) else inputs
    if isinstance(arguments, dict) and getattr(getattr(model, "config", None), "use_cache", False):
        arguments.setdefault("use_cache", False)  # a returned cache would make every key and value an output
    taken = take(model, arguments, None)
    names = {name: (None,) * tensor.ndim for name, tensor in zip(taken.names, taken.tensors, strict=True)}
    graph = capture(model, arguments, dimensions=names)
    if graph.refusal is not None:
        raise ModelError(f"{type(model).__name__}: its structure is not known, because {graph.refusal}")
    return graph


def selected_biases(model: nn.Module) -> Iterator[str]:
    """Yield biases of attention scores that all layers share, such as T5's, from which each layer selects its heads."""
    for path, module in model.named_modules():
        if hasattr(module, "compute_bias") and isinstance(
            getattr(module, "relative_attention_bias", None), nn.Embedding
        ):
            yield f"{path}.relative_attention_bias.weight"


# --- from axes to groups ----------------------------------------------------------------------------------------------


def _read(flow: Flow, query_heads: bool) -> tuple[list[Group], dict[str, str]]:
    places: dict[int, list[Place]] = {}
    parts: dict[int, Part] = {}
    for name, record in flow.graph.tensors.items():
        if record.kind == "weight":
            for dim, axis in enumerate(flow.axes[name]):
                size = int(record.shape[dim])
                for part, indices in _indices(axis, torch.arange(size)[None]):
                    parts[id(part)] = part
                    slices = places.setdefault(id(part), [])
                    if slices and (slices[-1].name, slices[-1].dim) == (
                        name,
                        dim,
                    ):  # one weight makes query, key and value
                        indices = torch.cat([slices.pop().indices, indices], 1)
                    slices.append(Place(name, dim, indices))
    all_groups: list[Group] = []
    refused: dict[str, str] = {}
    for key, part in parts.items():
        group = _group(flow, part, places[key])
        if isinstance(group, str) and group != INSIDE:
            refused.setdefault(_common([place.name for place in places[key]]), group)
        elif isinstance(group, Group):
            all_groups.append(group)
    order = _order(flow)
    all_groups = [
        _with_queries(flow, group, query_heads)
        for group in all_groups
        if group.kind != "head" or _is_outer(group, all_groups)
    ]
    all_groups.sort(key=lambda group: min(order.get(place.name, 0) for place in (*group.consumers, *group.producers)))
    return all_groups, refused


def _indices(axis: Sequence[Part], index: Tensor) -> Iterator[tuple[Part, Tensor]]:
    """Yield the parts of an axis with the parameter indices of each of their indices: int64 ``[size, rest]``.

    ``index``: parameter indices of the axis, ``[1, size of the axis]`` or ``[others, size]``.
    """
    parts = leaves(axis)
    shaped = index.reshape(index.shape[0], *(part.size for part in parts))
    for dim, part in enumerate(parts):
        own = shaped.movedim(dim + 1, 0).reshape(part.size, -1)
        yield part, own
        for (start, stop), segment in part.segments.items():
            yield from _indices([segment], own[start:stop].T)


def _group(flow: Flow, part: Part, places: list[Place]) -> Group | str | None:
    """Return the group of a part, the reason why there is none, or None if none is expected."""
    consumers = tuple(place for place in places if (place.name, place.dim) in flow.read)
    producers = tuple(place for place in places if (place.name, place.dim) in flow.written)
    if not consumers or not any(flow.graph.tensors[place.name].shape[1:] for place in producers):
        return part.mixed if part.mixed and part.mixed.endswith(AS_A_WHOLE) else None
    both = {(place.name, place.dim) for place in consumers} & {(place.name, place.dim) for place in producers}
    if part.mixed or both:
        return part.mixed or "one weight makes it and reads it"
    is_whole = all(place.indices.shape[1] == 1 for place in (*consumers, *producers))
    if not part.is_batch and not (is_whole and part.is_active):
        return None
    name = _owner([*consumers, *producers]) or _owner(producers)
    units = _Units(part.size, producers, consumers)
    return Group("head" if part.is_batch else "neuron", name, units, producers, consumers)


def _layers(graph: Graph, ends: Mapping[str, Sequence[str]]) -> tuple[Unit, ...]:
    """Return the layers of a stack as units; ``ends`` has the weights that must be zero by the path of a layer."""
    return tuple(
        Unit((), tuple(Slice(name, 0, torch.arange(int(graph.tensors[name].shape[0]))) for name in names), path)
        for path, names in ends.items()
    )


def _common(paths: Sequence[str]) -> str:
    split = [path.split(".") for path in paths]
    common = []
    for names in zip(*split, strict=False):
        if len(set(names)) > 1:
            break
        common.append(names[0])
    return ".".join(common)


def _owner(places: Sequence[Place]) -> str:
    """Return the path of the innermost module that contains the parameters of all places."""
    return _common([place.name.rpartition(".")[0] for place in places])


def _order(flow: Flow) -> dict[str, int]:
    order: dict[str, int] = {}
    for number, node in enumerate(flow.graph.nodes):
        for name in node.inputs:
            order.setdefault(flow.origin(name) or name, number)
    return order


# --- shared keys and values -------------------------------------------------------------------------------------------


def _is_outer(group: Group, all_groups: Sequence[Group]) -> bool:
    """Whether a group of heads is not the group of query heads inside another group."""
    own = {place.name for place in group.producers}
    return not any(
        other is not group and other.kind == "head" and own < {place.name for place in other.producers}
        for other in all_groups
    )


def _with_queries(flow: Flow, group: Group, query_heads: bool) -> Group:
    """Return the group with its number of query heads per unit, or with ``query_heads`` one unit per query head."""
    if group.kind != "head":
        return group
    counts: dict[tuple[str, int], int] = {}
    for place in (*group.producers, *group.consumers):
        parts = leaves(flow.axes[place.name][place.dim])
        at = next((n for n, part in enumerate(parts) if part.size == len(group.units) and part.is_batch), None)
        following = parts[at + 1] if at is not None and at + 1 < len(parts) - 1 else None
        counts[place.name, place.dim] = following.size if following is not None and following.is_batch else 1
    queries = max(counts.values())
    if queries == 1 or not query_heads:
        return Group(group.kind, group.name, group.units, group.producers, group.consumers, queries)

    def inner(places: tuple[Place, ...]) -> tuple[Place, ...]:
        return tuple(
            Place(place.name, place.dim, place.indices.reshape(len(group.units) * queries, -1))
            for place in places
            if counts[place.name, place.dim] == queries
        )

    producers, consumers = inner(group.producers), inner(group.consumers)
    return Group("head", group.name, _Units(len(group.units) * queries, producers, consumers), producers, consumers)
