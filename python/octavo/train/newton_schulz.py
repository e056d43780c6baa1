"""The nearest matrix with orthogonal rows or columns, by Newton-Schulz iteration, which needs only matrix products."""

from __future__ import annotations

import torch
from torch import Tensor

FAST = (3.4445, -4.7750, 2.0315)
"""Coefficients of 5 steps that bring singular values near 1, 0.68 to 1.14, in bfloat16."""

EXACT = (2.0, -1.5, 0.5)
"""Coefficients of 12 steps that converge to 1, in float32."""


def orthogonalized(matrix: Tensor, *, exact: bool = False) -> Tensor:
    """Return an approximation of ``U V'`` of the SVD of ``matrix``, float32 ``[..., rows, columns]``.

    ``exact``: 12 steps in float32, within 1e-3 if the singular values are within a factor of 10. Otherwise 5 steps in
    bfloat16, which leave singular values between 0.65 and 1.25. A matrix of zeros stays zero. Source: Jordan et al.,
    Muon, 2024.
    """
    a, b, c = EXACT if exact else FAST
    x = matrix.float() if exact else matrix.bfloat16()
    is_tall = matrix.shape[-2] > matrix.shape[-1]
    x = x.mT if is_tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(12 if exact else 5):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return (x.mT if is_tall else x).float()


def row_rescaled(update: Tensor, second_moment: Tensor, decay: float) -> Tensor:
    """Return ``update`` with every row divided by the root of its running mean square; matrix norms are preserved.

    ``update``: ``[..., rows, columns]``. ``second_moment``: ``[..., rows, 1]``, changed in place. Source: NorMuon,
    2025.
    """
    second_moment.lerp_(update.square().mean(-1, keepdim=True), 1 - decay)
    scaled = update * (second_moment + 1e-10).rsqrt()
    norm_before, norm_after = (some.norm(dim=(-2, -1), keepdim=True) for some in (update, scaled))
    return scaled * (norm_before / norm_after.clamp_min(1e-10))


def cautious(weight: Tensor, update: Tensor) -> Tensor:
    """Return the part of ``weight`` that may decay: values that a step against ``update`` moves towards 0, else 0."""
    return torch.where(weight * update > 0, weight, 0)
