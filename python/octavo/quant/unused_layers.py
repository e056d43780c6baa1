"""Warns of quantized layers that the first forward pass of a model does not use."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from octavo.errors import UnusedLayerWarning
from octavo.nn import QuantLayer, direct_weight_access
from octavo.nn.format_layer import FormatLayer
from octavo.nn.registry import format_layers
from octavo.recipe import Rule
from octavo.recipe.expert_families import expert_family
from octavo.recipe.sites import is_default, join

_NAMED = 8  # paths in a message; the warning's ``layers`` has all


def watch_first_pass(model: nn.Module) -> None:
    """Let the first forward pass of ``model`` that ends warn of quantized layers it did not use.

    Also of layers whose weight alone it used, where their plan rounds activations: the weight was read past the layer.
    Later passes are not watched and cost nothing.
    """
    stop_watching(model)
    if not isinstance(model, FormatLayer):
        model.register_forward_pre_hook(_FirstPass())


def stop_watching(model: nn.Module) -> None:
    """Undo :func:`watch_first_pass`."""
    for key, hook in list(model._forward_pre_hooks.items()):
        if isinstance(hook, _FirstPass):
            del model._forward_pre_hooks[key]


def warn_of_shared(model: nn.Module) -> None:
    """Warn of quantized weights that are also a Parameter of a module that is no layer, which reads it as it is."""
    quantized: dict[int, list[str]] = {}
    for path, layer in format_layers(model):
        if isinstance(layer, QuantLayer) and layer.weight_quantizer is not None:
            quantized.setdefault(id(layer._own("weight")), []).append(path)
    sharers = {
        layer: join(path, name)
        for path, module in model.named_modules()
        if not isinstance(module, QuantLayer) and not is_default(module)
        for name, tensor in module._parameters.items()
        for layer in quantized.get(id(tensor), ())
    }
    if sharers:
        rule = "; ".join(str(Rule(name=path, keep=True)) for path in sharers)
        shared = ", ".join(f"{join(path, 'weight')} is {other}" for path, other in list(sharers.items())[:_NAMED])
        message = (
            f"{type(model).__name__}: {shared}, too, a Parameter of no layer: where the model reads it by that name it "
            f"is not rounded. Keep {_it(sharers)} in the recipe: '{rule}'"
        )
        warnings.warn(UnusedLayerWarning(message, tuple(sharers), rule), stacklevel=5)


def bypassed(model: nn.Module) -> list[str]:
    """Return the paths of the quantized layers that the first forward pass of a model did not use, or not in full."""
    return [path for path, module in format_layers(model) if vars(module).get("bypassed")]


class _FirstPass:
    """A forward pre-hook that goes when it is called, and comes back if the pass fails. It holds no model: models are
    copied and pickled with their hooks.
    """

    def __call__(self, model: nn.Module, args: tuple[Any, ...]) -> None:
        """Watch this pass."""
        if torch.compiler.is_compiling() or self not in model._forward_pre_hooks.values():  # another thread watches
            return
        stop_watching(model)
        layers = dict(format_layers(model))
        called: set[int] = set()
        read: set[int] = set()
        depth = 0  # of calls of the model: it may call itself, and other threads may call it meanwhile
        before = sys.exception()
        handles = [layer.register_forward_pre_hook(lambda layer, _: called.add(id(layer))) for layer in layers.values()]

        def begin(_: nn.Module, __: tuple[Any, ...]) -> None:
            nonlocal depth
            depth += 1

        def end(_: nn.Module, __: tuple[Any, ...], ___: Any) -> None:
            nonlocal depth
            depth -= 1
            if depth >= 0:
                return
            for handle in handles:
                handle.remove()
            # By identity: another watch may hold the same ids.
            direct_weight_access.watches[:] = [watch for watch in direct_weight_access.watches if watch is not read]
            if sys.exception() is not before:  # the pass failed
                watch_first_pass(model)
            else:
                _tell(model, layers, called, read)

        handles.append(model.register_forward_pre_hook(begin))
        handles.append(model.register_forward_hook(end, always_call=True))
        direct_weight_access.watches.append(read)


def _tell(model: nn.Module, layers: Mapping[str, nn.Module], called: set[int], read: set[int]) -> None:
    users: dict[int, set[str]] = {}  # layers that were used, by the weight that they use
    for path, layer in layers.items():
        if (id(layer) in called or id(layer) in read) and (weight := _weight(layer)) is not None:
            users.setdefault(weight, set()).add(path)
    # A layer that was not called is used where another one was that holds the same weight, as T5's and its `shared`.
    unused = [
        path
        for path, layer in layers.items()
        if id(layer) not in called and id(layer) not in read and _weight(layer) not in users
    ]
    # Tokens choose experts: one that was called tells that the others may be.
    reached = {expert_family(path) for path, layer in layers.items() if id(layer) in called}
    unused = [path for path in unused if (family := expert_family(path)) is None or family not in reached]
    partly = [
        path
        for path, layer in layers.items()
        if id(layer) not in called and id(layer) in read and _rounds_activations(layer)
    ]
    named = (*unused, *partly)
    if not named:
        return
    for path in named:
        vars(layers[path])["bypassed"] = True
    # A weight that others use stays rounded: they share one decision about it.
    tied = {path for path in partly if users.get(_weight(layers[path]) or 0, {path}) - set(named)}
    rule = "; ".join(str(_keep_activations(path) if path in tied else Rule(name=path, keep=True)) for path in named)
    parts = []
    if unused:
        parts.append(
            f"{_few(unused)}: not used in the first forward pass, in which quantizing {_it(unused)} changed nothing"
        )
    if partly:
        parts.append(f"{_few(partly)}: the model reads the weight past the layer, whose activations are not rounded")
    unless = f", unless other inputs use {_it(unused)}" if unused else ""  # experts, heads, layers left out at random
    short = rule if len(named) <= _NAMED else f"{'; '.join(rule.split('; ')[:_NAMED])}; ..."
    message = (
        f"{type(model).__name__}: {len(named)} of {len(layers)} quantized layers are bypassed. {'. '.join(parts)}. "
        f"Keep {_it(named)} in the recipe{unless}: '{short}'"
    )
    warnings.warn(UnusedLayerWarning(message, named, rule), stacklevel=2)


def _weight(layer: nn.Module) -> int | None:
    """Return a number that layers of one weight, or of its codes, have in common; None for layers without one."""
    if isinstance(layer, QuantLayer):
        return id(layer._own("weight"))
    codes = layer._buffers.get("weight_codes")
    return None if codes is None else codes.data_ptr() or None


def _keep_activations(path: str) -> Rule:
    return Rule(name=path, input="keep", output="keep")


def _rounds_activations(layer: nn.Module) -> bool:
    # Calibration, which may be the first pass, runs with quantizers switched off.
    return any(getattr(layer, f"{role}_quantizer", None) is not None for role in ("input", "output"))


def _few(paths: list[str]) -> str:
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return f"{', '.join(paths[:_NAMED])}{more}"


def _it(paths: Any) -> str:
    return "it" if len(paths) == 1 else "them"
