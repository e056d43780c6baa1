"""Convolutions: QuantConv1d, QuantConv2d and QuantConv3d over rounded operands, and their packed forms over codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from octavo.errors import KernelError, ModelError
from octavo.nn.packed_layer import PackedLayer, is_strict
from octavo.nn.quant_layer import QuantLayer
from octavo.nn.quantizer import Quantizer
from octavo.nn.registry import LayerKind, register
from octavo.recipe.spec import LayerPlan, Spec
from octavo.tensors.formats import Format
from octavo.tensors.packed_tensor import PackedTensor

_PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]


class _QuantConv(QuantLayer):
    """What all share.

    The weight is rounded as ``[out, in / groups * kernel]``: rows, groups and blocks run along everything that a sum
    of products runs over, input channels first, then the kernel. Input and output are rounded along their channels.
    """

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    padding_mode: _PaddingMode
    _reversed_padding_repeated_twice: list[int]
    _conv_forward: Callable[[Tensor, Tensor, Tensor | None], Tensor]

    def __init__(self, *args: Any, plan: LayerPlan = LayerPlan(), what: str = "", **kwargs: Any) -> None:  # noqa: B008
        """Initialize as the float layer does. ``what`` names the layer in errors."""
        super().__init__(*args, **kwargs)
        self._add_quantizers(plan, what or type(self).__name__)

    @classmethod
    def from_conv(cls, conv: nn.Module, plan: LayerPlan, what: str = "") -> Self:
        """Return a layer that shares the Parameters, hooks and mode of ``conv``. Raises DTypeError, FormatError."""
        return cls.from_layer(conv, plan, what)

    @property
    def has_input_rows(self) -> bool:
        """Whether one matrix multiplies every patch: with groups there are several."""
        return self.groups == 1 and (len(self.kernel_size) < 3 or set(self.dilation) == {1})

    def input_rows(self, x: Tensor) -> Tensor:
        """The patches ``[n, in * kernel]`` that the weight matrix multiplies. Raises FormatError for groups."""
        if not self.has_input_rows:
            return super().input_rows(x)
        flat = len(self.kernel_size) == 1
        if x.ndim == len(self.kernel_size) + 1:
            x = x[None]
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        x = functional.pad(x, self._reversed_padding_repeated_twice, mode)
        if len(self.kernel_size) == 3:
            for axis, (size, step) in enumerate(zip(self.kernel_size, self.stride, strict=True), start=2):
                x = x.unfold(axis, size, step)
            return x.movedim(1, 4).flatten(4).flatten(0, 3)
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


class QuantConv3d(_QuantConv, nn.Conv3d):
    """``nn.Conv3d`` over rounded operands: weight ``[out, in / groups, kt, kh, kw]``, input ``[B, in, T, H, W]``.

    The weight's rows, groups and blocks run along ``in / groups * kt * kh * kw``, those of the input along its
    channels. Arithmetic, state dict and errors are those of :class:`octavo.nn.QuantLinear`; the integer path takes an
    input with one scale.
    """

    replaces = nn.Conv3d


class _PackedConv(PackedLayer):
    """What all share: the weight is ``[out, in / groups * kernel]``, and there is no kernel for packed codes.

    Each call decodes the weight and convolves with PyTorch: memory is saved, time is not. Under
    :func:`octavo.strict` the call raises KernelError.
    """

    _float: type[Any]
    _geometry = ("in_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")
    kernel_size: tuple[int, ...]

    def __init__(
        self,
        weight: PackedTensor,
        bias: Tensor | None = None,
        *,
        in_channels: int,
        kernel_size: tuple[int, ...],
        stride: tuple[int, ...],
        padding: tuple[int, ...] | str,
        dilation: tuple[int, ...],
        groups: int,
        padding_mode: str,
        input_quantizer: Quantizer | None = None,
        output_quantizer: Quantizer | None = None,
    ) -> None:
        """Hold ``weight``; the rest is what the layer replaced was made with."""
        super().__init__(weight, bias, input_quantizer=input_quantizer, output_quantizer=output_quantizer)
        # A float layer on no memory checks the arguments and works out the padding.
        shape = self._float(
            in_channels, weight.shape[0], tuple(kernel_size), tuple(stride), _sizes(padding), tuple(dilation), groups,
            bias=False, padding_mode=padding_mode, device="meta",
        )  # fmt: skip
        for name in (*self._geometry, "out_channels", "_reversed_padding_repeated_twice"):
            setattr(self, name, getattr(shape, name))
        self._weight_shape = tuple(shape.weight.shape)
        if shape.weight[0].numel() != weight.shape[1]:
            expected = tuple(shape.weight.flatten(1).shape)
            raise ModelError(f"{type(self).__name__}: weight has shape {weight.shape}, expected {expected}")

    @classmethod
    def from_conv(cls, conv: nn.Module, format: Format | Spec | str | None = None, what: str = "") -> Self:
        """Return the packed form of a quantized convolution, or of a float one in ``format``.

        ``what`` names the layer in errors. Raises as :meth:`octavo.nn.PackedLinear.from_linear`.
        """
        return cls.from_layer(conv, format, what)

    @classmethod
    def axis(cls, layer: nn.Module) -> int:
        """Axis of the input and output along which blocks run: the channels."""
        return -1 - len(cast("tuple[int, ...]", layer.kernel_size))

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of ``input``, ``[B, in, ...]`` or ``[in, ...]``."""
        self._check(input)
        if is_strict():
            raise KernelError(
                f"{type(self).__name__}: there is no kernel for packed convolutions; leave octavo.strict()"
            )
        bias = self._held_bias()
        if self.input_quantizer is None:
            y = self._multiply(input, self._decoded(input.dtype), bias)
        elif self.is_integer:
            y = self._integer_forward(input, bias)
        else:
            y = self._multiply(self.input_quantizer(input), self._decoded(input.dtype), bias)
        return y if self.output_quantizer is None else self.output_quantizer(y)

    def _integer_forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """As :class:`octavo.nn.QuantConv2d` does, bit for bit: exact sums in float64, then the steps."""
        x_codes, x_scales = cast("Quantizer", self.input_quantizer).integers(x.float())
        scales = self.weight_scales
        # A code is the only whole number near value / scale.
        codes = (self._decoded(torch.float32).flatten(1).double() / torch.where(scales > 0, scales, 1.0)).round()
        sums = self._multiply(x_codes, codes.view(self._weight_shape), None)
        steps = self._along_channels(x_scales * scales.flatten())
        if bias is not None and not bias.is_floating_point():
            return ((sums + self._along_channels(bias)).float() * steps).to(x.dtype)
        y = sums.float() * steps
        return (y if bias is None else y + self._along_channels(bias.float())).to(x.dtype)

    def _multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self._float._conv_forward(self, x, weight, bias)

    def _along_channels(self, values: Tensor) -> Tensor:
        return values.view(-1, *[1] * len(self.kernel_size))


class PackedConv1d(_PackedConv):
    """``nn.Conv1d`` over a packed weight ``[out, in / groups * k]``; each call decodes it.

    Equal to :class:`octavo.nn.QuantConv1d` in evaluation, bit for bit where both are integer.
    """

    replaces = _float = nn.Conv1d


class PackedConv2d(_PackedConv):
    """``nn.Conv2d`` over a packed weight ``[out, in / groups * kh * kw]``; each call decodes it.

    Equal to :class:`octavo.nn.QuantConv2d` in evaluation, bit for bit where both are integer.
    """

    replaces = _float = nn.Conv2d


class PackedConv3d(_PackedConv):
    """``nn.Conv3d`` over a packed weight ``[out, in / groups * kt * kh * kw]``; each call decodes it.

    Equal to :class:`octavo.nn.QuantConv3d` in evaluation, bit for bit where both are integer.
    """

    replaces = _float = nn.Conv3d


def _sizes(padding: tuple[int, ...] | str) -> tuple[int, ...] | str:
    return padding if isinstance(padding, str) else tuple(padding)


register(LayerKind(nn.Conv1d, QuantConv1d, PackedConv1d))
register(LayerKind(nn.Conv2d, QuantConv2d, PackedConv2d))
register(LayerKind(nn.Conv3d, QuantConv3d, PackedConv3d))
