"""QuantEmbedding: a table whose rows are rounded."""

from __future__ import annotations

from typing import Any, Self

from torch import Tensor, nn
from torch.nn import functional

from octavo.nn.quant_layer import QuantLayer
from octavo.nn.quantizer import Quantizer
from octavo.recipe.spec import LayerPlan


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
        """Return a layer that shares the Parameter, hooks and mode of ``embedding``. Raises DTypeError, FormatError."""
        return cls._take_over(embedding, plan, what)

    @property
    def is_integer(self) -> bool:
        """False: nothing is multiplied."""
        return False

    def forward(self, input: Tensor) -> Tensor:
        """Return the rounded rows of the ids ``input``: ``[..., D]``."""
        ids = input
        options = (self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse)
        quantizer, table = self.weight_quantizer, self._own("weight")
        if quantizer is None or not quantizer.enabled:
            y = functional.embedding(ids, table, *options)
        elif quantizer.spans_tensor and not quantizer.is_static:
            y = functional.embedding(ids, quantizer(table), *options)
        else:
            y = _round_rows(quantizer, functional.embedding(ids, table, *options), ids, self.num_embeddings)
        return y if self.output_quantizer is None else self.output_quantizer(y)


def _round_rows(quantizer: Quantizer, rows: Tensor, ids: Tensor, table_rows: int) -> Tensor:
    if not quantizer.is_static:
        return quantizer(rows)
    scales, zeros, levels = quantizer.given()
    if quantizer.granularity != "tensor":
        # One row of scales for each row of the table, however learned scales are laid out.
        scales = scales.view(table_rows, -1)[ids]
        zeros = None if zeros is None else zeros[ids]
    return quantizer.round(rows, scales, zeros, levels)
