"""Linear layers: QuantLinear over rounded operands, PackedLinear over codes, and Conv1D of transformers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
from octavo.ops._direct import is_direct, is_plain
from octavo.ops.known_weight import known_weight
from octavo.recipe.spec import LayerPlan, Spec
from octavo.tensors.formats import Format
from octavo.tensors.packed_tensor import PackedTensor
from octavo.tensors.sparse_codes import SparseCodes

_OTHERS = ("weight_scales", "weight_zeros", "weight_levels")  # parts that a format may lack
_NO_SCALES: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None)


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
        """Return a layer that shares the Parameters, hooks and mode of a linear layer.

        Args:
            linear: the float layer.
            plan: formats by role.
            what: names the layer in errors.

        Returns:
            The simulated layer.

        Raises:
            DTypeError: for another module.
            FormatError: for a format that the layer cannot hold.

        Example:
            >>> from octavo.recipe.spec import LayerPlan, Spec
            >>> mxint4 = LayerPlan(weight=Spec(octavo.Format("mxint4")))
            >>> linear = nn.Linear(64, 8, bias=False)
            >>> layer, x = octavo.nn.QuantLinear.from_linear(linear, mxint4), torch.randn(2, 64)
            >>> torch.allclose(layer(x), x @ octavo.quantize(linear.weight, "mxint4").T, atol=1e-6)
            True
        """
        return cls.from_layer(linear, plan, what)

    @property
    def has_input_rows(self) -> bool:
        """True: the weight multiplies every vector along the last axis."""
        return True

    def input_rows(self, x: Tensor) -> Tensor:
        """Return the vectors that the weight matrix multiplies.

        Args:
            x: ``[..., K]``.

        Returns:
            ``[n, K]``.
        """
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
        """Return a layer that shares the Parameters, hooks and mode of a Conv1D of transformers.

        Args:
            layer: the float layer.
            plan: formats by role.
            what: names the layer in errors.

        Returns:
            The simulated layer.

        Raises:
            DTypeError: for another module.
            FormatError: for a format that the layer cannot hold.
        """
        return cls.from_layer(layer, plan, what)

    @classmethod
    def _accepted(cls) -> str:
        return "Conv1D of transformers"

    @classmethod
    def _replaces(cls, module: nn.Module) -> bool:
        kind = type(module)
        return kind is cls or (kind.__name__, kind.__module__) == ("Conv1D", "transformers.pytorch_utils")

    def weight_matrix(self) -> Tensor:
        """Return the weight as it is rounded.

        Returns:
            ``[N, K]``, K being the contraction.
        """
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
        """Return the packed form of a linear layer.

        Args:
            linear: a QuantLinear or QuantTransposedLinear, whose formats and scales are kept, or an ``nn.Linear`` to be
                packed in ``format``.
            format: a Format, its text or a Spec.
            what: names the layer in errors.

        Returns:
            The packed layer.

        Raises:
            ModelError: for other layers.
            NonFiniteError: for weights that are not finite.
            FormatError: as :func:`octavo.encode`.

        Example:
            >>> layer = octavo.nn.PackedLinear.from_linear(nn.Linear(64, 8), "mxfp4")
            >>> layer.weight
            PackedTensor('mxfp4', shape=(8, 64), dtype=float32, axis=1, nbytes=272, bits_per_element=4.25)
        """
        return cls.from_layer(linear, format, what)

    @classmethod
    def accepts(cls, layer: nn.Module) -> bool:
        """Tell whether this class is the packed form of a layer, also of transformers' Conv1D, quantized.

        Args:
            layer: the layer.

        Returns:
            True or False.
        """
        return isinstance(layer, nn.Linear | QuantTransposedLinear)

    @property
    def is_transposed(self) -> bool:
        """Whether the layer that it stands for holds its weight as ``[K, N]``."""
        return self._transposed

    @classmethod
    def description(cls, layer: nn.Module) -> dict[str, object]:
        """Return what a file says, beside class and formats, of a packed layer or of one that this class packs.

        Args:
            layer: the layer.

        Returns:
            Plain values by name.
        """
        return {**super().description(layer), "transposed": has_transposed_weight(layer)}

    def cost(self, batch: int) -> tuple[str, int]:
        """Return the kernel that multiplies ``batch`` rows, and the bytes of the weight that it moves.

        Args:
            batch: number of rows.

        Returns:
            The name, and bytes.
        """
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
        """Return ``input W^T + bias``.

        Args:
            input: ``[..., K]``, float32, float16 or bfloat16.

        Returns:
            ``[..., N]`` in the dtype of ``input``.

        Raises:
            ShapeError: where sizes do not fit.
            DTypeError: for another dtype or device.
        """
        quantizer = self.input_quantizer
        if quantizer is not None and not quantizer.enabled:
            quantizer = None
        # The registries, not the attributes: nn.Module looks those up ten times as slowly.
        held = cast("dict[str, Tensor]", self._buffers)
        bias = self._parameters["bias"] if "bias" in self._parameters else held["bias"]
        y = self._multiply_known(input, bias, quantizer) if is_direct(input) and BITMAP not in held else None
        if y is None:
            self._check(input)
            if quantizer is not None:
                quantizer._check(input)
            if BITMAP in held:
                y = self._multiply_sparse(input, bias, quantizer)
            else:
                y = self._multiply(
                    input, quantizer, held["weight_codes"], self._part("weight_scales"), bias, self._rows
                )
        return y if self.output_quantizer is None else self.output_quantizer(y)

    def _multiply_known(self, x: Tensor, bias: Tensor | None, quantizer: Quantizer | None) -> Tensor | None:
        """Multiply past torch's dispatcher; None where the operands have changed, or need a closer look."""
        if bias is not None and bias.requires_grad and torch.is_grad_enabled():
            return None
        held = cast("dict[str, Tensor]", self._buffers)
        codes = held["weight_codes"]
        if self._has_two_parts and "weight_scales" in held:
            read: tuple[Tensor | None, ...] = (codes, held["weight_scales"], bias)
        else:
            read = (codes, *[held[name] for name in _OTHERS if name in held], bias)
        rounding, input_scales = None, _NO_SCALES
        if quantizer is not None:
            rounding = quantizer._text, None if self._integer else quantizer._rule
            input_scales = quantizer.given()
            read = (*read, *input_scales)
        known = self._known
        if known is None or known.rounding != rounding:
            if not is_plain((codes,)):
                return None
            if quantizer is not None:
                quantizer._check(x)
            sizes = self._text, self._rows, self._width
            known = self._known = known_weight(*sizes, self.parts, bias, rounding, input_scales, read)
            if known is None:
                return None
        y = known.multiply(x, read)
        if y is None and not known.is_still(read):
            self._known = None  # the next call looks at them anew
        return y

    def _multiply(
        self, x: Tensor, quantizer: Quantizer | None, codes: Tensor, scales: Tensor, bias: Tensor | None, rows: int
    ) -> Tensor:
        """Multiply with ``rows`` rows of the weight by the operator."""
        weight = codes, scales, self._part("weight_zeros"), self._part("weight_levels")
        sizes = self._text, rows, self._width
        if quantizer is None:
            return linear.PACKED.for_operands(x, bias)(x, *weight, bias, *sizes)
        input_scales, text = quantizer.given(), quantizer._text
        if self._integer:
            multiply = linear.INTEGER.for_operands(x, bias)
            return multiply(x, codes, scales, bias, input_scales[0], self._text, text, rows, self._width)
        multiply = linear.ROUNDED.for_operands(x, bias)
        return multiply(x, *weight, bias, *input_scales, *sizes, text, quantizer._rule)

    def _multiply_sparse(self, x: Tensor, bias: Tensor | None, quantizer: Quantizer | None) -> Tensor:
        """Multiply with sparse codes; for rounded inputs a few megabytes of dense ones are made at a time."""
        held = cast("dict[str, Tensor]", self._buffers)
        parts = self._part("weight_scales"), self._part("weight_zeros"), self._part("weight_levels")
        codes = SparseCodes(held["weight_codes"], held[BITMAP], held[STARTS])
        if quantizer is None:
            return sparse.multiply(x, codes, *parts, bias, self._text, self._rows, self._width)
        multiply = partial(self._multiply, x, quantizer)
        return sparse.in_pieces(codes, parts[0], bias, self._text, (self._rows, self._width), multiply)


register(LayerKind(nn.Linear, QuantLinear, PackedLinear))
register(LayerKind("transformers.pytorch_utils.Conv1D", QuantTransposedLinear, PackedLinear, weight_axis=0))
