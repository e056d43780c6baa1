"""Putting adapters on a model, and choosing which one works."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import nn

from octavo.compress.lora.adapter import ATTRIBUTE, Adapter, Adapters, adapters
from octavo.compress.lora.config import LoraConfig
from octavo.errors import ModelError
from octavo.nn import PackedLayer, PackedLinear
from octavo.quant.recipe import Selector, parse_selector

DEFAULT = "default"


def insert(
    model: nn.Module,
    config: LoraConfig | Mapping[str, Any] | None = None,
    *,
    name: str = DEFAULT,
    inplace: bool = False,
    generator: torch.Generator | None = None,
    **options: Any,
) -> nn.Module:
    """Return the model with a new adapter on its linear layers, active; everything else but ``train`` is frozen.

    ``config`` or ``options``: see :class:`LoraConfig`; ``rank`` is required. ``name``: of the adapter; a model may have
    several, one of which works at a time (:func:`activate`). ``inplace=False`` works on a copy. ``generator``: source
    of A's random values. Layers may be ``nn.Linear``, ``QuantLinear`` or ``PackedLinear``; A and B have the dtype of
    the weight. No output changes: B is zero. What is trained is rank * (in + out) a layer, and all of ``train``.

    Raises ModelError for an unknown option, a name that is taken, selectors that match nothing, layers that no adapter
    goes on, and fused models. Source: LoRA section 4.1.
    """
    config = LoraConfig.of(config, **options)
    _check_name(model, name, config)
    paths = target_paths(model, config)
    trained_paths(model, config)  # refuses what it must before anything is changed
    if not inplace:
        model = copy.deepcopy(model)
    for path in paths:
        layer = model.get_submodule(path)
        own = getattr(layer, ATTRIBUTE, None)
        if own is None:
            own = Adapters()
            own.attach(layer)
        weight = layer.weight
        made = Adapter(
            layer.in_features, layer.out_features, config, dtype=weight.dtype, device=weight.device, generator=generator
        )
        own.add_module(name, made.train(layer.training))
    activate(model, name)
    return model


def activate(model: nn.Module, name: str | None) -> None:
    """Let the adapter ``name`` work and be trained, and no other; None: the model as it was before any adapter.

    Raises ModelError for a name that no layer has, and for fused models.
    """
    layers = adapters(model)
    refuse_fused(layers, "activate")
    names = {known for own in layers.values() for known in own.names()}
    if name is not None and name not in names:
        raise ModelError(f"lora: no adapter {name!r}; the model has {', '.join(sorted(names)) or 'none'}")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for own in layers.values():
        own.active = name if name in own.names() else None
        if own.active is not None:
            working = getattr(own, own.active)
            working.requires_grad_(True)
            for path in trained_paths(model, working.config):
                model.get_submodule(path).requires_grad_(True)
    for parameter in model.parameters():
        if not parameter.requires_grad:
            parameter.grad = None


def refuse_fused(layers: Mapping[str, Adapters], what: str) -> None:
    """Raise ModelError where a layer's adapter is in its weight."""
    fused = next((path for path, own in layers.items() if own.kept is not None), None)
    if fused is not None:
        raise ModelError(f"lora: {fused}: the adapter is fused, so that {what} would mix two; unfuse or commit first")


def trained_paths(model: nn.Module, config: LoraConfig) -> list[str]:
    """Return the paths of the modules that are trained whole. Raises ModelError for one that cannot be."""
    paths = _select(model, config.train)
    for path in paths:
        module = model.get_submodule(path)
        packed = next((child for child, part in module.named_modules() if isinstance(part, PackedLayer)), None)
        if packed is not None:
            raise ModelError(
                f"lora: {_join(path, packed)} is packed, and codes are not trained; adapt it instead of train="
            )
        if not any(True for _ in module.parameters()):
            raise ModelError(f"lora: {path}: nothing to train in a {type(module).__name__}; leave it out of train=")
    _refuse_ties(model, paths)
    return paths


def _refuse_ties(model: nn.Module, paths: list[str]) -> None:
    """Raise ModelError where training a module would change the frozen base through a tied parameter."""
    names = [(name, parameter) for name, parameter in model.named_parameters(remove_duplicate=False)]
    inside = {id(parameter): name for name, parameter in names if _inside(name, paths)}
    for name, parameter in names:
        if id(parameter) in inside and not _inside(name, paths):
            raise ModelError(
                f"lora: {inside[id(parameter)]} is tied to {name}; name both modules in train=, or neither"
            )


def target_paths(model: nn.Module, config: LoraConfig) -> list[str]:
    """Return the paths of the layers to adapt. Raises ModelError for one that no adapter goes on."""
    whole = _select(model, config.train)
    paths = [path for path in _select(model, config.targets) if not _inside(path, whole)]
    if not paths:
        raise ModelError(f"lora: every layer of targets {', '.join(config.targets)} is trained whole (train=)")
    for path in paths:
        layer = model.get_submodule(path)
        kind = type(layer).__name__
        if not isinstance(layer, nn.Linear | PackedLinear):
            raise ModelError(f"lora: {path} is a {kind}; adapters go on linear layers, select them with targets=")
        if ATTRIBUTE in dict(layer.named_children()) and not isinstance(layer.lora, Adapters):
            raise ModelError(f"lora: {path} has a module of its own called {ATTRIBUTE!r}; rename it")
    return paths


def _check_name(model: nn.Module, name: str, config: LoraConfig) -> None:
    layers = adapters(model)
    refuse_fused(layers, "another one")
    if not isinstance(name, str) or not name.isidentifier() or hasattr(Adapters(), name):
        raise ModelError(f"lora: an adapter cannot be called {name!r}; accepted are identifiers such as 'task_2'")
    for path, own in layers.items():
        if name in own.names():
            raise ModelError(f"lora: {path}: there is an adapter {name!r} already; give the new one another name=")
        other = getattr(own, own.names()[0]).config
        if other.train != config.train:
            raise ModelError(
                f"lora: train={list(config.train)}, but the adapter {own.names()[0]!r} has train={list(other.train)}; "
                "modules trained whole are shared by all adapters of a model"
            )


def _select(model: nn.Module, texts: tuple[str, ...]) -> list[str]:
    """Return the paths of the modules that any of the selectors means, in the model's order, adapters left out.

    What ``nn.MultiheadAttention`` holds is no layer: it reads those weights and never calls their modules.
    """
    own = [_join(path, ATTRIBUTE) for path in adapters(model)]
    readers = [path for path, module in model.named_modules() if isinstance(module, nn.MultiheadAttention)]
    classes = {path: _class_names(module) for path, module in model.named_modules() if not _inside(path, own)}
    unread = {path: names for path, names in classes.items() if not any(path.startswith(f"{r}.") for r in readers)}
    chosen: set[str] = set()
    for text in texts:
        selector = parse_selector(text)
        found = _matching(selector, unread)
        if not found and _matching(selector, classes):
            raise ModelError(
                f"lora: {text!r} selects {_matching(selector, classes)[0]}, whose weight nn.MultiheadAttention reads "
                "without calling it, so that an adapter would do nothing"
            )
        if not found:
            near = difflib.get_close_matches(selector.pattern, {*classes, *chain(*classes.values())}, 3, cutoff=0.3)
            raise ModelError(f"lora: {text!r} selects no module; nearest: {', '.join(near)}")
        chosen.update(found)
    return [path for path in unread if path in chosen]


def _matching(selector: Selector, classes: Mapping[str, set[str]]) -> list[str]:
    found = [path for path, names in classes.items() if selector.matches_type(names) or selector.matches_path(path)]
    return found[:1] if selector.pick == "first" else found[-1:] if selector.pick == "last" else found


def _class_names(module: nn.Module) -> set[str]:
    """Class names a selector may use: a packed layer also answers to those of the layer it replaces."""
    lines = [type(module), *([module.replaces] if isinstance(module, PackedLayer) else [])]
    return {cls.__name__ for line in lines for cls in line.__mro__}


def _join(path: str, name: str) -> str:
    return ".".join(part for part in (path, name) if part)


def _inside(path: str, parents: list[str]) -> bool:
    return any(path == parent or path.startswith(f"{parent}.") for parent in parents)
