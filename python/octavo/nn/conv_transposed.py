"""Transposed convolutions: QuantConvTranspose1d to 3d over rounded operands, and their packed forms over codes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from octavo.errors import KernelError, ModelError
from octavo.nn.packed_layer import DECODE, PackedLayer, is_strict
from octavo.nn.quant_layer import QuantLayer
from octavo.nn.quantizer import Quantizer
from octavo.nn.registry import LayerKind, register
from octavo.ops import linear
from octavo.recipe.spec import LayerPlan
from octavo.tensors.packed_tensor import PackedTensor
from octavo.tensors.tensor_parts import part_shapes

TURNED_KERNELS = ("PackedConvTranspose1d", "PackedConvTranspose2d", "PackedConvTranspose3d")
"""Names in files of the classes whose weight is :func:`matrix_of` that of the float layer."""


def matrix_of(weight: Tensor, groups: int) -> Tensor:
    """Return the weight ``[in, out / groups, *kernel]`` of a transposed convolution as ``[out, kernel * in / groups]``.

    A row has all weights of one output channel: those of one place of the kernel stand together, as the products of a
    kernel that does not overlap need them.
    """
    parts = weight.unflatten(0, (groups, -1))  # groups, in / groups, out / groups, *kernel
    return parts.movedim(1, -1).flatten(0, 1).flatten(1)


def weight_of(matrix: Tensor, groups: int, kernel_size: Sequence[int]) -> Tensor:
    """Return the weight ``[in, out / groups, *kernel]`` whose :func:`matrix_of` is ``matrix``."""
    parts = matrix.reshape(groups, len(matrix) // groups, *kernel_size, -1)
    return parts.movedim(-1, 1).flatten(0, 1)


class _QuantConvTranspose(QuantLayer):
    """What all share.

    The weight is rounded as ``[out, kernel * in / groups]``: rows, groups and blocks run along everything that a sum
    of products may run over, input channels innermost. Input and output are rounded along their channels.
    """

    kernel_size: tuple[int, ...]
    groups: int

    def __init__(self, *args: Any, plan: LayerPlan = LayerPlan(), **kwargs: Any) -> None:  # noqa: B008
        """Initialize as the float layer does."""
        super().__init__(*args, **kwargs)
        self._add_quantizers(plan, type(self).__name__)

    @property
    def is_integer(self) -> bool:
        """False: rounded values are multiplied, not codes."""
        return False

    def weight_matrix(self) -> Tensor:
        """Return the weight as it is rounded.

        Returns:
            ``[out, kernel * in / groups]``.
        """
        return matrix_of(self._own("weight"), self.groups)

    def _weight_of(self, matrix: Tensor) -> Tensor:
        return weight_of(matrix, self.groups, self.kernel_size)

    def _axis(self, role: str) -> int:
        return -1 if role in ("weight", "bias") else -1 - len(self.kernel_size)

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Return the float layer's output, of rounded operands.

        Args:
            input: ``[B, in, ...]`` or ``[in, ...]``.
            output_size: as the float layer takes it.

        Returns:
            ``[B, out, ...]`` or ``[out, ...]``.

        Raises:
            CalibrationError: where scales were to be calibrated and were not.
        """
        x = input if self.input_quantizer is None else self.input_quantizer(input)
        y = convolve_transposed(self, x, self._weight(), self._bias(), output_size)
        return y if self.output_quantizer is None else self.output_quantizer(y)


class QuantConvTranspose1d(_QuantConvTranspose, nn.ConvTranspose1d):
    """``nn.ConvTranspose1d`` over rounded operands: weight ``[in, out / groups, k]``, input ``[B, in, L]``.

    The weight is rounded as ``[out, k * in / groups]``, the input along its channels. State dict and errors are those
    of :class:`octavo.nn.QuantLinear`; there is no integer path.
    """

    replaces = nn.ConvTranspose1d


class QuantConvTranspose2d(_QuantConvTranspose, nn.ConvTranspose2d):
    """``nn.ConvTranspose2d`` over rounded operands: weight ``[in, out / groups, kh, kw]``, input ``[B, in, H, W]``.

    As :class:`octavo.nn.QuantConvTranspose1d`, with ``kh * kw`` for ``k``.
    """

    replaces = nn.ConvTranspose2d


class QuantConvTranspose3d(_QuantConvTranspose, nn.ConvTranspose3d):
    """``nn.ConvTranspose3d`` over rounded operands: weight ``[in, out / groups, kt, kh, kw]``.

    As :class:`octavo.nn.QuantConvTranspose1d`, with ``kt * kh * kw`` for ``k``.
    """

    replaces = nn.ConvTranspose3d


class _PackedConvTranspose(PackedLayer):
    """What all share: the weight is ``[out, kernel * in / groups]``.

    Where kernels do not overlap (stride equal to the kernel, no padding, one group) every input vector is multiplied by
    one matrix ``[out * kernel, in]``, with the kernels of :class:`octavo.nn.PackedLinear`, and the products are laid
    side by side. Otherwise each call decodes the weight and convolves with PyTorch, and raises KernelError under
    :func:`octavo.strict`.
    """

    _float: type[Any]
    _geometry = (
        "in_channels",
        "kernel_size",
        "stride",
        "padding",
        "output_padding",
        "dilation",
        "groups",
        "padding_mode",
    )
    kernel_size: tuple[int, ...]
    groups: int

    def __init__(
        self,
        weight: PackedTensor,
        bias: Tensor | None = None,
        *,
        in_channels: int,
        kernel_size: tuple[int, ...],
        stride: tuple[int, ...],
        padding: tuple[int, ...],
        output_padding: tuple[int, ...],
        dilation: tuple[int, ...],
        groups: int,
        padding_mode: str,
        input_quantizer: Quantizer | None = None,
        output_quantizer: Quantizer | None = None,
    ) -> None:
        """Hold ``weight``; the rest is what the layer replaced was made with."""
        super().__init__(weight, bias, input_quantizer=input_quantizer, output_quantizer=output_quantizer)
        # A float layer on no memory checks the arguments.
        shape = self._float(
            in_channels, weight.shape[0], tuple(kernel_size), tuple(stride), tuple(padding), tuple(output_padding),
            groups, False, tuple(dilation), padding_mode, device="meta",
        )  # fmt: skip
        for name in (*self._geometry, "out_channels"):
            setattr(self, name, getattr(shape, name))
        self._weight_shape = tuple(shape.weight.shape)
        expected = _matrix_shape(shape)
        if expected != tuple(weight.shape):
            raise ModelError(f"{type(self).__name__}: weight has shape {weight.shape}, expected {expected}")

    @classmethod
    def matrix_shape(cls, layer: nn.Module) -> tuple[int, int] | None:
        """Return the shape of the weight of a layer that this class stands in for.

        Args:
            layer: the layer.

        Returns:
            ``(out, kernel * in / groups)``; None for another layer.
        """
        return _matrix_shape(layer) if isinstance(layer, cls._float | cls) else None

    @classmethod
    def _matrix_of(cls, layer: nn.Module) -> Tensor:
        return matrix_of(cast("Tensor", layer.weight), cast("int", layer.groups))

    @classmethod
    def axis(cls, layer: nn.Module) -> int:
        """Return the axis of the input and output along which blocks run: the channels.

        Args:
            layer: the layer.

        Returns:
            The axis.
        """
        return -1 - len(cast("tuple[int, ...]", layer.kernel_size))

    def cost(self, batch: int) -> tuple[str, int]:
        """Return the kernel that multiplies ``batch`` input vectors, and the bytes of the weight that it moves.

        Args:
            batch: number of vectors.

        Returns:
            The name, and bytes.
        """
        if self._matrix_parts() is None:
            return super().cost(batch)
        rows, width = self._rows * math.prod(self.kernel_size), self._width // math.prod(self.kernel_size)
        kernel = linear.kernel(str(self.format), batch, rows, width, self.dtype, device=self.weight_codes.device)
        return super().cost(batch) if kernel == DECODE else (kernel, self.packed_weight.nbytes)

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Return the transposed convolution.

        Args:
            input: ``[B, in, ...]`` or ``[in, ...]``.
            output_size: as the float layer takes it.

        Returns:
            ``[B, out, ...]`` or ``[out, ...]``.

        Raises:
            KernelError: under :func:`octavo.strict`, where there is no kernel.
            DTypeError: for another dtype or device.
        """
        self._check(input)
        x = input if self.input_quantizer is None else self.input_quantizer(input)
        parts = None if output_size is not None else self._matrix_parts()
        if parts is not None:
            y = self._multiply(x, parts)
        elif is_strict():
            raise KernelError(
                f"{type(self).__name__}: there is no kernel for packed transposed convolutions whose kernels overlap; "
                "leave octavo.strict()"
            )
        else:
            y = convolve_transposed(self, x, self._decoded(x.dtype), self._held_bias(), output_size)
        return y if self.output_quantizer is None else self.output_quantizer(y)

    def _decoded(self, dtype: torch.dtype) -> Tensor:
        shape = (self._rows, self._width)
        matrix = torch.ops.octavo.decode.default(*self.parts, self._text, shape, -1, dtype)
        return weight_of(matrix, self.groups, self.kernel_size)

    def _matrix_parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        """The parts of the weight as a matrix ``[out * kernel, in]``; None where no one matrix multiplies the input."""
        geometry = cast("Any", self)
        plain = self.groups == 1 and geometry.stride == self.kernel_size and not any(geometry.padding)
        if not plain or any(geometry.output_padding) or set(geometry.dilation) != {1}:
            return None
        core, places = self.format.core, math.prod(self.kernel_size)
        width = self._width // places
        groups = -(-width // core.block) if core.block else 1
        whole_bytes = width * core.width % 8 == 0 and (not core.has_zeros or groups * core.width % 8 == 0)
        if not whole_bytes or (core.block and width % core.block) or (core.has_zeros and not core.block):
            return None
        codes, scales, zeros, levels = self.parts
        shapes = part_shapes(core, (self._rows * places, width), 1)
        if core.granularity == "channel" and not core.block and scales.numel():
            scales = scales.repeat_interleave(places, 0)
        return codes.view(shapes[0]), scales.view(shapes[1]), zeros.view(shapes[2]), levels

    def _multiply(self, x: Tensor, parts: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
        """Multiply input vectors by the matrix, and lay the products side by side."""
        sizes, places = self.kernel_size, math.prod(self.kernel_size)
        channels = -1 - len(sizes)
        rows = x.movedim(channels, -1).contiguous()
        y = torch.ops.octavo.packed_linear.default(
            rows, *parts, None, self._text, self._rows * places, self._width // places
        )
        y = y.unflatten(-1, (self._rows, *sizes))  # ..., *space, out, *kernel
        lead, flat = y.ndim - 1 - 2 * len(sizes), len(sizes)
        order = [*range(lead), lead + flat]
        for axis in range(flat):
            order += [lead + axis, lead + flat + 1 + axis]
        y = y.permute(order)
        for axis in range(flat):
            y = y.flatten(lead + 1 + axis, lead + 2 + axis)
        bias = self._held_bias()
        return y if bias is None else y + bias.view(-1, *[1] * flat)


class PackedConvTranspose1d(_PackedConvTranspose):
    """``nn.ConvTranspose1d`` over a packed weight ``[out, k * in / groups]``.

    Equal to :class:`octavo.nn.QuantConvTranspose1d` in evaluation, up to the order in which products are summed. A
    stride equal to the kernel, without padding, is a product over codes; otherwise each call decodes the weight.
    """

    replaces = _float = nn.ConvTranspose1d


class PackedConvTranspose2d(_PackedConvTranspose):
    """``nn.ConvTranspose2d`` over a packed weight ``[out, kh * kw * in / groups]``.

    As :class:`octavo.nn.PackedConvTranspose1d`.
    """

    replaces = _float = nn.ConvTranspose2d


class PackedConvTranspose3d(_PackedConvTranspose):
    """``nn.ConvTranspose3d`` over a packed weight ``[out, kt * kh * kw * in / groups]``.

    As :class:`octavo.nn.PackedConvTranspose1d`.
    """

    replaces = _float = nn.ConvTranspose3d


def _matrix_shape(layer: Any) -> tuple[int, int]:
    return layer.out_channels, math.prod(layer.kernel_size) * layer.in_channels // layer.groups


def convolve_transposed(
    layer: Any, x: Tensor, weight: Tensor, bias: Tensor | None, output_size: list[int] | None
) -> Tensor:
    """Return the transposed convolution as ``forward`` of the float layer computes it."""
    sizes = layer.stride, layer.padding, layer.kernel_size
    flat = len(layer.kernel_size)
    find = cast("Callable[..., list[int]]", nn.ConvTranspose1d._output_padding)
    padding = find(layer, x, output_size, *sizes, flat, layer.dilation)
    convolve = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)[flat - 1]
    y: Tensor = convolve(x, weight, bias, layer.stride, layer.padding, padding, layer.groups, layer.dilation)
    return y


register(LayerKind(nn.ConvTranspose1d, QuantConvTranspose1d, PackedConvTranspose1d, is_solved=False))
register(LayerKind(nn.ConvTranspose2d, QuantConvTranspose2d, PackedConvTranspose2d, is_solved=False))
register(LayerKind(nn.ConvTranspose3d, QuantConvTranspose3d, PackedConvTranspose3d, is_solved=False))
