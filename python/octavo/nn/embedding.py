"""Embeddings: QuantEmbedding, whose rows are rounded, and PackedEmbedding, which decodes the rows it is asked for."""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

import octavo.ops.linear  # noqa: F401 registers the ops
from octavo.errors import ModelError
from octavo.nn.direct_weight_access import rounded_weights
from octavo.nn.packed_layer import PackedLayer
from octavo.nn.quant_layer import QuantLayer
from octavo.nn.quantizer import Quantizer
from octavo.nn.registry import LayerKind, register
from octavo.recipe.spec import LayerPlan, Spec
from octavo.tensors.formats import Format
from octavo.tensors.packed_tensor import PackedTensor


class QuantEmbedding(QuantLayer, nn.Embedding):
    """``nn.Embedding`` whose table ``[V, D]`` and output are rounded; groups and blocks run along D, inside a row.

    Only the rows that are asked for are rounded, unless all share a scale that is chosen each time. State-dict names
    are those of ``nn.Embedding``. Raises FormatError for a plan with an input or a bias.
    """

    replaces = nn.Embedding
    quant_roles = ("weight", "output")

    def __init__(self, *args: Any, plan: LayerPlan = LayerPlan(), what: str = "", **kwargs: Any) -> None:  # noqa: B008
        """Initialize as ``nn.Embedding`` does. ``what`` names the layer in errors."""
        super().__init__(*args, **kwargs)
        self._add_quantizers(plan, what or type(self).__name__)

    @classmethod
    def from_embedding(cls, embedding: nn.Embedding, plan: LayerPlan, what: str = "") -> Self:
        """Return a layer that shares the Parameter, hooks and mode of an embedding.

        Args:
            embedding: the float layer.
            plan: formats by role.
            what: names the layer in errors.

        Returns:
            The simulated layer.

        Raises:
            DTypeError: for another module.
            FormatError: for a plan with an input or a bias.
        """
        return cls.from_layer(embedding, plan, what)

    @property
    def is_integer(self) -> bool:
        """False: nothing is multiplied."""
        return False

    def forward(self, input: Tensor) -> Tensor:
        """Return rounded rows of the table.

        Args:
            input: ids, any shape.

        Returns:
            ``[*input.shape, D]``.
        """
        y = rounded_rows(self, input)
        return y if self.output_quantizer is None else self.output_quantizer(y)


def is_table(layer: nn.Module) -> bool:
    """Whether a layer is an embedding of floats."""
    return isinstance(layer, nn.Embedding)


def gather_cost(table: PackedTensor, batch: int) -> tuple[str, int]:
    """Return how ``batch`` rows of a packed table ``[V, D]`` are read, and their bytes."""
    rows = table.shape[0]
    return "gather", math.ceil(table.nbytes / max(rows, 1) * min(batch, rows))


def rounded_rows(layer: Any, ids: Tensor) -> Tensor:
    """Return the rounded rows ``[*ids.shape, D]`` of the table of a quantized embedding, or bag of embeddings."""
    options = (layer.padding_idx, layer.max_norm, layer.norm_type, layer.scale_grad_by_freq, layer.sparse)
    quantizer, table = layer.weight_quantizer, layer._own("weight")
    if quantizer is None or not quantizer.enabled:
        return functional.embedding(ids, table, *options)
    if quantizer.spans_tensor and not quantizer.is_static:
        return functional.embedding(ids, quantizer(table), *options)
    return _round_rows(quantizer, functional.embedding(ids, table, *options), ids, layer.num_embeddings)


def _round_rows(quantizer: Quantizer, rows: Tensor, ids: Tensor, table_rows: int) -> Tensor:
    if not quantizer.is_static:
        return quantizer(rows)
    scales, zeros, levels = quantizer.given()
    if quantizer.granularity != "tensor":
        # One row of scales for each row of the table, however learned scales are laid out.
        assert scales is not None  # it is static
        scales = scales.view(table_rows, -1)[ids]
        zeros = None if zeros is None else zeros[ids]
    return quantizer.round(rows, scales, zeros, levels)


class PackedEmbedding(PackedLayer):
    """``nn.Embedding`` over a packed table ``[V, D]``: integer ``ids`` of any shape to rows ``[..., D]``.

    Rows are bit for bit those of :class:`octavo.nn.QuantEmbedding`, in the logical dtype. Raises DTypeError for tensors
    on devices other than the CPU and CUDA, ShapeError for ids outside the table.
    """

    replaces = nn.Embedding
    _geometry = ("padding_idx",)
    # What nn.Embedding has, for code that looks rows up as its layer does.
    max_norm, norm_type, scale_grad_by_freq, sparse = None, 2.0, False, False

    def __init__(
        self, weight: PackedTensor, *, padding_idx: int | None = None, output_quantizer: Quantizer | None = None
    ) -> None:
        """Hold the table ``weight``."""
        super().__init__(weight, output_quantizer=output_quantizer)
        self.num_embeddings, self.embedding_dim = weight.shape
        self.padding_idx = padding_idx

    @classmethod
    def from_embedding(cls, embedding: nn.Embedding, format: Format | Spec | str | None = None, what: str = "") -> Self:
        """Return the packed form of an embedding.

        Args:
            embedding: a QuantEmbedding, or an ``nn.Embedding`` to be packed in ``format``.
            format: a Format, its text or a Spec.
            what: names the layer in errors.

        Returns:
            The packed layer.

        Raises:
            ModelError: for other layers, and where ``max_norm`` rewrites rows.
            NonFiniteError: for weights that are not finite.
            FormatError: as :func:`octavo.encode`.

        Example:
            >>> table = nn.Embedding(100, 64)
            >>> packed = octavo.nn.PackedEmbedding.from_embedding(table, "int8:g32")
            >>> packed(torch.tensor([[3, 7]])).shape, packed.weight.nbytes
            (torch.Size([1, 2, 64]), 6800)
        """
        return cls.from_layer(embedding, format, what)

    @classmethod
    def from_layer(cls, layer: nn.Module, format: Format | Spec | str | None = None, what: str = "") -> Self:
        """Return the layer of :meth:`from_embedding`.

        Args:
            layer: as there.
            format: as there.
            what: as there.

        Returns:
            The packed layer.

        Raises:
            ModelError: as there.
            NonFiniteError: as there.
            FormatError: as there.
        """
        if getattr(layer, "max_norm", None) is not None:
            raise ModelError(f"{what or 'Embedding'}: max_norm rewrites rows at each call; codes stay as they are")
        return super().from_layer(layer, format, what)

    def cost(self, batch: int) -> tuple[str, int]:
        """Return how ``batch`` rows are read, and their bytes.

        Args:
            batch: number of rows.

        Returns:
            The name, and bytes.
        """
        return gather_cost(self.packed_weight, batch)

    def forward(self, input: Tensor) -> Tensor:
        """Return rows of the table.

        Args:
            input: ids, int64 or int32, any shape.

        Returns:
            ``[*input.shape, D]``.

        Raises:
            RangeError: for an id outside the table.
            DTypeError: for another dtype or device.
        """
        self._check(input)
        y = torch.ops.octavo.packed_embedding.default(
            input, *self.parts, self._text, self._rows, self._width, self.dtype
        )
        return y if self.output_quantizer is None else self.output_quantizer(y)


def multiply_rows(table: nn.Module, x: Tensor) -> Tensor:
    """Return the products of ``x`` ``[..., D]`` with every row of a table ``[V, D]``: ``[..., V]``, without a bias.

    ``table``: an ``nn.Embedding``, quantized or packed; the rows are those that it looks up, codes stay packed.
    """
    if isinstance(table, PackedEmbedding):
        rows: Tensor = torch.ops.octavo.packed_linear.default(
            x, *table.parts, None, table._text, table._rows, table._width
        )
        return rows
    with rounded_weights():
        return functional.linear(x, table.weight)  # type: ignore[arg-type]


register(LayerKind(nn.Embedding, QuantEmbedding, PackedEmbedding, is_lookup=True))
