"""Linear layers: QuantLinear over rounded operands, PackedLinear over codes, and Conv1D of transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from octavo import _core
from octavo.nn.packed_layer import BITMAP, DECODE, STARTS, PackedLayer, has_transposed_weight
from octavo.nn.quant_layer import QuantLayer
from octavo.nn.quantizer import Quantizer
from octavo.nn.registry import LayerKind, register
from octavo.ops import linear, sparse  # also registers the ops
from octavo.ops._direct import is_direct
from octavo.recipe.spec import LayerPlan, Spec
from octavo.tensors.formats import Format
from octavo.tensors.packed_tensor import PackedTensor
from octavo.tensors.sparse_codes import SparseCodes

# The plain forms have no gradient, and are called in half the time.
_PACKED, _PACKED_PLAIN = torch.ops.octavo.packed_linear.default, torch.ops.octavo.packed_linear_plain.default
_ROUNDED, _ROUNDED_PLAIN = torch.ops.octavo.rounded_linear.default, torch.ops.octavo.rounded_linear_plain.default
_INTEGER, _INTEGER_PLAIN = torch.ops.octavo.integer_linear.default, torch.ops.octavo.integer_linear_plain.default


class QuantLinear(QuantLayer, nn.Linear):  # type: ignore[misc] # weight and bias are properties here
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
        return cls.from_layer(linear, plan, what)

    @property
    def has_input_rows(self) -> bool:
        """True: the weight multiplies every vector along the last axis."""
        return True

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
        return cls.from_layer(layer, plan, what)

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

    has_input_rows = QuantLinear.has_input_rows
    input_rows = QuantLinear.input_rows
    _factors = QuantLinear._factors

    def _multiply(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.linear(x, weight.t(), bias)


class PackedLinear(PackedLayer):
    """``nn.Linear`` over a packed weight ``[N, K]``: ``x`` ``[..., K]`` float32, float16 or bfloat16 to ``[..., N]``.

    Equal to :class:`octavo.nn.QuantLinear` in evaluation: bit for bit where :attr:`is_integer`, else up to the order in
    which products are summed. Gradients reach the input, never the codes. :func:`octavo.explain` tells the kernel that
    runs. Raises DTypeError for tensors on devices other than the CPU and CUDA. Source: FORMATS.md sections 3 and 5.
    """

    replaces = nn.Linear
    _known: _core._KnownWeight | None = None

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
        return cls.from_layer(linear, format, what)

    @classmethod
    def accepts(cls, layer: nn.Module) -> bool:
        """Whether this class is the packed form of ``layer``: also of transformers' Conv1D, quantized."""
        return isinstance(layer, nn.Linear | QuantTransposedLinear)

    @property
    def is_transposed(self) -> bool:
        """Whether the layer that it stands for holds its weight as ``[K, N]``."""
        return self._transposed

    @classmethod
    def description(cls, layer: nn.Module) -> dict[str, object]:
        """Return what a file says, beside class and formats, of a packed layer or of one that this class packs."""
        return {**super().description(layer), "transposed": has_transposed_weight(layer)}

    def cost(self, batch: int) -> tuple[str, int]:
        """Return the kernel that multiplies ``batch`` rows, and the bytes of the weight that it moves."""
        quantizer = self.input_quantizer
        x = None if quantizer is None or not quantizer.enabled else str(quantizer.format)
        if self.is_sparse:
            given = str(self.format), batch, self._rows, self._width, self.dtype
            return sparse.kernel(*given, x, rounded=not self.is_integer), self.packed_weight.nbytes
        kernel = linear.kernel(
            str(self.format), batch, self._rows, self._width, self.dtype, input_format=x,
            device=self.weight_codes.device, rounded=not self.is_integer,
        )  # fmt: skip
        return super().cost(batch) if kernel == DECODE else (kernel, self.packed_weight.nbytes)

    def _factors(self, x: Quantizer) -> bool:
        return x.granularity == "tensor" or (x.granularity == "channel" and not x.is_static)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._known = None  # it would keep the memory that the layer leaves
        return super()._apply(fn, recurse)

    def forward(self, input: Tensor) -> Tensor:
        """Return ``input W^T + bias``."""
        quantizer = self.input_quantizer
        if quantizer is None or not quantizer.enabled:
            y = self._multiply(input)
        else:
            y = self._multiply_rounded(input, quantizer)
        return y if self.output_quantizer is None else self.output_quantizer(y)

    def _multiply(self, x: Tensor) -> Tensor:
        # The registries, not the attributes: nn.Module looks those up ten times as slowly.
        held = cast("dict[str, Tensor]", self._buffers)
        parts = held["weight_codes"], held["weight_scales"], held["weight_zeros"], held["weight_levels"]
        bias = self._parameters["bias"] if "bias" in self._parameters else held["bias"]
        if BITMAP in held:
            if self._needs_check(x):
                self._check(x)
            codes = SparseCodes(parts[0], held[BITMAP], held[STARTS])
            return sparse.multiply(x, codes, *parts[1:], bias, self._text, self._rows, self._width)
        if is_direct(x):
            read = (parts[0], parts[1], bias) if self._has_two_parts else (*parts, bias)
            known = self._known
            if known is None:
                known = self._known = linear.known_weight(read, parts, bias, self._text, self._rows, self._width)
            if known is not None:
                product = known.multiply(x, read)
                if product is not None:
                    return product
                if not known.is_still(read):
                    self._known = None  # the next call looks at them anew
        if self._needs_check(x):
            self._check(x)
        multiply = _PACKED if x.requires_grad and torch.is_grad_enabled() else _PACKED_PLAIN
        y: Tensor = multiply(x, *parts, bias, self._text, self._rows, self._width)
        return y

    def _multiply_rounded(self, x: Tensor, quantizer: Quantizer) -> Tensor:
        held = cast("dict[str, Tensor]", self._buffers)
        codes, scales, zeros, levels = (
            held["weight_codes"], held["weight_scales"], held["weight_zeros"], held["weight_levels"]
        )  # fmt: skip
        bias = self._parameters["bias"] if "bias" in self._parameters else held["bias"]
        given = quantizer.given()
        if BITMAP in held:
            return self._multiply_sparse_rounded(x, quantizer, bias)
        read = (codes, scales, bias, *given) if self._has_two_parts else (codes, scales, zeros, levels, bias, *given)
        if not (direct := is_direct(x, read)) and self._needs_check(x):
            self._check(x)
        graded = not direct and x.requires_grad and torch.is_grad_enabled()
        multiply: Callable[..., Tensor]
        text, sizes = quantizer.format.text, (self._text, self._rows, self._width)
        if self._integer:
            multiply = linear.integer_kernel if direct else _INTEGER if graded else _INTEGER_PLAIN
            return multiply(x, codes, scales, bias, given[0], self._text, text, self._rows, self._width)
        quantizer._check(x)
        multiply = linear.rounded_kernel if direct else _ROUNDED if graded else _ROUNDED_PLAIN
        return multiply(x, codes, scales, zeros, levels, bias, *given, *sizes, text, quantizer._rule)

    def _multiply_sparse_rounded(self, x: Tensor, quantizer: Quantizer, bias: Tensor | None) -> Tensor:
        """As for dense codes, of which a few megabytes are made at a time."""
        held = cast("dict[str, Tensor]", self._buffers)
        scales, zeros, levels = held["weight_scales"], held["weight_zeros"], held["weight_levels"]
        if self._needs_check(x):
            self._check(x)
        quantizer._check(x)
        given, text, columns = quantizer.given(), quantizer.format.text, self._width

        def multiply(codes: Tensor, scales: Tensor, bias: Tensor | None, rows: int) -> Tensor:
            made: Tensor
            if self._integer:
                made = _INTEGER(x, codes, scales, bias, given[0], self._text, text, rows, columns)
            else:
                sizes = self._text, rows, columns
                made = _ROUNDED(x, codes, scales, zeros, levels, bias, *given, *sizes, text, quantizer._rule)
            return made

        codes = cast("SparseCodes", self.sparse_codes)
        return sparse.in_pieces(codes, scales, bias, self._text, (self._rows, columns), multiply)


register(LayerKind(nn.Linear, QuantLinear, PackedLinear))
register(LayerKind("transformers.pytorch_utils.Conv1D", QuantTransposedLinear, PackedLinear, weight_axis=0))
