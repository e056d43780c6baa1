"""QuantConv1d and QuantConv2d: convolutions over rounded operands."""

from __future__ import annotations

from typing import Any, Self

from torch import Tensor, nn
from torch.nn import functional

from octavo.nn.quant_layer import QuantLayer
from octavo.recipe.spec import LayerPlan


class _QuantConv(QuantLayer):
    """What both share.

    The weight is rounded as ``[out, in / groups * kernel]``: rows, groups and blocks run along everything that a sum
    of products runs over, input channels first, then the kernel. Input and output are rounded along their channels.
    """

    def __init__(self, *args: Any, plan: LayerPlan = LayerPlan(), what: str = "", **kwargs: Any) -> None:  # noqa: B008
        """Initialize as the float layer does. ``what`` names the layer in errors."""
        super().__init__(*args, **kwargs)
        self._add_quantizers(plan, what or type(self).__name__)

    @classmethod
    def from_conv(cls, conv: nn.Module, plan: LayerPlan, what: str = "") -> Self:
        """Return a layer that shares the Parameters, hooks and mode of ``conv``. Raises DTypeError, FormatError."""
        return cls._take_over(conv, plan, what)

    def input_rows(self, x: Tensor) -> Tensor:
        """The patches ``[n, in * kernel]`` that the weight matrix multiplies. Raises FormatError for groups."""
        if self.groups > 1:
            return super().input_rows(x)
        flat = len(self.kernel_size) == 1
        if x.ndim == len(self.kernel_size) + 1:
            x = x[None]
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        x = functional.pad(x, self._reversed_padding_repeated_twice, mode)
        sizes = (self.kernel_size, self.dilation, self.stride)
        kernel, dilation, stride = ((1, *size) if flat else size for size in sizes)
        patches = functional.unfold(x[:, :, None] if flat else x, kernel, dilation, stride=stride)
        return patches.transpose(1, 2).flatten(0, 1)

    def _axis(self, role: str) -> int:
        return -1 if role in ("weight", "bias") else -1 - len(self.kernel_size)

    def _multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self._conv_forward(x, weight, bias)

    def _along_channels(self, values: Tensor) -> Tensor:
        return values.view(-1, *[1] * len(self.kernel_size))


class QuantConv1d(_QuantConv, nn.Conv1d):
    """``nn.Conv1d`` over rounded operands: weight ``[out, in / groups, k]``, input ``[B, in, L]`` or ``[in, L]``.

    The weight's rows, groups and blocks run along ``in / groups * k``, those of the input along its channels.
    Arithmetic, state dict and errors are those of :class:`octavo.nn.QuantLinear`; the integer path takes an input
    with one scale.
    """

    replaces = nn.Conv1d


class QuantConv2d(_QuantConv, nn.Conv2d):
    """``nn.Conv2d`` over rounded operands: weight ``[out, in / groups, kh, kw]``, input ``[B, in, H, W]``.

    The weight's rows, groups and blocks run along ``in / groups * kh * kw``, those of the input along its channels.
    Arithmetic, state dict and errors are those of :class:`octavo.nn.QuantLinear`; the integer path takes an input
    with one scale.
    """

    replaces = nn.Conv2d
