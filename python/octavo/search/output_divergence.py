"""The divergence of outputs from those of the float model: relative entropy of scores, 1 - cosine of embeddings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from octavo.errors import ConfigError, ModelError
from octavo.train.model_outputs import attention_mask, read_output, rows_of, weights_at_fault

DIVERGENCES = ("kl", "cosine", "mse")
Output = Callable[[Any, Any], Tensor]
_ROWS = 128  # that are compared at once
_LEAST = torch.finfo(torch.float16).min
_LARGE = 1 << 20  # number of scores above which float32 is used: exact enough there, and float64 is too slow


@dataclass(frozen=True)
class Reader:
    """How outputs are compared. ``kind``: a divergence. ``output``: the user's function, or None."""

    kind: str
    output: Output | None = None

    def rows(self, result: Any, batch: Any) -> Tensor:
        """Return the vectors of an output, ``[rows, channels]``."""
        return _rows(result, batch, self.output, large=_LARGE if self.kind == "kl" else None)[1]

    def reference(self, rows: Tensor, *, narrow: bool = False) -> Any:
        """Return the rows of the float model in the form that ``each`` and ``sum`` take.

        Args:
            rows: the vectors, ``[rows, channels]``.
            narrow: keep logarithms of probabilities in 16 bits, where ``each`` widens them.
        """
        if self.kind == "cosine":
            return normalize(rows, dim=-1)
        if self.kind != "kl":
            return rows
        if not narrow or rows.dtype != torch.float32:
            return torch.cat([part.log_softmax(-1) for part in _parts(rows)])
        # Finite logarithms stay finite: models exclude tokens by scores such as -1e9.
        narrowed = torch.cat([part.log_softmax(-1).clamp(min=_LEAST).half() for part in _parts(rows)])
        # What is rounded no longer adds up to 1: the probabilities are divided by their sum.
        return narrowed, torch.cat([part.float().logsumexp(-1, keepdim=True) for part in _parts(narrowed)])

    def each(self, reference: Any, rows: Tensor) -> Tensor:
        """Return the divergence of each row from the reference, ``[rows]``; NaN where a row is not finite."""
        if isinstance(reference, tuple):
            parts = zip(*map(_parts, (*reference, rows)), strict=True)
            return torch.cat([self._each(logs.float() - sums, part) for logs, sums, part in parts])
        return torch.cat([self._each(*pair) for pair in zip(_parts(reference), _parts(rows), strict=True)])

    def _each(self, reference: Tensor, rows: Tensor) -> Tensor:
        if self.kind == "kl":
            # Scores of minus infinity, which models give to excluded tokens, count as 0.
            return (reference.exp() * (reference - rows.log_softmax(-1))).nan_to_num(nan=float("nan"), neginf=0).sum(-1)
        if self.kind == "cosine":
            # Half the squared distance of unit vectors: 1 - cosine without cancellation.
            return (reference - normalize(rows, dim=-1)).square().sum(-1) / 2
        return (reference - rows).square().sum(-1) / reference.square().sum(-1).clamp(min=1e-30)

    def sum(self, reference: Any, rows: Tensor) -> float:
        """Return the sum over rows of the divergence from the reference; NaN where rows are not finite."""
        return float(self.each(reference, rows).double().sum().clamp(min=0))


def not_finite(number: int, model: nn.Module) -> str:
    """Return what is said of a batch whose output in the float model is not finite."""
    return (
        f"batch {number}: the float model's output holds NaN or infinity, which nothing can be measured against; "
        f"{weights_at_fault(model)}"
    )


def _parts(rows: Tensor) -> tuple[Tensor, ...]:
    """Cut rows into parts, so that what is made of a part fits into the caches, and one of all rows is never held."""
    return rows.split(_ROWS) if len(rows) else (rows,)


def reader_of(result: Any, batch: Any, output: Output | None, divergence: str | None) -> Reader:
    """Return the reader for outputs such as ``result``: by default scores by ``kl``, embeddings by ``cosine``.

    Results of a user's ``output`` count as embeddings. Raises ConfigError for an unknown divergence, ModelError for
    outputs that cannot be compared.
    """
    if divergence is not None and divergence not in DIVERGENCES:
        raise ConfigError(f"divergence is {divergence!r}; accepted are {', '.join(DIVERGENCES)}")
    kind, rows = _rows(result, batch, output, large=_LARGE)
    usual = "mse" if rows.shape[-1] < 2 else "kl" if kind == "logits" else "cosine"
    return Reader(divergence or usual, output)


def _rows(result: Any, batch: Any, output: Output | None, *, large: int | None = None) -> tuple[str, Tensor]:
    if output is None:
        return read_output(result, batch, large=large)
    value = output(result, batch)
    if not isinstance(value, Tensor) or not value.is_floating_point() or not value.ndim:
        raise ModelError(f"output(...) returned a {type(value).__name__}; accepted is a float tensor [rows, channels]")
    return "embedding", rows_of(value, attention_mask(batch), large=large)
