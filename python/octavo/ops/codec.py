"""torch.library ops over the Rust codecs: ``octavo::quantize``, ``encode``, ``decode`` and their ``out`` forms.

The kernels are in ``codec_cpu.py`` and ``codec_cuda.py``, which give the same bits. The public functions below take
torch tensors and numpy arrays.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from octavo import _core
from octavo.errors import DTypeError, FormatError, ShapeError
from octavo.ops import _derivatives, _fakes, codec_cpu, codec_cuda
from octavo.ops._checks import DEVICES, check_ste, register
from octavo.ops._derivatives import refuse_tangents
from octavo.ops._passing import passed
from octavo.ops.codec_cpu import DECODE_ADVICE, ENCODE_ADVICE
from octavo.storage.reading import shown
from octavo.tensors.formats import Format, core
from octavo.tensors.packed_tensor import FLOATS, PackedTensor, part_specs

if TYPE_CHECKING:
    import numpy as np

_Values = TypeVar("_Values", Tensor, "np.ndarray")

_library = torch.library.Library("octavo", "DEF")
_OPTIONS = "str format, int axis=-1, str rule='floor', Tensor? scales=None, Tensor? zeros=None, Tensor? levels=None"
_library.define(f"quantize(Tensor x, {_OPTIONS}, str ste='clipped') -> Tensor")
# The same without a gradient: dispatch through autograd takes as long again as everything else together.
_library.define(f"quantize_plain(Tensor x, {_OPTIONS}) -> Tensor")
_library.define(f"quantize_out(Tensor x, {_OPTIONS}, *, Tensor(a!) out) -> ()")
_library.define(f"quantize_backward(Tensor grad, Tensor x, {_OPTIONS}, bool learn=False) -> (Tensor, Tensor)")
_library.define(f"encode(Tensor x, {_OPTIONS}, str nonfinite='error') -> (Tensor, Tensor, Tensor, Tensor)")
_library.define(
    f"encode_out(Tensor x, {_OPTIONS}, str nonfinite='error', *, Tensor(a!) codes_out, Tensor(b!) scales_out, "
    "Tensor(c!) zeros_out, Tensor(d!) levels_out) -> ()"
)
_PARTS = "Tensor codes, Tensor scales, Tensor zeros, Tensor levels, str format, SymInt[] shape, int axis"
_library.define(f"decode({_PARTS}, ScalarType dtype) -> Tensor")
_library.define(f"decode_out({_PARTS}, *, Tensor(a!) out) -> ()")

register(_library, codec_cpu.OPS, "CPU")
register(_library, codec_cuda.OPS, "CUDA")

_fakes.register_codecs(_library)
_derivatives.differentiate(_library, ("quantize", "quantize_plain"), _derivatives.Rounded, free=(0,), simpler=passed)
_derivatives.differentiate(_library, ("quantize_backward",), _derivatives.RoundedBackward, free=(0, 1))
_derivatives.constant(_library, "encode", ENCODE_ADVICE)
_derivatives.constant(_library, "decode", DECODE_ADVICE)
for _name in ("quantize_out", "encode_out", "decode_out"):
    _derivatives.untransformed(_library, _name)


# --- public functions -----------------------------------------------------------------------------------------------


def _tensor(x: Tensor | np.ndarray, what: str) -> Tensor:
    """Return ``x`` as a tensor; numpy arrays share their memory where they can."""
    if isinstance(x, Tensor):
        if x.device.type not in DEVICES:
            raise DTypeError(f"{what} is on {x.device}; the codecs run on the CPU and on CUDA devices")
        if x.dtype not in FLOATS:
            raise DTypeError(f"{what} has dtype {x.dtype}; accepted are float32, float16, bfloat16")
        if x.layout is not torch.strided or x.is_nested:
            raise DTypeError(f"{what} has layout {x.layout}{' (nested)' * x.is_nested}; accepted are strided tensors")
        return x
    return from_numpy(x, what)


def _target(out: Tensor | np.ndarray, what: str) -> Tensor:
    """Return ``out`` as a tensor that shares its memory, and that no gradient flows through."""
    target = _tensor(out, what)
    if target.requires_grad and torch.is_grad_enabled():
        raise DTypeError(f"{what} requires a gradient; writing into it has none")
    if not isinstance(out, Tensor) and out.size and target.data_ptr() != out.__array_interface__["data"][0]:
        raise ShapeError(f"{what} must be a contiguous, writeable array in native byte order")
    return target


def _part(value: object, what: str) -> Tensor | None:
    """Return given scales, zeros or levels as a tensor; the ops check that it lies where x does."""
    if value is None:
        return None
    if isinstance(value, Tensor):
        if value.layout is torch.strided and not value.is_nested and value.device.type in DEVICES:
            return value
        raise DTypeError(
            f"{what} are on {value.device} with layout {value.layout}; accepted are dense tensors on the device of x"
        )
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DTypeError(f"{what} are a {type(value).__name__}; accepted are tensors and arrays of numbers") from error


def _options(axis: object, **texts: object) -> None:
    """Refuse an axis that is no integer and options that are no text."""
    if not isinstance(axis, int) or not -(2**31) < axis < 2**31:
        raise ShapeError(f"axis is {shown(axis)}; accepted are integers within the tensor's dimensions")
    for name, text in texts.items():
        if not isinstance(text, str) or not text.isascii():
            raise FormatError(f"{name} is {shown(text)}; accepted are texts, see the documentation")


def from_numpy(x: np.ndarray, what: str) -> Tensor:
    """Return a numpy array as a tensor. Raises DTypeError for other objects and dtypes."""
    import numpy as np

    if not isinstance(x, np.ndarray):
        raise DTypeError(f"{what} is a {type(x).__name__}; accepted are torch tensors and numpy arrays")
    name = x.dtype.name  # without the byte order
    if name == "bfloat16":  # ml_dtypes' type, which torch.from_numpy does not know
        return torch.from_numpy(np.array(x, order="C").view(np.int16)).view(torch.bfloat16)
    if name not in ("float32", "float16"):
        raise DTypeError(f"{what} has dtype {x.dtype}; accepted are float32, float16, bfloat16")
    if not x.flags.writeable or not x.dtype.isnative or any(stride < 0 for stride in x.strides):
        x = np.array(x, dtype=name, order="C")  # torch shares memory with none of these
    return torch.from_numpy(x)


def _to_numpy(tensor: Tensor, like: np.ndarray) -> np.ndarray:
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(like.dtype)
    return tensor.numpy()


def _text(format: Format | str) -> str:
    if isinstance(format, Format):
        return format.text
    if not isinstance(format, str):
        raise FormatError(f"a format is a Format or a text such as 'mxint8', got {type(format).__name__}")
    if not format.isascii():  # torch refuses half of a surrogate pair in an argument with an error of its own
        core(format)
    return format


def pack_zeros(format: Format | str, zeros: Tensor, shape: tuple[int, ...], axis: int) -> Tensor:
    """Pack integer zero points, one for each scale of a tensor of ``shape``, to the bytes that ops take."""
    fmt = core(_text(format))
    _, (_, _, scale_shape), (_, _, zero_shape), _ = part_specs(fmt, shape, axis)
    if not fmt.has_zeros:
        raise FormatError(f"'{fmt}' has no zero points; uintW has")
    if zeros.is_floating_point() or zeros.is_complex():
        raise DTypeError(f"'{fmt}': zeros have dtype {zeros.dtype}; accepted are integers")
    if zeros.numel() != math.prod(scale_shape):
        raise ShapeError(f"'{fmt}': zeros have shape {tuple(zeros.shape)}, expected {tuple(scale_shape)}")
    top = 2**fmt.width - 1
    if zeros.numel() and not (int(zeros.min()) >= 0 and int(zeros.max()) <= top):
        raise ShapeError(f"'{fmt}': zeros lie in {int(zeros.min())}..{int(zeros.max())}, accepted are 0..{top}")
    codes = zeros.detach().to("cpu", torch.int32).contiguous()
    out = torch.empty(zero_shape, dtype=torch.uint8)
    _core._pack(fmt.width, math.prod(scale_shape[:-1]), scale_shape[-1], codes.data_ptr(), out.data_ptr())
    return out.to(zeros.device)


def quantize(
    x: _Values,
    format: Format | str,
    *,
    axis: int = -1,
    scale: str = "floor",
    scales: Tensor | None = None,
    zeros: Tensor | None = None,
    levels: Tensor | None = None,
    ste: str = "clipped",
    out: _Values | None = None,
) -> _Values:
    """Round every element of ``x`` to the nearest value that ``format`` can hold.

    The result equals ``decode(encode(x))``, bit for bit. NaN stays NaN; infinities saturate. Forward-mode derivatives
    by ``x`` and the transforms of ``torch.func`` pass through as the gradient does.
    Source: FORMATS.md sections 2 and 4. Learned scales: Esser et al. 2020, LSQ.

    Args:
        x: any shape; float32, float16 or bfloat16; a tensor on the CPU or a CUDA device, or a numpy array.
        format: a Format or its text.
        axis: axis that rows, groups and blocks run along.
        scale: rule of the block scale, ``floor``, ``ceil`` or ``mse``.
        scales: scales to use, shaped as :func:`encode` returns them; default: chosen from ``x``. Float tensors for
            ``intW`` and ``fixedW`` (there fraction bits) get a gradient.
        zeros: zero points of ``scales``, integers (``uintW``).
        levels: tensor scale of ``nvfp4``, float32 ``[1]``.
        ste: gradient of the rounding (straight-through estimator), ``clipped``: 1 inside the representable range and 0
            where ``x`` saturated; ``identity``: 1 everywhere.
        out: tensor or array to write to, without a gradient: ``x`` itself, or memory apart from ``x`` and the scales.

    Returns:
        A new tensor or array like ``x``, or ``out``.

    Raises:
        FormatError: for an unknown format, or an option that does not fit it.
        DTypeError: for another dtype, device or kind of object.
        ShapeError: for an axis, scales or ``out`` that do not fit.

    Example:
        >>> x = torch.tensor([0.1, 0.5, 1.2, -3.0])
        >>> octavo.quantize(x, "mxfp4")
        tensor([ 0.0000,  0.5000,  1.0000, -3.0000])
        >>> x.requires_grad_()
        tensor([ 0.1000,  0.5000,  1.2000, -3.0000], requires_grad=True)
        >>> octavo.quantize(x, "fixed4.2").sum().backward()  # holds -2 to 1.75: the last element saturates
        >>> x.grad
        tensor([1., 1., 1., 0.])
    """
    check_ste(ste)
    text = _text(format)
    _options(axis, scale=scale)
    t = _tensor(x, f"quantize to '{text}': x")
    scales, zeros, levels = _part(scales, "scales"), _part(zeros, "zeros"), _part(levels, "levels")
    if zeros is not None:
        zeros = pack_zeros(text, zeros, tuple(t.shape), axis)
    if out is None:
        wanted = torch.is_grad_enabled() and (t.requires_grad or (scales is not None and scales.requires_grad))
        if wanted or forward_ad._current_level >= 0:
            result = torch.ops.octavo.quantize.default(t, text, axis, scale, scales, zeros, levels, ste)
        else:
            result = torch.ops.octavo.quantize_plain.default(t, text, axis, scale, scales, zeros, levels)
        return result if isinstance(x, Tensor) else _to_numpy(result, x)
    target = _target(out, "out")
    if torch.is_grad_enabled() and (t.requires_grad or (scales is not None and scales.requires_grad)):
        raise DTypeError("quantize(out=...) has no gradient; x or scales require one")
    torch.ops.octavo.quantize_out.default(t, text, axis, scale, scales, zeros, levels, out=target)
    return out


def encode(
    x: Tensor | np.ndarray,
    format: Format | str,
    *,
    axis: int = -1,
    scale: str = "floor",
    nonfinite: str = "error",
    scales: Tensor | None = None,
    zeros: Tensor | None = None,
    levels: Tensor | None = None,
    out: PackedTensor | None = None,
) -> PackedTensor:
    """Encode ``x`` into dense codes and scales.

    Source: FORMATS.md sections 2 to 5.

    Args:
        x: any shape; float32, float16 or bfloat16; a tensor on the CPU or a CUDA device, or a numpy array.
        format: a Format or its text.
        axis: axis that rows, groups and blocks run along.
        scale: rule of the block scale, ``floor``, ``ceil`` or ``mse``.
        nonfinite: ``error`` refuses NaN and infinity; ``saturate`` stores the largest value and 0; ``nan`` stores NaN
            where the format can.
        scales: as for :func:`quantize`.
        zeros: as for :func:`quantize`.
        levels: as for :func:`quantize`.
        out: a PackedTensor of the same format, shape, dtype and axis, whose buffers are written; apart from ``x``.

    Returns:
        The packed tensor, or ``out``; of its memory nothing is shared with ``x``.

    Raises:
        NonFiniteError: names the first position with NaN or infinity.
        FormatError: as :func:`quantize`.
        DTypeError: as :func:`quantize`.
        ShapeError: as :func:`quantize`.

    Example:
        >>> packed = octavo.encode(torch.linspace(-1, 1, 64), "int4:g32")
        >>> packed
        PackedTensor('int4:g32', shape=(64,), dtype=float32, axis=0, nbytes=36, bits_per_element=4.5)
        >>> packed.scales  # the largest magnitude of each 32, over 7
        tensor([0.1428, 0.1428], dtype=torch.float16)
    """
    text = _text(format)
    _options(axis, scale=scale, nonfinite=nonfinite)
    t = _tensor(x, f"encode to '{text}': x")
    if forward_ad._current_level >= 0:  # which detach() would lose
        refuse_tangents("encode", ENCODE_ADVICE, t, scales)
    t = t.detach()
    scales, zeros, levels = (
        None if part is None else part.detach()
        for part in (_part(scales, "scales"), _part(zeros, "zeros"), _part(levels, "levels"))
    )
    if zeros is not None:
        zeros = pack_zeros(text, zeros, tuple(t.shape), axis)
    args = (t, text, axis, scale, scales, zeros, levels, nonfinite)
    if out is None:
        parts = torch.ops.octavo.encode.default(*args)
        return PackedTensor._encoded(Format(text), parts, tuple(t.shape), t.dtype, axis, scale)
    if not isinstance(out, PackedTensor):
        raise DTypeError(f"encode(out=...) takes a PackedTensor, got {type(out).__name__}")
    if out.is_sparse:
        raise ShapeError(f"out is {out!r} with sparse codes, whose number is fixed; to_dense() makes one to write to")
    if (out.format.text, out.shape, out.dtype, out.axis) != (
        str(core(text)),
        tuple(t.shape),
        t.dtype,
        axis % max(t.ndim, 1),
    ):
        raise ShapeError(f"out is {out!r}; expected '{text}' of shape {tuple(t.shape)}, {t.dtype}, axis {axis}")
    codes, scale_part, zero_part, level_part = out.parts
    torch.ops.octavo.encode_out.default(
        *args, codes_out=codes, scales_out=scale_part, zeros_out=zero_part, levels_out=level_part
    )
    out._with_rule(scale)
    return out


def decode(packed: PackedTensor, *, dtype: torch.dtype | None = None, out: Tensor | None = None) -> Tensor:
    """Decode a PackedTensor to a tensor of its logical shape.

    Source: FORMATS.md section 6.

    Args:
        packed: codes and scales, on the CPU or a CUDA device.
        dtype: float32, float16 or bfloat16; default: the logical dtype.
        out: tensor to write to, apart from the parts.

    Returns:
        A dense tensor on the device of ``packed``, or ``out``.

    Raises:
        DTypeError: for another dtype, device or kind of object.
        ShapeError: where ``out`` or a part does not fit.

    Example:
        >>> x = torch.randn(4, 100)
        >>> packed = octavo.encode(x, "nf4")
        >>> torch.equal(octavo.decode(packed), octavo.quantize(x, "nf4"))  # what is simulated is what is stored
        True
    """
    if not isinstance(packed, PackedTensor):
        raise DTypeError(f"decode takes a PackedTensor, got {type(packed).__name__}")
    parts = packed.parts
    devices = {part.device.type for part in parts}
    if devices not in ({"cpu"}, {"cuda"}) and not (devices == {"meta"} and out is None):
        raise DTypeError(
            f"decode: the packed tensor is on {packed.device}; the codecs run on the CPU and on CUDA devices"
        )
    if out is not None:
        out = _target(out, "out")
        if dtype is not None and dtype != out.dtype:
            raise DTypeError(f"dtype is {dtype}, out has {out.dtype}")
        torch.ops.octavo.decode_out.default(*parts, packed.format.text, packed.shape, packed.axis, out=out)
        return out
    wanted = packed.dtype if dtype is None else dtype
    if not isinstance(wanted, torch.dtype) or wanted not in FLOATS:
        raise DTypeError(f"decode to dtype {shown(wanted)}; accepted are float32, float16, bfloat16")
    text, shape = packed.format.text, packed.shape
    decoded: Tensor = torch.ops.octavo.decode.default(*parts, text, shape, packed.axis, wanted)
    return decoded
