"""``quantize`` of plain CPU tensors: the forward pass tells what the gradient needs, and values are not kept for it.

Where no value saturates, gradients pass as they are. Else the forward pass marks, with one bit a value, which do.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from octavo import _core
from octavo.ops._checks import check_ste
from octavo.ops._direct import is_direct
from octavo.ops.codec_cpu import quantized, quantized_with_marks
from octavo.tensors.formats import core
from octavo.tensors.fresh import empty
from octavo.tensors.packed_tensor import FLOATS

_PLAIN = (Tensor, torch.nn.Parameter)


class Passed(Function):
    """The rounding, whose derivative is the identity but for values that are NaN. Those have none, in any format.

    The forward pass, which sees every value, tells whether there are some; only then is ``x`` kept.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, format: str, axis: int, rule: str, clipped: bool) -> Tensor:
        made, nan = quantized(x, format, axis, rule, look=clipped)
        ctx.options = (format, axis, rule)
        if nan:
            ctx.save_for_backward(x)
        return made

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        for x in ctx.saved_tensors:
            grad = torch.ops.octavo.quantize_backward(grad, x, *ctx.options)[0]
        return grad, None, None, None, None


class Marked(Function):
    """The rounding, whose derivative is 1 for the values that the forward pass has marked, and 0 for others."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, format: str, axis: int, rule: str,
        given: tuple[Tensor | None, Tensor | None, Tensor | None], marks: int,
    ) -> Tensor:  # fmt: skip
        made, bits = quantized_with_marks(x, format, axis, rule, given, marks)
        ctx.format = format
        ctx.save_for_backward(bits)
        return made

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        (bits,) = ctx.saved_tensors
        return _marked_only(grad, bits, ctx.format), None, None, None, None, None


def _marked_only(grad: Tensor, bits: Tensor, format: str) -> Tensor:
    """Gradients of marked values, 0 for others."""
    if is_direct(grad) and grad.is_contiguous() and grad.numel() == 8 * bits.numel():
        out = empty(grad.shape, grad.dtype)
        code, count = FLOATS[grad.dtype], grad.numel()
        _core._pass_marked(core(format), code, count, grad.data_ptr(), bits.data_ptr(), out.data_ptr())
        return out
    # Whoever watches, batches or differentiates it sees plain operations.
    places = torch.arange(8, dtype=torch.uint8)
    marked = bits[:, None].bitwise_right_shift(places).bitwise_and(1).bool()
    return torch.where(marked.view(grad.shape), grad, 0.0)


def passed(
    x: Tensor, format: str, axis: int, rule: str, scales: Tensor | None, zeros: Tensor | None, levels: Tensor | None,
    ste: str,
) -> Tensor | None:  # fmt: skip
    """``octavo::quantize`` with these derivatives; None where another one is needed.

    Tracers and modes of torch see the ops themselves, which cannot depend on values.
    """
    if type(x) not in _PLAIN or not x.is_cpu or x.layout is not torch.strided or torch._C._len_torch_dispatch_stack():
        return None
    given = scales is not None or zeros is not None or levels is not None
    fmt = core(format)
    if ste == "clipped" and fmt.saturates(rule, given):
        if scales is not None and scales.requires_grad:
            return None
        marks = fmt._marks(x.shape, axis)
        made: Tensor | None = Marked.apply(x, format, axis, rule, (scales, zeros, levels), marks) if marks else None
        return made
    if given:
        return None
    check_ste(ste)
    made = Passed.apply(x, format, axis, rule, ste == "clipped")
    return made
