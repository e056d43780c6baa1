"""``capture``: builds a graph of typed records from a model and its inputs. The graph is a read-only view."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from octavo.graph.exporting import FlatInputs, Names, exported, take
from octavo.graph.model_graph import Graph
from octavo.graph.model_records import ModelRecords, model_records
from octavo.graph.translate import Translation
from octavo.storage.arguments import checks_arguments

_MOST_REASON = 600  # characters of an error of torch.export

_cache: WeakKeyDictionary[nn.Module, tuple[Any, Graph]] = WeakKeyDictionary()


@checks_arguments
def capture(model: nn.Module, inputs: Any, *, dimensions: Names | None = None) -> Graph:
    """Return the graph of a model: its operators, tensors and modules, without running it.

    The model is captured in its present mode; its values, mode and random state are not changed. If ``torch.export``
    refuses the model, the graph has only the module level, and ``Graph.refusal`` has the reason. Graphs are cached: the
    same call returns the same graph until modules, shapes, formats or inputs change.

    Args:
        model: the model; it may be on the meta device.
        inputs: a mapping of keyword arguments, a tuple or list of positional arguments, or a single argument; values do
            not matter.
        dimensions: names of the dimensions of an input, None for a fixed one, as in
            ``{"x": ("sequence", "batch", None)}``. By default the first dimension of every input is ``batch``, and the
            second dimension of token ids, and of float tensors of three dimensions, is ``sequence``. A size that the
            model's own code fixes stays a number.

    Returns:
        The graph, which prints as tables.

    Raises:
        ModelError: for inputs that do not fit the model's ``forward``.
        DTypeError: for an argument that is no module.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))
        >>> graph = octavo.graph.capture(model, torch.zeros(1, 64))
        >>> [node.op for node in graph.nodes], graph.costs("int4:g32").at(batch=16).macs
        (['aten.linear', 'aten.relu', 'aten.linear'], 73728)
    """
    flat = take(model, inputs, dimensions)
    key = (_state(model), flat.key())
    cached = _cache.get(model)
    if cached is not None and cached[0] == key:
        return cached[1]
    graph = _capture(model, flat)
    _cache[model] = (key, graph)
    return graph


def _capture(model: nn.Module, flat: FlatInputs) -> Graph:
    records = model_records(model)
    try:
        translation: Translation | None = Translation(exported(model, flat), flat, records)
        refusal = None
    except Exception as error:  # torch.export may raise anything; the module level remains
        translation, refusal = None, _reason(error)
    return _graph(model, flat, records, translation, refusal)


def _graph(
    model: nn.Module, flat: FlatInputs, records: ModelRecords, translation: Translation | None, refusal: str | None
) -> Graph:
    activations = translation.tensors if translation is not None else {}
    return Graph(
        model_class=type(model).__name__,
        training=model.training,
        modules=records.modules,
        tensors={**records.tensors, **activations},
        nodes=() if translation is None else tuple(translation.nodes),
        inputs=flat.names if translation is None else tuple(translation.inputs),
        outputs=() if translation is None else tuple(translation.outputs),
        sizes=dict(flat.sizes),
        refusal=refusal,
        sites=records.sites,
    )


def _reason(error: Exception) -> str:
    """Return the message of an error in one line, without the traces that torch.export appends."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    useful: list[str] = []
    for line in lines:
        if line.startswith(("Traceback", "File ", "The following call raised", "from user code", "While executing")):
            break
        useful.append(line)
    message = " ".join(useful) or type(error).__name__
    return f"torch.export: {type(error).__name__}: {message}"[:_MOST_REASON]


# --- the state of a model ---------------------------------------------------------------------------------------------


def _state(model: nn.Module) -> tuple[Any, ...]:
    """Return a cache key: everything that the graph of a model depends on."""
    tensors: dict[int, int] = {}
    facts: list[Any] = []
    for path, module in model.named_modules(remove_duplicate=False):
        members = vars(module)
        own = [
            (name, tensors.setdefault(id(tensor), len(tensors)), tuple(tensor.shape), tensor.dtype, tensor.device)
            for registry in (module._parameters, module._buffers)
            for name, tensor in registry.items()
            if tensor is not None and not is_lazy(tensor)
        ]
        attributes = [(name, _value(value)) for name, value in members.items() if name not in _REGISTRIES]
        hooks = [
            tuple(map(id, registry.values()))
            for name, registry in members.items()
            if name.endswith("hooks") and isinstance(registry, Mapping)  # lists are ordinary attributes
        ]
        forward = getattr(type(module), "forward", None)  # None for a scripted module, whose class has no forward
        facts.append((path, type(module), id(forward), own, attributes, hooks))
    return (torch.__version__, repr(facts))


_REGISTRIES = frozenset(vars(nn.Module())) - {"training"}


def _value(value: Any, inside: tuple[int, ...] = ()) -> object:
    """Return a key of an attribute's value that changes whenever a forward pass could read a different value.

    ``inside``: ids of the enclosing containers, which end the recursion for a container that contains itself.
    """
    if value is None or isinstance(value, bool | int | float | str | torch.dtype | torch.device):
        return value
    if isinstance(value, Tensor):
        return id(value), tuple(value.shape), value.dtype
    if isinstance(value, nn.Module) or callable(value):
        return id(value)
    if isinstance(value, Mapping | tuple | list | set | frozenset):
        if id(value) in inside:
            return "itself"
        inside = (*inside, id(value))
        if isinstance(value, Mapping):
            return [(str(key), _value(item, inside)) for key, item in value.items()]
        return [_value(item, inside) for item in value]
    text = repr(value)
    return id(value) if " object at 0x" in text else text
