"""A packed model as plain tensors again: the names, shapes, orientation and dtypes of the state dict it was made of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from octavo.errors import ContainerError
from octavo.model_folder.features.rewritten_modules import REWRITTEN, origins_of
from octavo.model_folder.hf_loading import CONFIG
from octavo.model_folder.skeleton import build_from_config
from octavo.model_folder.structure import float_problem, own_tensors, read_structure
from octavo.model_folder.weight_files import STRUCTURE, Checkpoint, layers_of
from octavo.nn.conv_transposed import TURNED_KERNELS
from octavo.nn.conv_transposed import weight_of as kernel_of
from octavo.nn.former_names import current_names
from octavo.nn.rewriting import Origin
from octavo.ops.codec import decode
from octavo.recipe.sites import is_transposed, join
from octavo.storage.reading import shown
from octavo.tensors.container import Deferred
from octavo.tensors.packed_tensor import PackedTensor

if TYPE_CHECKING:
    from octavo.model_folder.pack_checkpoint import Progress

_DIMENSIONS = 8  # of a weight
_PIECE = 1 << 20  # elements of a turned weight that are decoded at once


def unpack(source: Checkpoint, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Return the plain tensors that a checkpoint was packed of. Arguments and errors: :func:`unpacked`."""
    made = unpacked(source, dtype).items()
    return {name: tensor.tensor() if isinstance(tensor, Deferred) else tensor for name, tensor in made}


def unpacked(
    source: Checkpoint, dtype: torch.dtype | None = None, *, progress: Progress | None = None
) -> dict[str, Tensor | Deferred]:
    """Return the plain tensors that a checkpoint was packed of, by the names of its model's state dict.

    Packed ones are decoded when they are asked for, to ``dtype``, or to the dtype they had before packing. Where the
    file describes layers (:func:`octavo.save_model`), weights get back the shape and orientation of the float layer, an
    int32 bias becomes a float one, tied names get their tensor again, and the layers of a rewritten module are its
    parameters again. Scales of inputs and outputs are left out, since a float layer has none, as are masks of pruned
    weights, whose zeros are there. Other files hold every tensor as it was. ``progress``: called with the name and
    packed bytes of each that was decoded.

    Raises ContainerError for a description that does not fit the tensors. Source: FORMATS.md section 5.
    """
    own = own_tensors(source.files[0], source.metadata().get(STRUCTURE)) if len(source.files) == 1 else set()
    tensors = {name: tensor for name, tensor in current_names(source.tensors()).items() if name not in own}
    if not layers_of(source):
        return {name: _plain(name, tensor, dtype, progress) for name, tensor in tensors.items()}
    structure = read_structure(source.files[0], source.metadata()[STRUCTURE])
    layers: Mapping[str, Any] = structure["layers"]
    if (problem := float_problem(structure)) is not None:
        raise ContainerError(f"{source.path}: {problem}")
    turned = _turned(source, structure)
    pieces = _Pieces()

    def in_float_layer(name: str, tensor: Tensor | PackedTensor, progress: Progress | None) -> Tensor | Deferred:
        path, leaf = _layer_of(name, layers)
        if path is None or leaf != "weight":
            return _plain(name, tensor, dtype, progress)
        if path in turned:
            return _plain_turned(name, tensor, dtype, progress, pieces)
        if layers[path].get("class") in TURNED_KERNELS:
            return _plain_kernel(name, tensor, dtype, progress, layers[path])
        return _plain(name, tensor, dtype, progress, _float_shape(name, tuple(tensor.shape), layers[path]))

    stored: dict[str, Tensor | PackedTensor] = {}
    for name, tensor in tensors.items():
        path, leaf = _layer_of(name, layers)
        if path is not None and leaf == "bias" and isinstance(tensor, Tensor) and not tensor.is_floating_point():
            stored[name] = _float_bias(path, tensors, dtype)
        elif path is None or "_quantizer." not in leaf:  # a layer with a forward of its own has more tensors
            stored[name] = tensor
    plain = {name: in_float_layer(name, tensor, progress) for name, tensor in stored.items()}
    for name, holder in structure["ties"].items():
        if holder not in tensors or name in tensors:
            raise ContainerError(f"{source.path}: {name}: tied to {holder}, which must be in the file, and {name} not")
        if holder in stored:  # else scales of a layer that is in the model twice
            plain[name] = in_float_layer(name, stored[holder], None)
    return _joined(source, plain, structure.get(REWRITTEN.key) or {})


def _joined(
    source: Checkpoint, plain: Mapping[str, Tensor | Deferred], modules: Mapping[str, Any]
) -> dict[str, Tensor | Deferred]:
    """Return tensors in which the layers of rewritten modules are the parameters again that they were made of."""
    joined = dict(plain)
    for path, origins in origins_of(modules).items():
        for name, origin in origins.items():
            parts = {part: joined.pop(join(path, part), None) for part in origin.parts}
            if missing := next((part for part, value in parts.items() if value is None), None):
                raise ContainerError(
                    f"{source.path}: {join(path, missing)} is missing; {join(path, name)} is made of it"
                )
            if join(path, name) in joined:
                raise ContainerError(f"{source.path}: {join(path, name)} is in the file, and so are its parts")
            joined[join(path, name)] = _whole(join(path, name), origin, cast("dict[str, Tensor | Deferred]", parts))
    return joined


def _whole(name: str, origin: Origin, parts: Mapping[str, Tensor | Deferred]) -> Deferred:
    """Return the parameter of parts, which are made one after another where they belong."""
    elements = math.prod(origin.part_shape)
    wrong = next((part for part, value in parts.items() if math.prod(value.shape) != elements), None)
    if wrong is not None or len(origin.shape) > _DIMENSIONS or math.prod(origin.shape) != elements * len(parts):
        raise ContainerError(f"{name}: its structure says {shown(list(origin.shape))}, which its parts do not make up")

    def fill(out: Tensor) -> None:
        for part, place in origin.split(out).items():
            value = parts[part]
            if isinstance(value, Tensor):
                place.copy_(value)
            elif place.is_contiguous():
                value.fill(place)
            else:
                place.copy_(value.tensor())

    return Deferred(next(iter(parts.values())).dtype, origin.shape, fill)


def _plain(
    name: str,
    tensor: Tensor | PackedTensor,
    dtype: torch.dtype | None,
    progress: Progress | None,
    shape: tuple[int, ...] | None = None,
) -> Tensor | Deferred:
    """Return a tensor of the file as a plain one, in another shape of as many elements where one is given."""
    wanted = tuple(tensor.shape) if shape is None else shape
    if isinstance(tensor, Tensor):
        return tensor.reshape(wanted)
    packed = tensor

    def fill(out: Tensor) -> None:
        decode(packed, out=out.view(packed.shape))
        if progress:
            progress(name, packed.nbytes)

    return Deferred(dtype or packed.dtype, wanted, fill)


def _plain_turned(
    name: str, tensor: Tensor | PackedTensor, dtype: torch.dtype | None, progress: Progress | None, pieces: _Pieces
) -> Tensor | Deferred:
    """Return a matrix with its axes exchanged, decoded some rows at a time."""
    if tensor.ndim != 2:
        raise ContainerError(f"{name}: shape {tuple(tensor.shape)}; the weight of a PackedLinear is a matrix")
    if isinstance(tensor, Tensor):
        return tensor.T
    packed = tensor
    rows, columns = packed.shape
    step = max(1, _PIECE // max(columns, 1))

    def fill(out: Tensor) -> None:
        for start in range(0, rows, step):
            piece = packed[start : start + step]
            out[:, start : start + step] = decode(piece, out=pieces.like(piece, out.dtype)).T
        if progress:
            progress(name, packed.nbytes)

    return Deferred(dtype or packed.dtype, (columns, rows), fill)


def _plain_kernel(
    name: str, tensor: Tensor | PackedTensor, dtype: torch.dtype | None, progress: Progress | None, record: Any
) -> Tensor | Deferred:
    """Return the weight of a transposed convolution."""
    kernel, groups = _kernel(record), (record.get("geometry") or {}).get("groups")
    rows, columns = tuple(tensor.shape) if tensor.ndim == 2 else (0, 0)
    size = math.prod(kernel or ())
    if kernel is None or type(groups) is not int or groups < 1 or rows % groups or columns % size or tensor.ndim != 2:
        raise ContainerError(
            f"{name}: shape {tuple(tensor.shape)}, which no transposed convolution with the kernel {kernel} and "
            f"{shown(groups)} groups of its structure has"
        )
    if isinstance(tensor, Tensor):
        return kernel_of(tensor, groups, kernel)
    packed = tensor

    def fill(out: Tensor) -> None:
        out.copy_(kernel_of(packed.decode(), groups, kernel))
        if progress:
            progress(name, packed.nbytes)

    return Deferred(dtype or packed.dtype, (columns // size * groups, rows // groups, *kernel), fill)


class _Pieces:
    """Memory that pieces of weights are decoded in, one after another."""

    def __init__(self) -> None:
        self._memory = torch.empty(0)

    def like(self, piece: PackedTensor, dtype: torch.dtype) -> Tensor:
        """Return room for a piece, until the next one."""
        if self._memory.dtype != dtype or self._memory.numel() < piece.numel():
            self._memory = torch.empty(piece.numel(), dtype=dtype)
        return self._memory[: piece.numel()].view(piece.shape)


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
