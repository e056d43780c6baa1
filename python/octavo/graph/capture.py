"""``capture``: a model and its inputs become a graph of typed records; the model stays the truth, the graph a view."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from octavo.graph.exporting import Given, Names, exported, take
from octavo.graph.model_graph import Graph
from octavo.graph.model_records import ModelRecords, model_records
from octavo.graph.translate import Translation
from octavo.storage.arguments import checks_arguments

_MOST_REASON = 600  # characters of what torch.export says

_cache: WeakKeyDictionary[nn.Module, tuple[Any, Graph]] = WeakKeyDictionary()


@checks_arguments
def capture(model: nn.Module, inputs: Any, *, dimensions: Names | None = None) -> Graph:
    """Return the graph of a model: its operators, tensors and modules, without running it.

    ``inputs``: a mapping of keyword arguments, a tuple or list of positional ones, or the one argument; values do not
    matter, and a model on the meta device will do. ``dimensions``: names of the dimensions of an input, None for one
    that is fixed, as in ``{"x": ("sequence", "batch", None)}``. By default the first dimension of every input is
    ``batch``, and the second of token ids, and of float tensors of three dimensions, ``sequence``. A size that the
    model's own code fixes stays a number.

    The model is captured in the mode it is in; its values, mode and random numbers are left alone. What
    ``torch.export`` refuses keeps the module level; :attr:`Graph.refusal` tells why. A graph is kept while the model
    stays as it is: the same call returns the same graph, and any change to modules, shapes, formats or inputs captures
    again.

    Raises ModelError for inputs that do not fit the model's ``forward``, DTypeError for what is no module.
    """
    given = take(model, inputs, dimensions)
    key = (_state(model), given.key())
    kept = _cache.get(model)
    if kept is not None and kept[0] == key:
        return kept[1]
    graph = _capture(model, given)
    _cache[model] = (key, graph)
    return graph


def _capture(model: nn.Module, given: Given) -> Graph:
    records = model_records(model)
    try:
        translation: Translation | None = Translation(exported(model, given), given, records)
        refusal = None
    except Exception as error:  # whatever torch.export raises: the module level remains
        translation, refusal = None, _reason(error)
    return _graph(model, given, records, translation, refusal)


def _graph(
    model: nn.Module, given: Given, records: ModelRecords, translation: Translation | None, refusal: str | None
) -> Graph:
    made = translation.tensors if translation is not None else {}
    return Graph(
        model_class=type(model).__name__,
        training=model.training,
        modules=records.modules,
        tensors={**records.tensors, **made},
        nodes=() if translation is None else tuple(translation.nodes),
        inputs=given.names if translation is None else tuple(translation.inputs),
        outputs=() if translation is None else tuple(translation.outputs),
        sizes=dict(given.sizes),
        refusal=refusal,
        sites=records.sites,
    )


def _reason(error: Exception) -> str:
    """Return what an error says in one line, without the traces that torch.export appends."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kept: list[str] = []
    for line in lines:
        if line.startswith(("Traceback", "File ", "The following call raised", "from user code", "While executing")):
            break
        kept.append(line)
    told = " ".join(kept) or type(error).__name__
    return f"torch.export: {type(error).__name__}: {told}"[:_MOST_REASON]


# --- the state of a model ---------------------------------------------------------------------------------------------


def _state(model: nn.Module) -> tuple[Any, ...]:
    """Return what the graph of a model depends on: values that are equal while the model is the same."""
    tensors: dict[int, int] = {}
    told: list[Any] = []
    for path, module in model.named_modules(remove_duplicate=False):
        held = vars(module)
        own = [
            (name, tensors.setdefault(id(tensor), len(tensors)), tuple(tensor.shape), tensor.dtype, tensor.device)
            for registry in (module._parameters, module._buffers)
            for name, tensor in registry.items()
            if tensor is not None and not is_lazy(tensor)
        ]
        attributes = [(name, _value(value)) for name, value in held.items() if name not in _REGISTRIES]
        hooks = [
            tuple(map(id, registry.values()))
            for name, registry in held.items()
            if name.endswith("hooks") and isinstance(registry, Mapping)  # others keep lists, among their attributes
        ]
        forward = getattr(type(module), "forward", None)  # a scripted module has its own alone
        told.append((path, type(module), id(forward), own, attributes, hooks))
    return (torch.__version__, repr(told))


_REGISTRIES = frozenset(vars(nn.Module())) - {"training"}


def _value(value: Any, inside: tuple[int, ...] = ()) -> object:
    """Return a value that differs where an attribute of a module differs as far as a forward pass may read it.

    ``inside``: containers that the value is in; one that holds itself ends there.
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
    told = repr(value)
    return id(value) if " object at 0x" in told else told
