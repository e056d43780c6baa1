"""Bags of embeddings: QuantEmbeddingBag, whose rows are rounded, and PackedEmbeddingBag, which decodes rows it sums."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from octavo.errors import ModelError
from octavo.nn.embedding import gather_cost, rounded_rows
from octavo.nn.packed_layer import PackedLayer
from octavo.nn.quant_layer import QuantLayer
from octavo.nn.quantizer import Quantizer
from octavo.nn.registry import LayerKind, register
from octavo.recipe.spec import LayerPlan
from octavo.tensors.packed_tensor import PackedTensor


class QuantEmbeddingBag(QuantLayer, nn.EmbeddingBag):
    """``nn.EmbeddingBag`` whose table ``[V, D]`` and output are rounded; groups and blocks run along D, inside a row.

    The rows that are asked for are rounded and then summed, averaged or compared as the float layer does. State-dict
    names are those of ``nn.EmbeddingBag``. Raises FormatError for a plan with an input or a bias.
    """

    replaces = nn.EmbeddingBag
    quant_roles = ("weight", "output")

    def __init__(self, *args: Any, plan: LayerPlan = LayerPlan(), **kwargs: Any) -> None:  # noqa: B008
        """Initialize as ``nn.EmbeddingBag`` does."""
        super().__init__(*args, **kwargs)
        self._add_quantizers(plan, type(self).__name__)

    @property
    def is_integer(self) -> bool:
        """False: nothing is multiplied."""
        return False

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """Return sums, means or maxima of rounded rows.

        Args:
            input: ids, ``[n]`` with ``offsets``, or ``[B, n]``.
            offsets: where each bag starts, ``[B]``.
            per_sample_weights: a factor for each id, in mode ``sum``.

        Returns:
            ``[B, D]``.
        """
        quantizer = self.weight_quantizer
        if quantizer is None or not quantizer.enabled:
            y = functional.embedding_bag(
                input, self._own("weight"), offsets, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.mode,
                self.sparse, per_sample_weights, self.include_last_offset, self.padding_idx,
            )  # fmt: skip
        else:
            rows = rounded_rows(self, input.reshape(-1))
            y = _bags(self, rows, input, offsets, per_sample_weights)
        return y if self.output_quantizer is None else self.output_quantizer(y)


class PackedEmbeddingBag(PackedLayer):
    """``nn.EmbeddingBag`` over a packed table ``[V, D]``: the rows that are asked for are decoded, then summed.

    Equal to :class:`octavo.nn.QuantEmbeddingBag` in evaluation, bit for bit. Raises DTypeError for tensors on devices
    other than the CPU and CUDA, RangeError for ids outside the table.
    """

    replaces = nn.EmbeddingBag
    _geometry = ("mode", "padding_idx", "include_last_offset")

    def __init__(
        self,
        weight: PackedTensor,
        *,
        mode: str,
        padding_idx: int | None = None,
        include_last_offset: bool = False,
        output_quantizer: Quantizer | None = None,
    ) -> None:
        """Hold the table ``weight``; the rest is what the layer replaced was made with."""
        super().__init__(weight, output_quantizer=output_quantizer)
        self.num_embeddings, self.embedding_dim = weight.shape
        self.mode, self.padding_idx, self.include_last_offset = mode, padding_idx, include_last_offset

    @classmethod
    def accepts(cls, layer: nn.Module) -> bool:
        """Tell whether this class is the packed form of a layer. Raises ModelError where ``max_norm`` rewrites rows.

        Args:
            layer: the layer.

        Returns:
            True or False.
        """
        if isinstance(layer, nn.EmbeddingBag) and layer.max_norm is not None:
            raise ModelError("max_norm rewrites rows at each call; codes stay as they are")
        return super().accepts(layer)

    def cost(self, batch: int) -> tuple[str, int]:
        """Return how ``batch`` rows are read, and their bytes.

        Args:
            batch: number of rows.

        Returns:
            The name, and bytes.
        """
        return gather_cost(self.packed_weight, batch)

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """Return sums, means or maxima of rows.

        Args:
            input: ids, int64 or int32, ``[n]`` with ``offsets``, or ``[B, n]``.
            offsets: where each bag starts, ``[B]``.
            per_sample_weights: a factor for each id, in mode ``sum``.

        Returns:
            ``[B, D]``.

        Raises:
            RangeError: for an id outside the table.
            DTypeError: for another dtype or device.
        """
        self._check(input)
        rows = torch.ops.octavo.packed_embedding.default(
            input.reshape(-1), *self.parts, self._text, self._rows, self._width, self.dtype
        )
        y = _bags(self, rows, input, offsets, per_sample_weights)
        return y if self.output_quantizer is None else self.output_quantizer(y)


def _bags(layer: Any, rows: Tensor, ids: Tensor, offsets: Tensor | None, factors: Tensor | None) -> Tensor:
    """Return the bags of ``rows`` ``[n, D]``, one row for each id: torch sums them in the order of the ids."""
    places = torch.arange(len(rows), device=ids.device, dtype=ids.dtype)
    padding = layer.padding_idx
    if padding is not None:  # all padded places mean one more row, which counts in no bag
        rows = torch.cat([rows, rows.new_zeros(1, rows.shape[1])])
        padding = len(rows) - 1
        places = places.where(ids.reshape(-1) != layer.padding_idx, padding)
    return functional.embedding_bag(
        places.view(ids.shape), rows, offsets, mode=layer.mode, per_sample_weights=factors,
        include_last_offset=layer.include_last_offset, padding_idx=padding,
    )  # fmt: skip


register(LayerKind(nn.EmbeddingBag, QuantEmbeddingBag, PackedEmbeddingBag, is_lookup=True, is_solved=False))
