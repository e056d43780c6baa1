"""Residual sum, drop-out and norm as one operation, which keeps less for its backward pass than the three."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def residual_dropout_norm(
    x: Tensor, branch: Tensor, gain: Tensor | None, *, scale: float | Tensor, p: float, eps: float
) -> tuple[Tensor, Tensor]:
    """Return ``s = x + scale * dropout(branch, p)`` and ``s / rms(s) * gain``, of the separate operations' dtypes.

    ``x``, ``branch``: ``[..., D]``; ``gain``: ``[D]`` or None. ``p``: chance of a 0, drawn as
    :func:`torch.nn.functional.dropout` draws it, so that on a CPU the results are those of the three operations, bit
    for bit. Kept for the backward pass: s, a bool for every number where ``p`` is not 0, and a float32 for every row.
    Gradients of first order.
    """
    stream, normed = _ResidualDropoutNorm.apply(x, branch, gain, scale, p, eps)
    return stream, normed


class _ResidualDropoutNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, branch: Tensor, gain: Tensor | None, scale: float | Tensor, p: float, eps: float
    ) -> tuple[Tensor, Tensor]:
        kept = None
        ctx.branch_dtype = branch.dtype
        if p:
            branch, kept = _dropped(branch, p)
        stream = x + (branch if isinstance(scale, float) and scale == 1.0 else scale * branch)
        # As torch.nn.functional.rms_norm does it on a CPU, whose rate is asked for again in the backward pass.
        wide = stream.float() if stream.dtype in (torch.float16, torch.bfloat16) else stream
        rate = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        normed = wide * rate
        normed = (normed if gain is None else normed * gain).to(stream.dtype)
        ctx.save_for_backward(stream, rate, kept, gain, scale if isinstance(scale, Tensor) else None)
        ctx.scale, ctx.p, ctx.x_dtype = scale, p, x.dtype
        return stream, normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        grad_stream, grad_normed = grads
        stream, rate, kept, gain, scale = ctx.saved_tensors
        scale = ctx.scale if scale is None else scale
        grad_normed = grad_normed.to(rate.dtype)
        unit = stream * rate
        grad_gain = (grad_normed * unit).flatten(0, -2).sum(0).to(gain.dtype) if gain is not None else None
        grad_unit = grad_normed * gain if gain is not None else grad_normed
        inner = (grad_unit * unit).mean(-1, keepdim=True)
        grad = torch.addcmul(grad_unit, unit, inner, value=-1).mul_(rate).add_(grad_stream)
        grad_branch = (grad if isinstance(scale, float) and scale == 1.0 else grad * scale).to(ctx.branch_dtype)
        if kept is not None:
            grad_branch = grad_branch * kept.to(grad_branch.dtype).div_(1 - ctx.p)
        return grad.to(ctx.x_dtype), grad_branch, grad_gain, None, None, None


def _dropped(branch: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """Return what drop-out leaves, and what it kept, bool; with the draws of torch's own on the device."""
    if branch.is_cuda:
        left, kept = torch.native_dropout(branch, p, True)
        return left, kept
    noise = torch.empty_like(branch).bernoulli_(1 - p)
    kept = noise.bool()
    return branch * noise.div_(1 - p), kept
