"""Tensors of GGUF files as they are used here: carried into a format, plain, or decoded, and why."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from octavo.errors import ContainerError, FormatError
from octavo.interchange.ggml_carry import PLAIN, carry
from octavo.interchange.ggml_decode import decode as decode_blocks
from octavo.interchange.ggml_decode import decoder_of
from octavo.interchange.gguf import GgufFile, GgufTensor
from octavo.storage.arguments import checks_arguments
from octavo.storage.reading import shown
from octavo.tensors.packed_tensor import PackedTensor

_WEIGHT, _FACTOR = ".weight", ".scale"


@dataclass(frozen=True)
class TensorOrigin:
    """A tensor of a GGUF file, and how it was read.

    ``type``: in the file. ``nbytes``: there. ``format``: that it was carried into; None where it is plain.
    ``reason``: why its blocks were decoded to float32; None where they were not.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    nbytes: int
    format: str | None
    reason: str | None


@checks_arguments
def load_gguf(path: str | os.PathLike[str], *, decode: bool = False) -> dict[str, Tensor | PackedTensor]:
    """Return the tensors of a GGUF file by their names in it.

    Blocks that a format of ours holds are carried over: their codes and scales are stored in another order. Floats are
    float32, equal to those of the file. The factor ``X.scale`` of an NVFP4 tensor ``X.weight`` goes into it.

    Args:
        path: file to read.
        decode: decode the blocks that no format holds to float32.

    Returns:
        Packed and float32 tensors.

    Raises:
        ContainerError: for a damaged file; without ``decode``, for blocks that no format holds, with the reason.
        FormatError: for a type of blocks that has no definition here; names the tensor.
        OSError: as the system gives it.

    Example:
        >>> from octavo.interchange.gguf_tensors import load_gguf
        >>> _ = Path("x.gguf").write_bytes(b"GGUF" + bytes([3]) + bytes(19))
        >>> load_gguf("x.gguf")
        {}
    """
    file = GgufFile(path)
    read = {origin.name: (tensor, origin) for tensor, origin in read_tensors(file, decode=decode)}
    return {name: tensor for name, (tensor, _) in read.items()}


def read_tensors(file: GgufFile, *, decode: bool = False) -> Iterator[tuple[Tensor | PackedTensor, TensorOrigin]]:
    """Yield the tensors of a file one by one, in its order, and how each was read.

    Every type is looked at before the first tensor is read. Raises as :func:`load_gguf`.
    """
    factors = factors_of(file)
    named = set(factors.values())
    for tensor in file.tensors.values():
        _check_defined(file, tensor)
    for name in file.tensors:
        if name not in named:
            yield read_tensor(file, name, factors.get(name), decode=decode)


def read_tensor(
    file: GgufFile, name: str, factor_name: str | None, *, decode: bool
) -> tuple[Tensor | PackedTensor, TensorOrigin]:
    """Return a tensor and how it was read; ``factor_name``: of :func:`factors_of`. Raises as :func:`load_gguf`."""
    tensor, data = file.tensors[name], file.read(name)
    label = f"{file.path}: tensor {shown(name)}"
    kind = tensor.type.name

    def origin(format: str | None, reason: str | None) -> TensorOrigin:
        return TensorOrigin(name, kind, tensor.shape, tensor.nbytes, format, reason)

    if kind in PLAIN:
        return decode_blocks(data, tensor.type).view(tensor.shape), origin(None, None)
    _check_defined(file, tensor)
    factor = (
        1.0 if factor_name is None else decode_blocks(file.read(factor_name), file.tensors[factor_name].type).item()
    )
    carried = carry(data, tensor.type, tensor.shape, factor)
    if isinstance(carried, PackedTensor):
        return carried, origin(str(carried.format), None)
    if not decode:
        raise ContainerError(f"{label} of {kind}: {carried}; decode=True decodes it to float32")
    values = decode_blocks(data, tensor.type).view(tensor.shape)
    return values if factor_name is None else values.mul_(factor), origin(None, carried)


def factors_of(file: GgufFile) -> dict[str, str]:
    """Return the names of NVFP4 tensors, and of the factor that each has beside it.

    Raises ContainerError for a factor that is not one float32.
    """
    factors = {}
    for name, tensor in file.tensors.items():
        factor = file.tensors.get(name.removesuffix(_WEIGHT) + _FACTOR)
        if tensor.type.name != "NVFP4" or not name.endswith(_WEIGHT) or factor is None:
            continue
        if factor.type.name != "F32" or factor.elements != 1:
            raise ContainerError(
                f"{file.path}: tensor {shown(factor.name)}: {factor.type.name} of shape {list(factor.shape)}; accepted "
                f"as the factor of {shown(name)} is one F32"
            )
        factors[name] = factor.name
    return factors


def _check_defined(file: GgufFile, tensor: GgufTensor) -> None:
    try:
        decoder_of(tensor.type)
    except FormatError as error:
        raise FormatError(f"{file.path}: tensor {shown(tensor.name)}: {error}") from None
