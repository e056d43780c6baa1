"""``quantize`` of plain CPU tensors where no value saturates: gradients pass as they are; nothing is kept for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from octavo.formats import core
from octavo.ops._checks import check_ste
from octavo.ops.codec_cpu import quantized

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


def passed(
    x: Tensor, format: str, axis: int, rule: str, scales: Tensor | None, zeros: Tensor | None, levels: Tensor | None,
    ste: str,
) -> Tensor | None:  # fmt: skip
    """``octavo::quantize`` with this derivative; None where another one is needed.

    Tracers and modes of torch see the ops themselves, which cannot depend on values.
    """
    if type(x) not in _PLAIN or not x.is_cpu or x.layout is not torch.strided:
        return None
    if scales is not None or zeros is not None or levels is not None or torch._C._len_torch_dispatch_stack():
        return None
    if ste == "clipped":
        if core(format).saturates(rule, False):
            return None
    else:
        check_ste(ste)
    made: Tensor = Passed.apply(x, format, axis, rule, ste == "clipped")
    return made
