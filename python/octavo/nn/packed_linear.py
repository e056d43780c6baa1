"""PackedLinear: a linear layer that multiplies packed codes."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

import octavo.ops.linear  # noqa: F401 registers the ops
from octavo.formats import Format
from octavo.nn.linear import QuantTransposedLinear
from octavo.nn.packed_layer import PackedLayer
from octavo.nn.quantizer import Quantizer
from octavo.recipe.spec import Spec
from octavo.tensor import PackedTensor

# The plain forms have no gradient, and are called in half the time.
_PACKED, _PACKED_PLAIN = torch.ops.octavo.packed_linear.default, torch.ops.octavo.packed_linear_plain.default
_INTEGER, _INTEGER_PLAIN = torch.ops.octavo.integer_linear.default, torch.ops.octavo.integer_linear_plain.default


class PackedLinear(PackedLayer):
    """``nn.Linear`` over a packed weight ``[N, K]``: ``x`` ``[..., K]`` float32, float16 or bfloat16 to ``[..., N]``.

    Equal to :class:`octavo.nn.QuantLinear` in evaluation: bit for bit where :attr:`is_integer`, else up to the order in
    which products are summed. Gradients reach the input, never the codes. :func:`octavo.explain` tells the kernel that
    runs. Raises DTypeError for tensors on devices other than the CPU and CUDA. Source: FORMATS.md sections 3 and 5.
    """

    replaces = nn.Linear

    def __init__(
        self,
        weight: PackedTensor,
        bias: Tensor | None = None,
        *,
        input_quantizer: Quantizer | None = None,
        output_quantizer: Quantizer | None = None,
    ) -> None:
        """Hold ``weight``. ``bias``: ``[N]``, float, or int32 in steps of the accumulators of an integer layer."""
        super().__init__(weight, bias, input_quantizer=input_quantizer, output_quantizer=output_quantizer)
        self.out_features, self.in_features = weight.shape

    @classmethod
    def from_linear(cls, linear: nn.Linear, format: Format | Spec | str | None = None, what: str = "") -> Self:
        """Return the packed form of a layer.

        ``linear``: a QuantLinear or QuantTransposedLinear, whose formats and scales are kept, or an ``nn.Linear`` to
        be packed in ``format``. ``what`` names the layer in errors. Raises ModelError for other layers, NonFiniteError
        for weights that are not finite, and as :func:`octavo.encode`.
        """
        return cls._pack(linear, format, what)

    @classmethod
    def accepts(cls, layer: nn.Module) -> bool:
        """Whether this class is the packed form of ``layer``: also of transformers' Conv1D, quantized."""
        return isinstance(layer, nn.Linear | QuantTransposedLinear)

    def stand_for(self, layer: nn.Module, what: str) -> None:
        """Remember the path for errors, and how code that knew ``layer`` reads the weight."""
        super().stand_for(layer, what)
        self._transposed = QuantTransposedLinear._replaces(layer) or getattr(layer, "_transposed", False)

    @property
    def is_transposed(self) -> bool:
        """Whether the layer that it stands for holds its weight as ``[K, N]``."""
        return self._transposed

    def _factors(self, x: Quantizer) -> bool:
        return x.granularity == "tensor" or (x.granularity == "channel" and not x.is_static)

    def forward(self, input: Tensor) -> Tensor:
        """Return ``input W^T + bias``."""
        x = input
        if self._needs_check(x):
            self._check(x)
        # The registries, not the attributes: nn.Module looks those up ten times as slowly.
        held, quantizer = self._buffers, self.input_quantizer
        bias = self._parameters["bias"] if "bias" in self._parameters else held["bias"]
        graded = x.requires_grad and torch.is_grad_enabled()
        if quantizer is not None and quantizer.enabled:
            if self._integer:
                y = (_INTEGER if graded else _INTEGER_PLAIN)(
                    x, held["weight_codes"], held["weight_scales"], bias, quantizer.scales, self._text,
                    quantizer.format.text, self._rows, self._width,
                )  # fmt: skip
                return y if self.output_quantizer is None else self.output_quantizer(y)
            x = quantizer(x)
        y = (_PACKED if graded else _PACKED_PLAIN)(
            x, held["weight_codes"], held["weight_scales"], held["weight_zeros"], held["weight_levels"], bias,
            self._text, self._rows, self._width,
        )  # fmt: skip
        return y if self.output_quantizer is None else self.output_quantizer(y)
