"""Fusion of the query, key and value projections of attention into one product, where that is faster."""

from __future__ import annotations

import copy
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from octavo.data.batches import call_on
from octavo.errors import ModelError
from octavo.graph.analysis import in_mode
from octavo.graph.capture import capture
from octavo.graph.model_graph import Graph
from octavo.graph.model_passes import Pass, PassInputs, TransformReport, register_pass
from octavo.graph.records import Node
from octavo.nn.joined_linear import join_layers
from octavo.nn.model_copies import deep_copy
from octavo.storage.arguments import checks_arguments

_ATTENTION = ("scaled_dot_product", "softmax")
_ROUNDS, _FEWEST, _SECONDS = 41, 5, 0.3
"""Most and fewest timed pairs of calls, and the seconds after which no further pair begins."""


@dataclass(frozen=True)
class FuseQkvConfig:
    """``groups``: layers to join, ``"path.of.attention:query,key,value"``; None: chosen by measurement."""

    groups: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Check the texts. Raises ModelError."""
        for text in self.groups or ():
            if not isinstance(text, str) or text.count(":") != 1 or len(set(text.split(":")[1].split(","))) < 2:
                raise ModelError(f"groups: {text!r}; give the path of a module and two or more of its linear layers, "
                                 "as in 'layer.0.attention:query,key,value'")  # fmt: skip


@checks_arguments
def fuse_qkv(
    model: nn.Module, inputs: Any = None, *, groups: tuple[str, ...] | None = None, inplace: bool = False
) -> tuple[nn.Module, TransformReport]:
    """Return the model with query, key and value projections of each attention joined, where that is faster.

    A group is two or more ``nn.Linear`` of a module that computes attention; they read the same tensor, have the same
    dtype, and all or none have a bias. Each kind of group is timed on its activations for ``inputs``, separate and
    joined layers in turn. The report has both medians; only groups that are faster joined are joined. State-dict names
    and values do not change, and the model saves and loads as before. Quantization, packing and training use the
    separate layers.

    Args:
        model: float.
        inputs: as for :func:`capture`.
        groups: join these groups without a measurement or inputs; the report's ``settled`` configuration has them.
        inplace: change ``model`` itself; else a copy.

    Returns:
        The model, and a report of the groups.

    Raises:
        ModelError: for missing inputs, for groups that cannot be joined, and if ``torch.export`` refuses the model.
    """
    config = FuseQkvConfig(groups)
    model = model if inplace else deep_copy(model)
    if config.groups is not None:
        rows = []
        for text in config.groups:
            path, _, names = text.partition(":")
            _join(model, path, tuple(names.split(",")))
            rows.append((path, names, None, None, "joined"))
        return model, TransformReport(_COLUMNS, tuple(rows), config)
    if inputs is None:
        raise ModelError("fuse_qkv: it measures, which needs inputs; give inputs=batch, or groups=[...]")
    if any(p.is_meta for p in model.parameters()):
        raise ModelError("fuse_qkv: the meta device has no values to measure; load weights, or give groups=[...]")
    return _measured(model, inputs)


@torch.no_grad()
def _measured(model: nn.Module, inputs: Any) -> tuple[nn.Module, TransformReport]:
    graph = capture(model, inputs)
    graph.require_operators("finding queries, keys and values")
    groups = candidates(model, graph)
    layer_inputs = _inputs_of(model, [f"{path}.{names[0]}" if path else names[0] for path, names in groups], inputs)
    times: dict[Any, tuple[float, float]] = {}
    rows: list[tuple[str, str, float | None, float | None, str]] = []
    faster: dict[str, tuple[str, ...]] = {}
    for path, names in groups:
        layers = [_layer(model, path, name) for name in names]
        x = layer_inputs.get(f"{path}.{names[0]}" if path else names[0])
        if x is None:
            rows.append((path, ",".join(names), None, None, "stays: the model did not run it"))
            continue
        key = (tuple(x.shape), x.dtype, x.device, tuple(tuple(layer.weight.shape) for layer in layers))
        if key not in times:
            joined = join_layers([copy.deepcopy(layer) for layer in layers])
            times[key] = _by_turns(partial(_each, layers, x), partial(_each, joined, x))
        apart, together = times[key]
        if together < apart:
            faster[path] = names
        rows.append((path, ",".join(names), apart, together, "joined" if together < apart else "stays: not faster"))
    if faster:
        whole = _model_times(model, faster, inputs)
        if whole[1] >= whole[0]:
            faster = {}
            rows = [(*row[:4], "stays: the model is not faster" if row[4] == "joined" else row[4]) for row in rows]
        rows.append(("(the model)", "", *whole, "joined" if faster else "stays"))
    for path, names in faster.items():
        _join(model, path, names)
    settled = FuseQkvConfig(tuple(f"{path}:{','.join(names)}" for path, names in faster.items()))
    return model, TransformReport(_COLUMNS, tuple(rows), settled)


def _model_times(model: nn.Module, groups: Mapping[str, tuple[str, ...]], inputs: Any) -> tuple[float, float]:
    """Return the median seconds of a model in evaluation mode, with separate and with joined layers, in turn."""
    with in_mode(model, False):
        before = {(path, name): _layer(model, path, name) for path, names in groups.items() for name in names}
        after: dict[tuple[str, str], nn.Linear] = {}
        for path, names in groups.items():
            joined = join_layers([copy.deepcopy(before[path, name]) for name in names])
            after.update({(path, name): layer for name, layer in zip(names, joined, strict=True)})

        def run(layers: Mapping[tuple[str, str], nn.Linear]) -> None:
            for (path, name), layer in layers.items():
                model.get_submodule(path)._modules[name] = layer
            call_on(model, inputs)

        try:
            return _by_turns(partial(run, before), partial(run, after))
        finally:
            for (path, name), layer in before.items():
                model.get_submodule(path)._modules[name] = layer


_COLUMNS = ("module", "layers", ">s apart", ">s joined", "what")


def candidates(model: nn.Module, graph: Graph) -> list[tuple[str, tuple[str, ...]]]:
    """Return the groups of layers that can be joined: the path of their module, and their names in it."""
    by_parent: dict[str, list[Node]] = defaultdict(list)
    attends = set()
    calls: dict[str, int] = defaultdict(int)
    for node in graph.nodes:
        if any(part in node.op for part in _ATTENTION):
            attends.add(node.module_path)
        if node.op == "aten.linear":
            by_parent[node.module_path.rpartition(".")[0]].append(node)
            calls[node.module_path] += 1
    fusable: list[tuple[str, tuple[str, ...]]] = []
    for parent, nodes in by_parent.items():
        if parent not in attends:
            continue
        groups: dict[Any, list[str]] = defaultdict(list)
        for node in nodes:
            layer = model.get_submodule(node.module_path)
            if type(layer) is nn.Linear and calls[node.module_path] == 1 and not _refused(model, layer):
                key = (node.named("input"), layer.weight.dtype, layer.weight.device, layer.bias is not None)
                groups[key].append(node.module_path.rpartition(".")[2])
        fusable += [(parent, tuple(names)) for names in groups.values() if len(names) > 1]
    return fusable


def _refused(model: nn.Module, layer: nn.Linear) -> str | None:
    """Return why a layer cannot be joined to others, or None."""
    if "weight" not in layer._parameters or layer._forward_hooks or layer._forward_pre_hooks:
        return "its weight is computed, or it has hooks"
    own = {id(p) for p in layer._parameters.values() if p is not None}
    places = [id(p) for module in model.modules() for p in module._parameters.values() if id(p) in own]
    return "it shares a weight" if len(places) != len(own) else None


def _layer(model: nn.Module, path: str, name: str) -> nn.Linear:
    try:
        layer = model.get_submodule(f"{path}.{name}" if path else name)
    except AttributeError:
        raise ModelError(f"fuse_qkv: {path} has no layer {name!r}") from None
    assert isinstance(layer, nn.Module)
    if type(layer) is not nn.Linear:
        raise ModelError(f"fuse_qkv: {path}.{name} is a {type(layer).__name__}; accepted are layers of nn.Linear")
    return layer


def _join(model: nn.Module, path: str, names: tuple[str, ...]) -> None:
    """Replace separate layers by joined ones. Raises ModelError without changing the model."""
    layers = [_layer(model, path, name) for name in names]
    kinds = {(x.in_features, x.weight.dtype, x.weight.device, x.bias is None) for x in layers}
    if len(kinds) > 1:
        raise ModelError(f"fuse_qkv: {path}: {', '.join(names)} differ in inputs, dtype, device or bias")
    for name, layer in zip(names, layers, strict=True):
        if reason := _refused(model, layer):
            raise ModelError(f"fuse_qkv: {path}.{name} cannot be joined: {reason}")
    parent = model.get_submodule(path)
    for name, replacement in zip(names, join_layers(layers), strict=True):
        setattr(parent, name, replacement)


def _inputs_of(model: nn.Module, paths: list[str], inputs: Any) -> dict[str, Tensor]:
    """Return the inputs of layers when the model runs once in evaluation mode."""
    seen: dict[str, Tensor] = {}

    def watch(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            if args and isinstance(args[0], Tensor):
                seen.setdefault(path, args[0].detach())

        return hook

    handles = [model.get_submodule(path).register_forward_pre_hook(watch(path)) for path in paths]
    try:
        with in_mode(model, False):
            call_on(model, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _each(layers: Sequence[nn.Module], x: Tensor) -> None:
    for layer in layers:
        layer(x)


def _by_turns(first: Callable[[], None], second: Callable[[], None]) -> tuple[float, float]:
    """Return the median seconds of two calls, in turn, so that a busy machine slows both equally."""
    seconds: tuple[list[float], list[float]] = ([], [])
    began = time.perf_counter()
    for number in range(_ROUNDS):
        for times, call in zip(seconds, (first, second), strict=True):
            start = time.perf_counter()
            call()
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            if number:  # the first call of each warms up
                times.append(time.perf_counter() - start)
        if number > _FEWEST and time.perf_counter() - began > _SECONDS:
            break
    return statistics.median(seconds[0]), statistics.median(seconds[1])


def _run(model: nn.Module, config: FuseQkvConfig, pass_inputs: PassInputs) -> tuple[nn.Module, TransformReport]:
    return fuse_qkv(model, pass_inputs.inputs, groups=config.groups, inplace=True)


register_pass(Pass("fuse_qkv", "structure", FuseQkvConfig, _run))
