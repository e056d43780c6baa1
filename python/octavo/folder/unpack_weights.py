"""A packed model as plain tensors again: the names, shapes, orientation and dtypes of the state dict it was made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from octavo._reading import shown
from octavo.container import Deferred
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
_PIECE = 1 << 20  # elements of a turned weight that are decoded at once


def unpack(
    source: Checkpoint, dtype: torch.dtype | None = None, *, progress: Progress | None = None
) -> dict[str, Tensor]:
    """Return the plain tensors that a checkpoint was packed of. Arguments and errors: :func:`unpacked`."""
    return {name: later.make() for name, later in unpacked(source, dtype, progress=progress).items()}


def unpacked(
    source: Checkpoint, dtype: torch.dtype | None = None, *, progress: Progress | None = None
) -> dict[str, Deferred]:
    """Return what makes the plain tensors that a checkpoint was packed of, by the names of its model's state dict.

    Each is decoded when it is asked for, which takes the memory of that tensor alone. Packed weights are decoded to
    ``dtype``, or to the dtype they had before packing. Where the file describes layers (:func:`octavo.save_model`),
    weights get back the shape and orientation of the float layer, an int32 bias becomes a float one, tied names get
    their tensor again, and scales of inputs and outputs are left out, since a float layer has none. Other files hold
    every tensor as it was. ``progress``: called with each name and its bytes.

    Raises ContainerError for a description that does not fit the tensors. Source: FORMATS.md section 5.
    """
    tensors = current_names(source.tensors())
    if not layers_of(source):
        return {name: _decoded(name, tensor, dtype, progress) for name, tensor in tensors.items()}
    structure = read_structure(source.files[0], source.metadata()[STRUCTURE])
    layers: Mapping[str, Any] = structure["layers"]
    turned = _turned(source, structure)

    def in_float_layer(name: str, tensor: Tensor | PackedTensor, progress: Progress | None) -> Deferred:
        path, leaf = _layer_of(name, layers)
        if path is None or leaf != "weight":
            return _decoded(name, tensor, dtype, progress)
        if path in turned:
            return _decoded_turned(name, tensor, dtype, progress)
        return _decoded(name, tensor, dtype, progress, _float_shape(name, tuple(tensor.shape), layers[path]))

    stored: dict[str, Tensor | PackedTensor] = {}
    for name, tensor in tensors.items():
        path, leaf = _layer_of(name, layers)
        if path is not None and leaf == "bias" and _is_integer(tensor):
            stored[name] = _float_bias(path, tensors, dtype)
        elif path is None or leaf in ("weight", "bias"):
            stored[name] = tensor
    plain = {name: in_float_layer(name, tensor, progress) for name, tensor in stored.items()}
    for name, holder in structure["ties"].items():
        if holder not in tensors or name in tensors:
            raise ContainerError(f"{source.path}: {name}: tied to {holder}, which must be in the file, and {name} not")
        if holder in stored:  # else scales of a layer that is in the model twice
            plain[name] = in_float_layer(name, stored[holder], None)
    return plain


def _decoded(
    name: str,
    tensor: Tensor | PackedTensor,
    dtype: torch.dtype | None,
    progress: Progress | None,
    shape: tuple[int, ...] | None = None,
) -> Deferred:
    """Return a tensor of the file as a plain one, in another shape of as many elements where one is given."""
    wanted = tuple(tensor.shape) if shape is None else shape

    def make() -> Tensor:
        plain = tensor.decode(dtype) if isinstance(tensor, PackedTensor) else tensor
        if progress:
            progress(name, tensor.nbytes)
        return plain.reshape(wanted)

    return Deferred(_plain_dtype(tensor, dtype), wanted, make)


def _decoded_turned(
    name: str, tensor: Tensor | PackedTensor, dtype: torch.dtype | None, progress: Progress | None
) -> Deferred:
    """Return a matrix with its axes exchanged, decoded some rows at a time."""
    if tensor.ndim != 2:
        raise ContainerError(f"{name}: shape {tuple(tensor.shape)}; the weight of a PackedLinear is a matrix")
    rows, columns = tensor.shape
    turned = _plain_dtype(tensor, dtype)
    step = max(1, _PIECE // max(columns, 1))

    def make() -> Tensor:
        out = torch.empty(columns, rows, dtype=turned)
        for start in range(0, rows, step):
            piece = tensor[start : start + step]
            out[:, start : start + step] = (piece.decode(turned) if isinstance(piece, PackedTensor) else piece).T
        if progress:
            progress(name, tensor.nbytes)
        return out

    return Deferred(turned, (columns, rows), make)


def _plain_dtype(tensor: Tensor | PackedTensor, dtype: torch.dtype | None) -> torch.dtype:
    return dtype if dtype is not None and isinstance(tensor, PackedTensor) else tensor.dtype


def _is_integer(tensor: Tensor | PackedTensor) -> bool:
    return isinstance(tensor, Tensor) and not tensor.is_floating_point()


def _layer_of(name: str, layers: Mapping[str, Any]) -> tuple[str | None, str]:
    """Return the described layer that a tensor is of, and its name in the layer; None for a tensor of no such layer."""
    parts = name.split(".")
    for count in range(len(parts)):
        path = ".".join(parts[:count])
        if path in layers:
            return path, ".".join(parts[count:])
    return None, name


def _float_shape(name: str, shape: tuple[int, ...], record: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape that a packed weight ``[N, K]`` has in its float layer: with a kernel, or as its record says."""
    if (told := record.get("shape")) is not None:
        fits = isinstance(told, list) and len(told) <= _DIMENSIONS and all(type(n) is int and n >= 0 for n in told)
        if not fits or math.prod(told) != math.prod(shape):
            raise ContainerError(f"{name}: shape {shape}, but its structure says {shown(told)}")
        return tuple(told)
    kernel = _kernel(record)
    if kernel is None:
        return shape
    size = math.prod(kernel)
    if len(shape) != 2 or shape[1] % size:
        raise ContainerError(
            f"{name}: shape {shape}, which no convolution with the kernel {kernel} of its structure has"
        )
    return (shape[0], shape[1] // size, *kernel)


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
