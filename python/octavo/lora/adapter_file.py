"""Adapters in a separate file, bound to the base model by its hash."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from octavo.errors import ContainerError, ModelError, OctavoError
from octavo.lora.adapter import ATTRIBUTE, Adapters, adapters
from octavo.lora.insert import DEFAULT, add_empty
from octavo.lora.lora_config import LoraConfig
from octavo.lora.select import as_linear, target_paths, trained_paths
from octavo.nn.packed_layer import FORMAT, PARTS, PackedLayer
from octavo.nn.stored_scales import format_bytes
from octavo.nn.weight_buffers import lacking
from octavo.recipe.sites import join
from octavo.storage.arguments import checks_arguments
from octavo.storage.reading import parse_json
from octavo.tensors import container
from octavo.tensors.packed_tensor import PackedTensor

_CONFIG, _BASE, _NAME = "lora.config", "lora.base", "lora.name"


@checks_arguments
def save_adapters(
    model: nn.Module, path: str | os.PathLike[str], *, name: str | None = None, overwrite: bool = True
) -> None:
    """Write one adapter to a safetensors file: A and B of every layer, its options, and the base's hash.

    Modules that ``train=`` names are in the file too. The tensors are called ``LAYER.lora.A`` and ``LAYER.lora.B``;
    those of trained modules keep their names.

    Args:
        model: with adapters.
        path: file to write.
        name: name of the adapter; default: the active one.
        overwrite: False refuses an existing file.

    Raises:
        ModelError: for a name that no layer has.
        FileExistsError: for an existing file, with ``overwrite=False``.
        OSError: as the system gives it.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 64))
        >>> octavo.lora.save_adapters(octavo.lora.insert(model, rank=4), "adapter.safetensors")
        >>> [(entry.name, entry.shape) for entry in octavo.inspect("adapter.safetensors")]
        [('0.lora.A', (4, 64)), ('0.lora.B', (64, 4))]
    """
    layers = adapters(model)
    name = name or next((own.active for own in layers.values() if own.active), None)
    named_layers = {place: own for place, own in layers.items() if name in own.names()}
    if name is None or not named_layers:
        raise ModelError(f"lora: no adapter {name!r} to save" if name else "lora: no adapter is active; give its name=")
    config = getattr(next(iter(named_layers.values())), name).config
    tensors: dict[str, Tensor | PackedTensor] = {}
    for place, own in named_layers.items():
        adapter = getattr(own, name)
        tensors |= {_part(place, "A"): adapter.A.detach(), _part(place, "B"): adapter.B.detach()}
    tensors |= _trained(model, config)
    metadata = {_CONFIG: json.dumps(config.as_dict()), _BASE: base_hash(model, config), _NAME: name}
    container.save(tensors, path, metadata=metadata, overwrite=overwrite)


@checks_arguments
def load_adapters(
    model: nn.Module, path: str | os.PathLike[str], *, name: str | None = None, inplace: bool = False
) -> nn.Module:
    """Return the model with the adapter of a file, active.

    Args:
        model: the base that the adapter was trained on, with or without other adapters.
        path: file to read.
        name: new name of the adapter; default: the name in the file.
        inplace: adapt ``model`` itself; else a copy.

    Returns:
        The adapted model.

    Raises:
        ContainerError: before the model is changed, if the file has no adapter, was written for another base, or does
            not fit it; names the tensor.
        ModelError: as :func:`insert`.
        DTypeError: as :func:`insert`.
        OSError: as the system gives it.
    """
    file = os.fspath(path)
    metadata = container.metadata(path)
    if _CONFIG not in metadata or _BASE not in metadata:
        raise ContainerError(f"{file}: not a file of adapters; save_adapters writes them")
    options = parse_json(metadata[_CONFIG], f"{file}: the adapter's options")
    try:
        config = LoraConfig.of(options)
    except (OctavoError, ValueError, TypeError, OverflowError) as error:
        raise ContainerError(f"{file}: the adapter's options cannot be read: {error}") from None
    name = name or metadata.get(_NAME, DEFAULT)
    if base_hash(model, config) != metadata[_BASE]:
        raise ContainerError(
            f"{file}: the adapter was trained on another base; this model's frozen tensors differ in name, shape, "
            "dtype or bytes"
        )
    tensors = _checked(model, container.load(path), config, file)
    adapted = add_empty(model, config, name, inplace=inplace)
    for place, own in adapters(adapted).items():
        if name in own.names():
            adapter = getattr(own, name)
            adapter.A, adapter.B = (
                nn.Parameter(tensors[_part(place, part)].to(adapter.A.device)) for part in ("A", "B")
            )
    with torch.no_grad():
        for key, own_tensor in _trained(adapted, config).items():
            own_tensor.copy_(tensors[key])
    return adapted


@checks_arguments
def base_hash(model: nn.Module, config: LoraConfig | None = None) -> str:
    """Return the digest of the model's state without adapters and without modules that ``config`` trains.

    It covers names, dtypes, shapes and bytes; for packed layers those of the codes. A fused model has the hash it had
    before fusing.

    Args:
        model: with or without adapters.
        config: the configuration whose trained modules are left out.

    Returns:
        SHA-256, in hexadecimal.
    """
    state = model.state_dict()
    skipped = [f"{place}." if place else "" for place in (trained_paths(model, config) if config else [])]
    for path, own in model.named_modules(remove_duplicate=False):  # a layer may have several paths
        if isinstance(own, PackedLayer):  # files of 0.1 count the parts that a format lacks, empty
            state |= {join(path, name): getattr(own, name) for name in lacking(own.format.core)}
        if isinstance(own, Adapters):
            prefix = path.removesuffix(ATTRIBUTE)
            skipped.append(f"{path}.")
            if own.original is not None:
                state |= _original_state(prefix, own.original.attributes)
    digest = hashlib.sha256()
    for key in sorted(state):
        if key.startswith(tuple(skipped)):
            continue
        value = state[key]
        if isinstance(value, Tensor):
            if value.is_meta:
                raise ModelError(f"{key}: the weight is on the meta device, which holds no values; load them first")
            digest.update(f"{key}\0{value.dtype}\0{tuple(value.shape)}\0".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _original_state(prefix: str, attributes: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the original tensors of a fused layer, by the names of the state dict."""
    state: dict[str, Tensor] = {}
    for name, value in attributes.items():
        if isinstance(value, PackedTensor):
            parts = zip((*PARTS, "bitmap"), value.held_parts, strict=False)  # a bitmap where codes are sparse
            state |= {f"{prefix}{name}_{part}": tensor for part, tensor in parts}
            state[prefix + FORMAT] = format_bytes(value.format.text)
        elif isinstance(value, nn.Module):
            value.state_dict(destination=state, prefix=f"{prefix}{name}.")
        else:
            state[f"{prefix}{name}"] = value
    return state


def _part(place: str, part: str) -> str:
    return f"{place}.{ATTRIBUTE}.{part}" if place else f"{ATTRIBUTE}.{part}"


def _trained(model: nn.Module, config: LoraConfig) -> dict[str, Tensor]:
    """Return the tensors of the fully trained modules, by their names in the model."""
    return {
        f"{place}.{key}" if place else key: value
        for place in trained_paths(model, config)
        for key, value in model.get_submodule(place).state_dict().items()
    }


def _checked(
    model: nn.Module, tensors: Mapping[str, Tensor | PackedTensor], config: LoraConfig, file: str
) -> dict[str, Tensor]:
    """Return the file's tensors. Raises ContainerError if they are not the tensors that the model needs."""
    plain: dict[str, Tensor] = {}
    wanted = {key: tuple(value.shape) for key, value in _trained(model, config).items()}
    for place in target_paths(model, config):
        layer = as_linear(model.get_submodule(place))
        wanted[_part(place, "A")] = (config.rank, layer.in_features)
        wanted[_part(place, "B")] = (layer.out_features, config.rank)
    for key in sorted(wanted.keys() | tensors.keys()):
        if key not in tensors:
            raise ContainerError(f"{file}: tensor {key} is missing")
        if key not in wanted:
            raise ContainerError(f"{file}: tensor {key} has no place in this model")
        tensor = tensors[key]
        if not isinstance(tensor, Tensor) or tuple(tensor.shape) != wanted[key]:
            raise ContainerError(f"{file}: {key} has shape {tuple(tensor.shape)}, expected a plain {wanted[key]}")
        if key.rpartition(".")[0].endswith(ATTRIBUTE) and not tensor.is_floating_point():
            raise ContainerError(f"{file}: {key} has dtype {tensor.dtype}; accepted are floats")
        plain[key] = tensor
    return plain
