"""Tensors of GGUF files as they are used here: carried into a format, plain, or decoded, and why."""

from __future__ import annotations

import os
from collections.abc import Iterator

from torch import Tensor

from octavo.errors import ContainerError, FormatError
from octavo.interchange.foreign_model import TensorOrigin as TensorOrigin
from octavo.interchange.ggml_carry import PLAIN, carry
from octavo.interchange.ggml_decode import decode as decode_blocks
from octavo.interchange.ggml_decode import decoder_of
from octavo.interchange.gguf import GgufFile, GgufTensor
from octavo.storage.arguments import checks_arguments
from octavo.storage.reading import shown
from octavo.tensors.packed_tensor import PackedTensor

WEIGHT, FACTOR = ".weight", ".scale"


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
    carried, origin = carry_tensor(file, name, factor_name)
    if carried is not None:
        return carried, origin
    if origin.reason is not None and not decode:
        label = f"{file.path}: tensor {shown(name)} of {origin.type}"
        raise ContainerError(f"{label}: {origin.reason}; decode=True decodes it to float32")
    return decode_tensor(file, name, factor_name), origin


def carry_tensor(
    file: GgufFile, name: str, factor_name: str | None, *, number: int | None = None
) -> tuple[PackedTensor | None, TensorOrigin]:
    """Return a tensor in a format of ours, None where none holds it or it is plain, and how it is to be read.

    ``factor_name``: of :func:`factors_of`. ``number``: of the matrix along the first axis; None for all. Raises
    FormatError for a type without a definition.
    """
    tensor = file.tensors[name]
    kind = tensor.type.name
    _check_defined(file, tensor)
    shape, label, nbytes = tensor.shape, name, tensor.nbytes
    if number is not None:
        shape, label, nbytes = shape[1:], f"{name}[{number}]", nbytes // shape[0]
    carried = (
        None if kind in PLAIN else carry(_rows(file, name, number), tensor.type, shape, _factor(file, factor_name))
    )
    text = str(carried.format) if isinstance(carried, PackedTensor) else None
    reason = carried if isinstance(carried, str) else None
    origin = TensorOrigin(label, kind, shape, nbytes, text, reason)
    return carried if isinstance(carried, PackedTensor) else None, origin


def decode_tensor(file: GgufFile, name: str, factor_name: str | None, *, number: int | None = None) -> Tensor:
    """Return the float32 values of a tensor. ``factor_name``, ``number``: as for :func:`carry_tensor`."""
    tensor = file.tensors[name]
    shape = tensor.shape if number is None else tensor.shape[1:]
    values = decode_blocks(_rows(file, name, number), tensor.type).view(shape)
    return values if factor_name is None else values.mul_(_factor(file, factor_name))


def _rows(file: GgufFile, name: str, number: int | None) -> Tensor:
    """Return the bytes of a tensor, or of one of its matrices, a row each."""
    data = file.read(name)
    return data if number is None else data.unflatten(0, (file.tensors[name].shape[0], -1))[number]


def _factor(file: GgufFile, name: str | None) -> float:
    return 1.0 if name is None else decode_blocks(file.read(name), file.tensors[name].type).item()


def factors_of(file: GgufFile) -> dict[str, str]:
    """Return the names of NVFP4 tensors, and of the factor that each has beside it.

    Raises ContainerError for a factor that is not one float32.
    """
    factors = {}
    for name, tensor in file.tensors.items():
        factor = file.tensors.get(name.removesuffix(WEIGHT) + FACTOR)
        if tensor.type.name != "NVFP4" or not name.endswith(WEIGHT) or factor is None:
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
