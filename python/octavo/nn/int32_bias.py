"""The integer path of quantized layers: a bias in accumulator steps, and values computed apart from gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from octavo.recipe.spec import Spec

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


def is_int32(spec: Spec) -> bool:
    """Whether a spec is ``int32``: whole multiples of the step of the products, which no codec writes."""
    return str(spec.format) == "int32"


class Int32Bias(nn.Module):
    """Rounds a bias to whole multiples of ``s_x * s_w[n]``, the steps of an integer layer's accumulators.

    Where a step is 0, a row of zeros in the weight, every bias becomes 0. Source: FORMATS.md section 3, int.
    """

    def __init__(self, spec: Spec, *, what: str = "bias") -> None:
        """Begin enabled."""
        super().__init__()
        self.spec, self.what, self.enabled = spec, what, True

    @staticmethod
    def integers(bias: Tensor, steps: Tensor) -> Tensor:
        """Return ``rne(bias / steps)``, saturated to int32.

        Args:
            bias: ``[N]``.
            steps: ``[N]``, steps of the accumulators.

        Returns:
            Whole numbers in float64, ``[N]``.
        """
        exact = bias.detach().double() / torch.where(steps > 0, steps, 1.0).double()
        whole = exact.round().clamp(INT32_MIN, INT32_MAX)
        return torch.where(steps > 0, whole, 0.0)

    def simulate(self, bias: Tensor, steps: Tensor) -> Tensor:
        """Return the bias rounded to its multiples of ``steps``; its gradient passes as it is.

        Args:
            bias: ``[N]``.
            steps: ``[N]``, steps of the accumulators.

        Returns:
            The rounded bias, ``[N]``.
        """
        if not self.enabled:
            return bias
        rounded = (self.integers(bias, steps) * steps.double()).to(bias.dtype)
        return Valued.apply(bias, rounded)

    def extra_repr(self) -> str:
        """Tell the spec.

        Returns:
            Words of ``repr``.
        """
        return str(self.spec)


class Valued(torch.autograd.Function):
    """The gradient of one tensor with the value of another."""

    @staticmethod
    def forward(ctx: Any, graded: Tensor, value: Tensor) -> Tensor:
        """Return ``value``."""
        ctx.dtype = graded.dtype
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Pass the gradient on to ``graded``."""
        return grad.to(ctx.dtype), None
