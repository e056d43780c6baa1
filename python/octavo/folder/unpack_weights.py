"""A packed model as plain tensors again: the names, shapes, orientation and dtypes of the state dict it was made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from octavo._reading import shown
from octavo.errors import ContainerError
from octavo.folder.skeleton import build_from_config
from octavo.folder.structure import read_structure
from octavo.folder.transformers_door import CONFIG
from octavo.folder.weight_files import STRUCTURE, Checkpoint, layers_of
from octavo.nn.former_names import current_names
from octavo.recipe.sites import is_transposed, join
from octavo.tensor import PackedTensor

if TYPE_CHECKING:
    from octavo.folder.pack_checkpoint import Progress

_DIMENSIONS = 8  # of a weight


def unpack(
    source: Checkpoint, dtype: torch.dtype | None = None, *, progress: Progress | None = None
) -> dict[str, Tensor]:
    """Return the plain tensors that a checkpoint was packed of, by the names of its model's state dict.

    Packed weights are decoded to ``dtype``, or to the dtype they had before packing. Where the file describes layers
    (:func:`octavo.save_model`), weights get back the shape and orientation of the float layer, an int32 bias becomes a
    float one, tied names get their tensor again, and scales of inputs and outputs are left out, since a float layer has
    none. Other files hold every tensor as it was. ``progress``: called with each name and its bytes.

    Raises ContainerError for a description that does not fit the tensors. Source: FORMATS.md section 5.
    """
    tensors = current_names(source.tensors())
    if not layers_of(source):
        return {name: _decoded(name, tensor, dtype, progress) for name, tensor in tensors.items()}
    structure = read_structure(source.files[0], source.metadata()[STRUCTURE])
    layers: Mapping[str, Any] = structure["layers"]
    turned = _turned(source, structure)

    def in_float_layer(name: str, tensor: Tensor) -> Tensor:
        path, leaf = _layer_of(name, layers)
        if path is None or leaf != "weight":
            return tensor
        return tensor.T.contiguous() if path in turned else _with_kernel(name, tensor, layers[path])

    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        path, leaf = _layer_of(name, layers)
        if path is None or leaf in ("weight", "bias"):
            stored[name] = _decoded(name, tensor, dtype, progress)
        if path is not None and leaf == "bias" and not stored[name].is_floating_point():
            stored[name] = _float_bias(path, tensors, dtype)
    plain = {name: in_float_layer(name, tensor) for name, tensor in stored.items()}
    for name, holder in structure["ties"].items():
        if holder not in tensors or name in tensors:
            raise ContainerError(f"{source.path}: {name}: tied to {holder}, which must be in the file, and {name} not")
        if holder in stored:  # else scales of a layer that is in the model twice
            plain[name] = in_float_layer(name, stored[holder])
    return plain


def _decoded(
    name: str, tensor: Tensor | PackedTensor, dtype: torch.dtype | None, progress: Callable[[str, int], None] | None
) -> Tensor:
    plain = tensor.decode(dtype) if isinstance(tensor, PackedTensor) else tensor
    if progress:
        progress(name, tensor.nbytes)
    return plain


def _layer_of(name: str, layers: Mapping[str, Any]) -> tuple[str | None, str]:
    """Return the described layer that a tensor is of, and its name in the layer; None for a tensor of no such layer."""
    parts = name.split(".")
    for count in range(len(parts)):
        path = ".".join(parts[:count])
        if path in layers:
            return path, ".".join(parts[count:])
    return None, name


def _with_kernel(name: str, weight: Tensor, record: Mapping[str, Any]) -> Tensor:
    """Return a packed weight ``[N, K]`` with the sizes of its kernel, or in the shape that its record has."""
    if (shape := record.get("shape")) is not None:
        fits = isinstance(shape, list) and len(shape) <= _DIMENSIONS and all(type(n) is int and n >= 0 for n in shape)
        if not fits or math.prod(shape) != weight.numel():
            raise ContainerError(f"{name}: shape {tuple(weight.shape)}, but its structure says {shown(shape)}")
        return weight.reshape(shape)
    kernel = _kernel(record)
    if kernel is None:
        return weight
    size = math.prod(kernel)
    if weight.ndim != 2 or weight.shape[1] % size:
        raise ContainerError(
            f"{name}: shape {tuple(weight.shape)}, which no convolution with the kernel {kernel} of its structure has"
        )
    return weight.reshape(len(weight), weight.shape[1] // size, *kernel)


def _kernel(record: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the sizes of the kernel that a record of a convolution has."""
    geometry = record.get("geometry")
    sizes = geometry.get("kernel_size") if isinstance(geometry, dict) else None
    if not isinstance(sizes, list) or not sizes or any(type(size) is not int or size < 1 for size in sizes):
        return None
    return tuple(sizes)


def _float_bias(path: str, tensors: Mapping[str, Tensor | PackedTensor], dtype: torch.dtype | None) -> Tensor:
    """Return the bias of an integer layer, which the file holds in steps of its accumulators."""
    bias, weight = tensors[join(path, "bias")], tensors.get(join(path, "weight"))
    scales = tensors.get(join(path, "input_quantizer.scales"))
    if (
        not isinstance(bias, Tensor)
        or not isinstance(weight, PackedTensor)
        or not isinstance(scales, Tensor)
        or scales.numel() != 1
        or weight.scales.numel() not in (1, len(bias))
    ):
        raise ContainerError(f"{path}.bias: {bias.dtype}, without the scales of weight and input that its steps are of")
    steps = scales.detach().abs().flatten() * weight.scales.flatten().expand(len(bias))
    return (bias * steps.double()).to(dtype or weight.dtype)


def _turned(source: Checkpoint, structure: Mapping[str, Any]) -> set[str]:
    """Return the layers whose weight the float layer stores ``[in, out]``, as transformers' Conv1D does."""
    linear = {path: record for path, record in structure["layers"].items() if record.get("class") == "PackedLinear"}
    if all("transposed" in record for record in linear.values()):
        return {path for path, record in linear.items() if record["transposed"] is True}
    # Files of 0.1 do not tell: the model is built, without weights, and looked at.
    folder = source.path if source.is_folder else source.path.parent
    if not (folder / CONFIG).exists():
        return set()
    places = dict(build_from_config(folder, structure["class"], source).named_modules(remove_duplicate=False))
    return {path for path in linear if path in places and is_transposed(places[path])}
