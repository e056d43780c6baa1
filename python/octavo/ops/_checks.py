"""Checks of the operands of codec ops, before any work, for every device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch import library as registry

from octavo import _core
from octavo.errors import DTypeError, FormatError, NonFiniteError, ShapeError
from octavo.storage.reading import shown
from octavo.tensors.packed_tensor import FLOATS, SCALE_DTYPES, part_specs
from octavo.tensors.tensor_memory import check_held, overlap, refuse_overlap

CPU = torch.device("cpu")
STES = ("clipped", "identity")
"""Gradients of the rounding: 0 where x saturated, or 1 everywhere."""
RULES = ("floor", "ceil", "mse")
NONFINITE = ("error", "saturate", "nan")
# Where codecs run; meta tensors have no values.
DEVICES = ("cpu", "cuda")


GivenParts: TypeAlias = tuple[tuple[int, int, int, int] | None, Sequence[Tensor]]
"""Addresses of given scales, zeros and levels, and the tensors that keep them alive."""
NONE_GIVEN: GivenParts = (None, ())


def readable(x: Tensor, what: str) -> tuple[Tensor, int]:
    """Return ``x`` contiguous and aligned, and its dtype code. Raises DTypeError and ShapeError."""
    code = FLOATS.get(x.dtype)
    if code is None:
        raise DTypeError(f"{what} has dtype {x.dtype}; accepted are float32, float16, bfloat16")
    if not x.is_contiguous():
        check_held(x, what)
        x = x.contiguous()
    elif x.untyped_storage().nbytes() < x.storage_offset() * x.itemsize + x.nbytes:
        check_held(x, what)
    return (x.clone() if x.data_ptr() % x.element_size() else x), code


def check_out(
    out: Tensor, shape: torch.Size | tuple[int, ...], dtype: torch.dtype, what: str, device: torch.device = CPU
) -> None:
    """Refuse an ``out`` that does not fit or lies elsewhere. Raises ShapeError."""
    if out.dtype == dtype and out.shape == shape and out.is_contiguous() and out.device == device:
        if out.untyped_storage().nbytes() < out.storage_offset() * dtype.itemsize + out.nbytes:
            check_held(out, what)
        return
    if out.dtype != dtype or tuple(out.shape) != tuple(shape):
        raise ShapeError(
            f"{what} has dtype {out.dtype} and shape {tuple(out.shape)}, expected {dtype} and {tuple(shape)}"
        )
    if not out.is_contiguous() or out.device != device:
        place = "the CPU" if device == CPU else str(device)
        layout = "contiguous" if out.is_contiguous() else "not contiguous"
        raise ShapeError(f"{what} must be contiguous and on {place}; it is {layout}, on {out.device}")


def given_parts(
    format: _core.Format, shape: tuple[int, ...], axis: int, scales: Tensor | None, zeros: Tensor | None,
    levels: Tensor | None, device: torch.device = CPU,
) -> GivenParts:  # fmt: skip
    """Addresses of given scales in their storage form, and the tensors that keep them alive."""
    if scales is None:
        if zeros is not None or levels is not None:
            raise ShapeError(f"'{format}': zeros and levels are given with scales, not alone")
        return NONE_GIVEN
    _, (_, _, scale_shape), (_, _, zero_shape), _ = part_specs(format, shape, axis)
    keep = [stored(scales, SCALE_DTYPES[format.scale_type], scale_shape, f"'{format}': scales", device)]
    for tensor, dtype, wanted, there, name in (
        (zeros, torch.uint8, zero_shape, format.has_zeros, "zeros"),
        (levels, torch.float32, [1], format.has_levels, "levels"),
    ):
        if there:
            if tensor is None:
                raise ShapeError(f"'{format}': given scales need {name} too")
            keep.append(stored(tensor, dtype, wanted, f"'{format}': {name}", device))
        elif tensor is not None and tensor.numel():
            raise ShapeError(f"'{format}' has no {name}, but {name} were given")
    zeros_at = keep[1].data_ptr() if format.has_zeros else 0
    levels_at = keep[-1].data_ptr() if format.has_levels else 0
    return (0, keep[0].data_ptr(), zeros_at, levels_at), keep


def together(what: str, *tensors: object) -> None:
    """Check that all tensors are on the device of the first, as fakes must: they compute nothing. Raises DTypeError."""
    first, *others = (tensor for tensor in tensors if isinstance(tensor, Tensor))
    for other in others:
        if other.device != first.device:
            raise DTypeError(f"{what}: one operand is on {first.device}, another on {other.device}; move them together")


def stored(tensor: Tensor, dtype: torch.dtype, shape: Sequence[int], what: str, device: torch.device = CPU) -> Tensor:
    """Return a part in its storage form. Raises ShapeError, DTypeError, NonFiniteError."""
    if tensor.device != device:
        raise DTypeError(f"{what} are on {tensor.device}, expected {device}")
    check_held(tensor, what)
    if tensor.dtype == dtype and tensor.numel() == math.prod(shape) and tensor.is_contiguous():
        return tensor
    if tensor.numel() != math.prod(shape):
        raise ShapeError(f"{what} have shape {tuple(tensor.shape)}, expected {tuple(shape)}")
    if tensor.dtype != dtype:
        if tensor.is_complex():
            raise DTypeError(f"{what} have dtype {tensor.dtype}, expected {dtype}")
        if dtype == torch.int8:  # fraction bits may be learned as floats
            if not torch.isfinite(tensor).all():
                raise NonFiniteError(f"{what} are fraction bits and must be finite")
            tensor = tensor.round().clamp(-128, 127)
        elif not dtype.is_floating_point:
            raise DTypeError(f"{what} have dtype {tensor.dtype}, expected {dtype} codes")
    return tensor.detach().to(dtype).contiguous()


def register(library: registry.Library, kernels: Mapping[str, Callable[..., Any]], key: str) -> None:
    """Register kernels for a dispatch key."""
    for name, kernel in kernels.items():
        library.impl(name, without_none(name, kernel), key)


def without_none(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel that raises DTypeError for None in the place of a tensor, which torch lets through."""
    arguments = getattr(torch.ops.octavo, name).default._schema.arguments
    needed = {argument.name: at for at, argument in enumerate(arguments) if str(argument.type) == "Tensor"}

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return kernel(*args, **kwargs)
        except (AttributeError, TypeError, ValueError, IndexError):  # looked for afterwards: calls that fit pay nothing
            for missing, at in needed.items():
                if (args[at] if at < len(args) else kwargs.get(missing)) is None:
                    raise DTypeError(f"{name}: {missing} is None; expected a tensor") from None
            raise

    return call


def check_ste(ste: object) -> None:
    """Refuse an unknown gradient of the rounding. Raises FormatError."""
    if not isinstance(ste, str) or ste not in STES:
        raise FormatError(f"unknown ste {shown(ste)}; accepted are {', '.join(STES)}")


def float_code(dtype: torch.dtype, format: str) -> int:
    """Return the code of the dtype that a format is decoded to. Raises DTypeError."""
    code = FLOATS.get(dtype)
    if code is None:
        raise DTypeError(f"decode of '{format}' to {dtype}; accepted are float32, float16, bfloat16")
    return code


def check_gradient(grad: Tensor, x: Tensor, format: str, scales: Tensor | None, learn: bool) -> None:
    """Check what the gradient of quantize reads beside x. Raises ShapeError, DTypeError and FormatError."""
    if tuple(grad.shape) != tuple(x.shape):
        raise ShapeError(
            f"gradient of quantize to '{format}': grad has shape {tuple(grad.shape)}, x has {tuple(x.shape)}; expected "
            "the same"
        )
    if grad.dtype not in FLOATS:
        raise DTypeError(
            f"gradient of quantize to '{format}': grad has dtype {grad.dtype}; accepted are float32, float16, bfloat16"
        )
    if grad.device != x.device:
        raise DTypeError(f"gradient of quantize to '{format}': grad is on {grad.device}, x on {x.device}; move one")
    if learn and (scales is None or not scales.is_floating_point()):
        given = "none are given" if scales is None else f"they have dtype {scales.dtype}"
        raise FormatError(f"gradient of quantize to '{format}': learn=True needs scales of a float dtype, {given}")


def check_quantize_out(
    x: Tensor, scales: Tensor | None, zeros: Tensor | None, levels: Tensor | None, out: Tensor
) -> None:
    """Refuse an ``out`` that does not fit, or that overlaps what is read. Raises ShapeError."""
    check_out(out, x.shape, x.dtype, "out", x.device)
    if x.is_contiguous() and out.data_ptr() != x.data_ptr():  # other layouts are read from a copy
        refuse_overlap((("out", out),), (("x", x),), "it may be x itself or lie apart from it")
    if scales is not None:
        given = (("scales", scales), ("zeros", zeros), ("levels", levels))
        refuse_overlap((("out", out),), given, "pass a tensor apart from them")


_PARTS = ("codes", "scales", "zeros", "levels")


def check_encode_out(
    x: Tensor, format: _core.Format, axis: int, given: tuple[Tensor | None, ...], parts: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...]:
    """Refuse parts to write that do not fit, or that overlap x or each other. Raises ShapeError.

    Returns given scales, zeros and levels, copied where they lie in what is written.
    """
    for part, (name, dtype, shape) in zip(parts, part_specs(format, tuple(x.shape), axis), strict=True):
        check_out(part, shape, dtype, name, x.device)
    refuse_overlap(zip(_PARTS, parts, strict=True), (("x", x),), "each part lies apart from x and the others")
    if given[0] is None:
        return given
    return tuple(one.clone() if one is not None and any(overlap(one, part) for part in parts) else one for one in given)


def check_decode_out(parts: tuple[Tensor, ...], shape: tuple[int, ...], out: Tensor) -> None:
    """Refuse an ``out`` that does not fit, or that overlaps a part. Raises ShapeError."""
    check_out(out, shape, out.dtype, "out", parts[0].device)
    refuse_overlap((("out", out),), zip(_PARTS, parts, strict=True), "decode to memory apart from the packed tensor")
