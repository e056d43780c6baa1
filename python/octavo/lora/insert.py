"""Insertion of adapters into a model, and the choice of the active one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from octavo.errors import DTypeError, ModelError
from octavo.lora.adapter import ATTRIBUTE, Adapter, Adapters, adapters
from octavo.lora.lora_config import LoraConfig
from octavo.lora.select import as_linear, target_paths, trained_paths
from octavo.nn import PackedLinear
from octavo.nn.model_copies import deep_copy
from octavo.storage.arguments import checks_arguments

DEFAULT = "default"


@checks_arguments
def insert(
    model: nn.Module,
    config: LoraConfig | Mapping[str, Any] | None = None,
    *,
    name: str = DEFAULT,
    inplace: bool = False,
    generator: torch.Generator | None = None,
    **options: Any,
) -> nn.Module:
    """Return the model with a new active adapter on its linear layers; all parameters outside ``train`` are frozen.

    Layers may be ``nn.Linear``, ``QuantLinear`` or ``PackedLinear``; A and B have the dtype of the weight. B is zero,
    so no output changes. Trained are rank * (in + out) numbers per layer, and all of ``train``.
    Source: Hu et al. 2021, LoRA, section 4.1.

    Args:
        model: float, simulated or packed.
        config: options of the adapter; ``rank`` is required, here or among ``options``.
        name: name of the adapter; a model may have several, one of which is active (:func:`activate`).
        inplace: adapt ``model`` itself; else a copy.
        generator: source of A's random values.
        options: fields of :class:`LoraConfig`.

    Returns:
        The adapted model.

    Raises:
        ModelError: for an unknown option, a name in use, selectors that match nothing, layers that cannot be adapted, a
            rank above both sides of a layer, fused models, and models compiled by TorchScript.
        DTypeError: for a wrong type of model, configuration or generator.

    Example:
        >>> packed = octavo.pack_model(octavo.quantize_model(nn.Sequential(nn.Linear(64, 64)), "nf4"))
        >>> model = octavo.lora.insert(packed, rank=4)
        >>> [(name, tuple(p.shape)) for name, p in model.named_parameters() if p.requires_grad]
        [('0.lora.default.A', (4, 64)), ('0.lora.default.B', (64, 4))]
    """
    if generator is not None and not isinstance(generator, torch.Generator):
        raise DTypeError(f"lora: generator is {generator!r}; accepted are a torch.Generator and None")
    config = LoraConfig.of(config, **options)
    model = add_empty(model, config, name, inplace=inplace)
    for own in adapters(model).values():
        if name in own.names():
            getattr(own, name).reset(generator)
    return model


def add_empty(model: nn.Module, config: LoraConfig, name: str, *, inplace: bool) -> nn.Module:
    """Return the model with a new active adapter whose A and B are not initialised; arguments as for :func:`insert`."""
    if not isinstance(model, nn.Module):
        raise DTypeError(f"lora: adapters go on a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise ModelError(
            f"lora: {type(model).__name__}: TorchScript compiled it, and its layers take no adapters; give the module "
            "that was traced or scripted"
        )
    _check_name(model, name, config)
    paths = target_paths(model, config)
    for path in paths:
        _check_rank(path, as_linear(model.get_submodule(path)), config.rank)
    if not inplace:
        model = deep_copy(model)
    for path in paths:
        layer = as_linear(model.get_submodule(path))
        own = getattr(layer, ATTRIBUTE, None)
        if own is None:
            own = Adapters()
            own.attach(layer)
        weight = layer.weight
        adapter = Adapter(layer.in_features, layer.out_features, config, dtype=weight.dtype, device=weight.device)
        own.add_module(name, adapter.train(layer.training))
    activate(model, name)
    return model


@checks_arguments
def activate(model: nn.Module, name: str | None) -> None:
    """Make one adapter the only active and trainable one.

    Args:
        model: with adapters; it is changed in place.
        name: name of the adapter; None deactivates all.

    Raises:
        ModelError: for a name that no layer has, and for fused models.
    """
    layers = adapters(model)
    refuse_fused(layers, "activate")
    names = {known for own in layers.values() for known in own.names()}
    if name is not None and name not in names:
        raise ModelError(f"lora: no adapter {name!r}; the model has {', '.join(sorted(names)) or 'none'}")
    for parameter in model.parameters():
        if parameter.is_leaf:
            parameter.requires_grad_(False)
        else:  # a copy of a parameter of a module compiled by TorchScript
            parameter.detach_()
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


def refuse_fused(layers: Mapping[str, Adapters], action: str) -> None:
    """Raise ModelError if a layer's adapter is fused into its weight; ``action`` would need it separate."""
    fused = next((path for path, own in layers.items() if own.original is not None), None)
    if fused is not None:
        raise ModelError(f"lora: {fused}: the adapter is fused, so that {action} would mix two; unfuse or commit first")


def _check_rank(path: str, layer: nn.Linear | PackedLinear, rank: int) -> None:
    """Refuse a rank above both sides. A rank above the smaller side is accepted, because all layers share one rank."""
    largest = max(layer.in_features, layer.out_features)
    if rank > largest:
        raise ModelError(
            f"lora: {path or 'the layer'}: rank is {rank}, the layer {layer.in_features} -> {layer.out_features}; "
            f"accepted are ranks up to {largest}, or leave the layer out of targets"
        )


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
