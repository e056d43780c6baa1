"""Residual sum, drop-out and norm as one operation: a kernel forward and one backward, which draws the mask again.

``octavo_lab::residual_norm`` runs in the native core on a CPU and as one launch on a GPU. :func:`plain_residual_norm`
is its definition in torch's own operations, and computes what the kernels do not take, such as float64.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import library as registry
from torch.nn import functional

from octavo import _core
from octavo.errors import DTypeError, RangeError, ShapeError
from octavo.lab.language.gpt.dropout_mask import drawn_seed, kept_numbers
from octavo.ops.codec_cuda import place
from octavo.tensors.packed_tensor import FLOATS
from octavo.tensors.tensor_memory import check_held

WIDEST = 8_192
"""Columns of the kernels for GPUs, at most."""


def residual_dropout_norm(
    x: Tensor,
    branch: Tensor,
    gain: Tensor | None,
    *,
    scale: float | Tensor,
    p: float,
    eps: float,
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return ``s = x + scale * dropout(branch, p)`` and ``s / rms(s) * gain``, of the wider of the two dtypes.

    ``x``, ``branch``: ``[..., D]``; ``gain``: ``[D]`` or None. ``scale``: a number, or a tensor of one, which gets no
    gradient. ``p``: chance of a 0, below 1. ``seed``: of the mask, int64 ``[1]``; drawn from torch's generator of the
    device where it is None. The mask depends on the seed, the row and the column alone
    (:mod:`octavo.lab.language.gpt.dropout_mask`), and the backward pass computes it again. Kept for that pass: s, a
    float32 for every row and the seed. Sums are float32. Gradients of first order. Raises ShapeError for shapes that
    differ, DTypeError for numbers that are no floats and RangeError for ``p``.
    """
    _check(x, branch, gain, p)
    if p and seed is None:
        seed = drawn_seed(x.device)
    if not _taken(x, branch, gain):
        return plain_residual_norm(x, branch, gain, scale=scale, p=p, eps=eps, seed=seed)
    factor, by = (1.0, scale) if isinstance(scale, Tensor) else (scale, None)
    stream, normed, _ = torch.ops.octavo_lab.residual_norm(x, branch, gain, by, seed, factor, p, eps)
    return stream, normed


def plain_residual_norm(
    x: Tensor,
    branch: Tensor,
    gain: Tensor | None,
    *,
    scale: float | Tensor,
    p: float,
    eps: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return the results of :func:`residual_dropout_norm` by torch's operations, one by one."""
    if p and seed is not None:
        mask = kept_numbers(seed, branch[..., 0].numel(), branch.shape[-1], p).view(branch.shape)
        branch = torch.where(mask, branch, torch.zeros((), dtype=branch.dtype, device=branch.device)) / (1 - p)
    stream = x + scale * branch
    return stream, functional.rms_norm(stream, stream.shape[-1:], gain, eps)


def _check(x: Tensor, branch: Tensor, gain: Tensor | None, p: float) -> None:
    if x.shape != branch.shape or x.ndim == 0 or x.shape[-1] == 0:
        shapes = f"{tuple(x.shape)} and {tuple(branch.shape)}"
        raise ShapeError(f"residual_norm: x and branch have shapes {shapes}; accepted are two equal ones [..., D]")
    if gain is not None and gain.shape != x.shape[-1:]:
        raise ShapeError(f"residual_norm: gain has shape {tuple(gain.shape)}; accepted is ({x.shape[-1]},)")
    for name, part in (("x", x), ("branch", branch), ("gain", gain)):
        if part is not None and not part.is_floating_point():
            raise DTypeError(f"residual_norm: {name} is {part.dtype}; accepted are float dtypes")
    if not 0 <= p < 1:
        raise RangeError(f"residual_norm: p is {p}; accepted is a chance from 0 to below 1")


def _taken(x: Tensor, branch: Tensor, gain: Tensor | None) -> bool:
    """Whether a kernel computes this."""
    floats = all(part is None or part.dtype in FLOATS for part in (x, branch, gain))
    return floats and (x.device.type in ("cpu", "meta") or (x.is_cuda and x.shape[-1] <= WIDEST))


# --- the operations ---------------------------------------------------------------------------------------------------

_library = registry.Library("octavo_lab", "FRAGMENT")
_library.define(
    "residual_norm(Tensor x, Tensor branch, Tensor? gain, Tensor? scale, Tensor? seed, float factor, float p, "
    "float eps) -> (Tensor, Tensor, Tensor)"
)
_library.define(
    "residual_norm_backward(Tensor of_stream, Tensor of_normed, Tensor stream, Tensor rates, Tensor? gain, "
    "Tensor? scale, Tensor? seed, float factor, float p, ScalarType x_dtype, ScalarType branch_dtype) "
    "-> (Tensor, Tensor, Tensor)"
)


def _ready(part: Tensor, name: str) -> Tensor:
    """Return a tensor contiguous and inside its storage."""
    check_held(part, f"residual_norm: {name}")
    return part.contiguous()


def _single(gain: Tensor | None) -> Tensor | None:
    return None if gain is None else _ready(gain.float(), "gain")


def _address(part: Tensor | None) -> int:
    return 0 if part is None else part.data_ptr()


def _on_gpu(x: Tensor) -> bool:
    return x.is_cuda


def _sizes(x: Tensor) -> tuple[int, int]:
    width = x.shape[-1]
    return x.numel() // width, width


def _numbers(
    scale: Tensor | None, seed: Tensor | None, factor: float, p: float, eps: float
) -> tuple[float, float, int, float]:
    """Return factor, chance and seed as the native core takes them."""
    by = factor if scale is None else factor * float(scale)
    return by / (1 - p), p, 0 if seed is None or not p else int(seed) % 2**64, eps


def _checked(
    x: Tensor, branch: Tensor, gain: Tensor | None, scale: Tensor | None, seed: Tensor | None, p: float
) -> None:
    """Refuse what the kernels must not be given."""
    _check(x, branch, gain, p)
    if x.dtype not in FLOATS or branch.dtype not in FLOATS:
        accepted = "float32, float16, bfloat16"
        raise DTypeError(f"residual_norm: x is {x.dtype}, branch {branch.dtype}; accepted are {accepted}")
    if p and (seed is None or seed.dtype != torch.int64 or seed.numel() != 1):
        raise DTypeError(f"residual_norm: p is {p}, and seed is no tensor of one int64")
    if scale is not None and scale.numel() != 1:
        raise ShapeError(f"residual_norm: scale has shape {tuple(scale.shape)}; accepted is one number")
    for part in (branch, gain, scale, seed):
        if part is not None and part.device != x.device:
            raise DTypeError(f"residual_norm: x is on {x.device}, another operand on {part.device}")


def _checked_backward(
    of_stream: Tensor, of_normed: Tensor, stream: Tensor, rates: Tensor, gain: Tensor | None, scale: Tensor | None,
    seed: Tensor | None, p: float, x_dtype: torch.dtype, branch_dtype: torch.dtype,
) -> None:  # fmt: skip
    """Refuse what the kernels of the backward pass must not be given: they read as many numbers as stream has."""
    _checked(stream, stream, gain, scale, seed, p)
    for name, part, shape in (
        ("of_stream", of_stream, stream.shape),
        ("of_normed", of_normed, stream.shape),
        ("rates", rates, stream.shape[:-1]),
    ):
        if part.shape != shape or part.device != stream.device:
            raise ShapeError(
                f"residual_norm: {name} has shape {tuple(part.shape)} on {part.device}; accepted is {tuple(shape)} "
                f"on {stream.device}"
            )
    if rates.dtype != torch.float32 or x_dtype not in FLOATS or branch_dtype not in FLOATS:
        raise DTypeError(
            f"residual_norm: rates is {rates.dtype}, x {x_dtype}, branch {branch_dtype}; accepted are rates of "
            "float32, and float32, float16, bfloat16"
        )


def _empty(x: Tensor, branch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return memory for stream, normed rows, and the reciprocal root of each row's mean square."""
    dtype = torch.promote_types(x.dtype, branch.dtype)
    stream, normed = (torch.empty(x.shape, dtype=dtype, device=x.device) for _ in range(2))
    return stream, normed, torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)


def _empty_gradients(
    stream: Tensor, gain: Tensor | None, x_dtype: torch.dtype, branch_dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return memory for the gradients of x, branch and gain; the last of no numbers where there is none, float32."""
    of_x, of_branch = (stream.new_empty(stream.shape, dtype=dtype) for dtype in (x_dtype, branch_dtype))
    return of_x, of_branch, stream.new_zeros(0 if gain is None else stream.shape[-1], dtype=torch.float32)


def _shape(
    x: Tensor, x_dtype: torch.dtype, branch_dtype: torch.dtype, dtype: torch.dtype
) -> tuple[int, int, int, int, int]:
    return (*_sizes(x), FLOATS[x_dtype], FLOATS[branch_dtype], FLOATS[dtype])


def _options(
    gain: Tensor | None, scale: Tensor | None, seed: Tensor | None, factor: float, p: float, eps: float
) -> tuple[Any, ...]:
    """Return what kernels take beside rows: nothing waits for the device, which reads scale and seed itself."""
    return _address(gain), _address(scale), _address(seed if p else None), factor / (1 - p), p, eps


def _forward_fake(
    x: Tensor, branch: Tensor, gain: Tensor | None, scale: Tensor | None, seed: Tensor | None, factor: float, p: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    _checked(x, branch, gain, scale, seed, p)
    return _empty(x, branch)


def _forward(
    x: Tensor, branch: Tensor, gain: Tensor | None, scale: Tensor | None, seed: Tensor | None, factor: float, p: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    stream, normed, rates = results = _forward_fake(x, branch, gain, scale, seed, factor, p, eps)
    if not x.numel():
        return results
    x, branch, gain = _ready(x, "x"), _ready(branch, "branch"), _single(gain)
    if _on_gpu(x):
        scale = _single(scale)
        _core._cuda_dropout_norm(
            place(x.device), _shape(x, x.dtype, branch.dtype, stream.dtype), x.data_ptr(), branch.data_ptr(),
            _options(gain, scale, seed, factor, p, eps), (stream.data_ptr(), normed.data_ptr(), rates.data_ptr()),
        )  # fmt: skip
    else:
        _core._dropout_norm(
            _sizes(x), (x.data_ptr(), FLOATS[x.dtype]), (branch.data_ptr(), FLOATS[branch.dtype]), _address(gain),
            _numbers(scale, seed, factor, p, eps), (stream.data_ptr(), FLOATS[stream.dtype]), normed.data_ptr(),
            rates.data_ptr(),
        )  # fmt: skip
    return results


def _backward_fake(
    of_stream: Tensor, of_normed: Tensor, stream: Tensor, rates: Tensor, gain: Tensor | None, scale: Tensor | None,
    seed: Tensor | None, factor: float, p: float, x_dtype: torch.dtype, branch_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    _checked_backward(of_stream, of_normed, stream, rates, gain, scale, seed, p, x_dtype, branch_dtype)
    of_x, of_branch, of_gain = _empty_gradients(stream, gain, x_dtype, branch_dtype)
    return of_x, of_branch, of_gain if gain is None else of_gain.to(gain.dtype)


def _backward(
    of_stream: Tensor, of_normed: Tensor, stream: Tensor, rates: Tensor, gain: Tensor | None, scale: Tensor | None,
    seed: Tensor | None, factor: float, p: float, x_dtype: torch.dtype, branch_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    _checked_backward(of_stream, of_normed, stream, rates, gain, scale, seed, p, x_dtype, branch_dtype)
    of_x, of_branch, of_gain = _empty_gradients(stream, gain, x_dtype, branch_dtype)
    if stream.numel():
        stream, rates, wide = _ready(stream, "stream"), _ready(rates, "rates"), _single(gain)
        of_stream, of_normed = (_ready(part.to(stream.dtype), "a gradient") for part in (of_stream, of_normed))
        read = of_stream.data_ptr(), of_normed.data_ptr(), stream.data_ptr()
        if _on_gpu(stream):
            on, shape = place(stream.device), _shape(stream, x_dtype, branch_dtype, stream.dtype)
            count = 0 if gain is None else _core._cuda_dropout_norm_parts(on[0], shape)
            parts = of_gain.new_empty(count, stream.shape[-1])
            scale = _single(scale)
            _core._cuda_dropout_norm_backward(
                on, shape, (*read, rates.data_ptr()), _options(wide, scale, seed, factor, p, 0.0),
                (of_x.data_ptr(), of_branch.data_ptr(), 0 if gain is None else parts.data_ptr()),
            )  # fmt: skip
            if gain is not None:
                of_gain = parts.sum(0)
        else:
            _core._dropout_norm_backward(
                _sizes(stream), (*read, FLOATS[stream.dtype]), rates.data_ptr(), _address(wide),
                _numbers(scale, seed, factor, p, 0.0), (of_x.data_ptr(), FLOATS[x_dtype]),
                (of_branch.data_ptr(), FLOATS[branch_dtype]), of_gain.data_ptr(),
            )  # fmt: skip
    return of_x, of_branch, of_gain if gain is None else of_gain.to(gain.dtype)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, branch, gain, scale, seed, factor, p, _ = inputs
    stream, _, rates = output
    ctx.mark_non_differentiable(rates)
    ctx.save_for_backward(stream, rates, gain, scale, seed)
    ctx.numbers = (factor, p, x.dtype, branch.dtype)


def _gradients(ctx: Any, of_stream: Tensor, of_normed: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    stream, rates, gain, scale, seed = ctx.saved_tensors
    of_x, of_branch, of_gain = torch.ops.octavo_lab.residual_norm_backward(
        of_stream, of_normed, stream, rates, gain, scale, seed, *ctx.numbers
    )
    return of_x, of_branch, None if gain is None else of_gain, None, None, None, None, None


def _refuse_second_order(ctx: Any, *grads: Tensor) -> None:
    raise NotImplementedError("residual_norm has gradients of first order alone; plain_residual_norm has all")


for _name, _kernel, _fake in (
    ("residual_norm", _forward, _forward_fake),
    ("residual_norm_backward", _backward, _backward_fake),
):
    for _device in ("CPU", "CUDA"):
        _library.impl(_name, _kernel, _device)
    registry.register_fake(f"octavo_lab::{_name}", _fake, lib=_library)
registry.register_autograd("octavo_lab::residual_norm", _gradients, setup_context=_setup_context, lib=_library)
registry.register_autograd("octavo_lab::residual_norm_backward", _refuse_second_order, lib=_library)
