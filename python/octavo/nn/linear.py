"""QuantLinear and QuantTransposedLinear: linear layers over rounded operands."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from octavo.nn.quant_layer import QuantLayer
from octavo.nn.quantizer import Quantizer
from octavo.recipe.spec import LayerPlan


class QuantLinear(QuantLayer, nn.Linear):
    """``nn.Linear`` whose weight ``[N, K]``, input ``[..., K]``, output and bias are rounded as ``plan`` says.

    Rows, groups and blocks of weight and input run along K, the contraction. In training values are rounded and
    gradients pass straight through. In evaluation, where weight and input are ``intW`` of 2 to 8 bits
    (:attr:`is_integer`), it computes what an integer kernel does, bit for bit: with ``acc`` the exact sum of products
    of codes, ``y = fl32(acc) * (s_x * s_w[n]) + bias``, or ``fl32(acc + bias_int32) * (s_x * s_w[n])``.

    State-dict names are those of ``nn.Linear``, and its state dict loads. Raises FormatError for a plan that does not
    fit. Source: FORMATS.md sections 2 to 4.
    """

    replaces = nn.Linear

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        plan: LayerPlan = LayerPlan(),  # noqa: B008 frozen
        what: str = "QuantLinear",
    ) -> None:
        """Initialize the parameters as ``nn.Linear`` does. ``what`` names the layer in errors."""
        super().__init__(in_features, out_features, bias, device, dtype)
        self._add_quantizers(plan, what)

    @classmethod
    def from_linear(cls, linear: nn.Linear, plan: LayerPlan, what: str = "") -> Self:
        """Return a layer that shares the Parameters, hooks and mode of ``linear``. Raises DTypeError, FormatError."""
        return cls._take_over(linear, plan, what)

    def input_rows(self, x: Tensor) -> Tensor:
        """The vectors ``[n, K]`` that the weight matrix multiplies."""
        return x.flatten(0, -2) if x.ndim > 1 else x[None]

    def _factors(self, x: Quantizer) -> bool:
        return x.granularity == "tensor" or (x.granularity == "channel" and not x.is_static)

    def _multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.linear(x, weight, bias)


class QuantTransposedLinear(QuantLayer):
    """Conv1D of transformers over rounded operands: a linear layer whose weight is stored ``[K, N]``.

    Everything else is as in :class:`QuantLinear`: the weight is rounded as ``[N, K]``, along its contraction.
    """

    replaces = nn.Module  # known by name: transformers is not loaded for it

    @classmethod
    def from_conv1d(cls, layer: nn.Module, plan: LayerPlan, what: str = "") -> Self:
        """Return a layer that shares the Parameters, hooks and mode of ``layer``. Raises DTypeError, FormatError."""
        return cls._take_over(layer, plan, what)

    @classmethod
    def _accepted(cls) -> str:
        return "Conv1D of transformers"

    @classmethod
    def _replaces(cls, module: nn.Module) -> bool:
        kind = type(module)
        return kind is cls or (kind.__name__, kind.__module__) == ("Conv1D", "transformers.pytorch_utils")

    def weight_matrix(self) -> Tensor:
        """The weight as it is rounded: ``[N, K]``, K being the contraction."""
        return self._own("weight").t()

    def _weight_of(self, matrix: Tensor) -> Tensor:
        return matrix.t()

    input_rows = QuantLinear.input_rows
    _factors = QuantLinear._factors

    def _multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.linear(x, weight.t(), bias)
