"""PackedEmbedding: a table whose rows are decoded as they are asked for."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

import octavo.ops.linear  # noqa: F401 registers the ops
from octavo.errors import ModelError
from octavo.formats import Format
from octavo.nn.packed_layer import PackedLayer
from octavo.nn.quantizer import Quantizer
from octavo.recipe.spec import Spec
from octavo.tensor import PackedTensor


class PackedEmbedding(PackedLayer):
    """``nn.Embedding`` over a packed table ``[V, D]``: integer ``ids`` of any shape to rows ``[..., D]``.

    Rows are bit for bit those of :class:`octavo.nn.QuantEmbedding`, in the logical dtype. Raises DTypeError for tensors
    on devices other than the CPU and CUDA, ShapeError for ids outside the table.
    """

    replaces = nn.Embedding

    def __init__(
        self, weight: PackedTensor, *, padding_idx: int | None = None, output_quantizer: Quantizer | None = None
    ) -> None:
        """Hold the table ``weight``."""
        super().__init__(weight, output_quantizer=output_quantizer)
        self.num_embeddings, self.embedding_dim = weight.shape
        self.padding_idx = padding_idx

    @classmethod
    def from_embedding(cls, embedding: nn.Embedding, format: Format | Spec | str | None = None, what: str = "") -> Self:
        """Return the packed form of a QuantEmbedding, or of an ``nn.Embedding`` in ``format``.

        ``what`` names the layer in errors. Raises ModelError where ``max_norm`` rewrites rows, else as
        :meth:`PackedLinear.from_linear`.
        """
        if getattr(embedding, "max_norm", None) is not None:
            raise ModelError(f"{what or 'Embedding'}: max_norm rewrites rows at each call; codes stay as they are")
        return cls._pack(embedding, format, what)

    @classmethod
    def geometry(cls, layer: nn.Module) -> dict[str, object]:
        """Arguments of the constructor that the weight does not tell."""
        return {"padding_idx": layer.padding_idx}

    def forward(self, input: Tensor) -> Tensor:
        """Return the rows of the ids ``input``."""
        if self._needs_check(input):
            self._check(input)
        y = torch.ops.octavo.packed_embedding.default(
            input, *self.parts, self._text, self._rows, self._width, self.dtype
        )
        return y if self.output_quantizer is None else self.output_quantizer(y)
