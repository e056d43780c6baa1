"""Binary, ternary and residual-sign quantizers."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from octavo.errors import ShapeError
from octavo.lab.mase._common import check_integer, check_tensor, straight_through


class _SignWithHardTanhGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.sign(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() <= 1)


def binarize(x: Tensor) -> Tensor:
    """Sign of `x`, with 0 for zero; the gradient is 1 where |x| <= 1 and 0 elsewhere.

    `x`: any shape, float dtype. Returns a tensor like `x`. Raises DTypeError. Source: MASE `BinarizeSign` (LUTNet).
    """
    check_tensor("binarize", "x", x)
    return _SignWithHardTanhGradient.apply(x)


def binary_quantizer(
    x: Tensor, stochastic: bool = False, bipolar: bool = True, uniforms: Tensor | None = None
) -> Tensor:
    """Binary values: -1 and +1 where `bipolar`, else 0 and the mean magnitude of each sample.

    `x`: float dtype; any shape where `bipolar`, 4 dimensions otherwise, with samples along the first. Returns float32
    (float64 if `x` is and the result is scaled). Zero becomes +1 or 0, NaN becomes -1 or NaN.
    `stochastic` first maps x to the probability p = clip((x+1)/2, 0, 1) and compares p with `uniforms`, numbers in
    [0, 1) shaped like `x` (drawn from torch's generator if None). Only `bipolar` uses them: without it the result is
    the mean of p wherever p > 0, as in MASE. The gradient is then 1/2 everywhere.

    Raises DTypeError, ShapeError. Source: MASE `binary_quantizer`; FORMATS.md, section 6.
    """
    name = "binary_quantizer"
    check_tensor(name, "x", x)
    if not bipolar:
        _check_images(name, x)
    threshold: float | Tensor = 0.0
    if stochastic:
        threshold = torch.rand_like(x) if uniforms is None else uniforms
        if threshold.shape != x.shape:
            raise ShapeError(f"{name}: uniforms have shape {tuple(threshold.shape)}, x has {tuple(x.shape)}")
        x = straight_through((x + 1) / 2, lambda x: x.clamp(0, 1))
    if bipolar:
        return straight_through(x, lambda x: torch.where(x >= threshold, 1.0, -1.0))
    return straight_through(x, lambda x: torch.where(x > 0, 1.0, 0.0) * _sample_mean(x.abs()))


def binary_zero_one(x: Tensor, threshold: float = 0.0) -> Tensor:
    """1.0 where `x >= threshold`, else 0.0, in float32. Any shape, float dtype.

    Raises DTypeError. Source: MASE `BinaryZeroOne`, which none of its quantizers uses.
    """
    check_tensor("binary_zero_one", "x", x)
    return straight_through(x, lambda x: torch.where(x >= threshold, 1.0, 0.0))


def binary_bipolar_scaled(x: Tensor) -> Tensor:
    """+a for positive elements and -a for the others, zero included; a is the mean magnitude of each sample.

    `x`: 4 dimensions, float dtype, samples along the first. Returns float32, float64 for float64.
    Raises DTypeError, ShapeError. Source: MASE `BinaryBipolarScaled`, which none of its quantizers uses.
    """
    name = "binary_bipolar_scaled"
    check_tensor(name, "x", x)
    _check_images(name, x)
    return straight_through(x, lambda x: torch.where(x > 0, 1.0, -1.0) * _sample_mean(x.abs()))


def ternary_quantizer(x: Tensor, scaling_factor: bool = False) -> Tensor:
    """-1, 0, +1 by the threshold 0.75 * mean|x| of each sample; with `scaling_factor`, times the mean above it.

    `x`: 4 dimensions, float dtype, samples along the first. Returns float32; scaled, float64 if `x` is.
    A sample of zeros becomes NaN when scaled (0/0). MASE's arguments threshold, maximum, median and mean have no effect
    there and are left out here.

    Raises DTypeError, ShapeError. Source: MASE `ternary_quantizer`; FORMATS.md, section 6.
    """
    name = "ternary_quantizer"
    check_tensor(name, "x", x)
    _check_images(name, x)

    def quantize(x: Tensor) -> Tensor:
        magnitude = x.abs()
        threshold = _per_sample(0.75 * magnitude.flatten(1).sum(dim=1) / x[0].numel())
        signs = torch.where(x > threshold, 1.0, 0.0) - torch.where(x < -threshold, 1.0, 0.0)
        if not scaling_factor:
            return signs
        above = (magnitude > threshold).to(torch.float32)
        scale = (above * magnitude).sum(dim=(1, 2, 3)) / above.sum(dim=(1, 2, 3))
        return signs * _per_sample(scale)

    return straight_through(x, quantize)


def residual_sign_quantizer(levels: int, means: Tensor | Sequence[float] | None, x: Tensor) -> Tensor:
    """Levels of a residual binarization: `q_l = binarize(r_l) * |means_l|`, `r_0 = x`, `r_{l+1} = r_l - q_l`.

    `x`: any shape, float dtype. `means`: one value per level; None stands for MASE's start, (levels, .., 1) over their
    sum. Returns the levels stacked along a new first dimension, which one level alone does not have; their sum
    approximates `x`. Gradients reach `x` and `means` through every level, by the rule of `binarize`. MASE's argument
    x_quantizer has no effect there and is left out here.

    Raises DTypeError, FormatError, ShapeError. Source: MASE `residual_sign_quantizer`.
    """
    name = "residual_sign_quantizer"
    check_tensor(name, "x", x)
    check_integer(name, "levels", levels, 1, 16)
    if means is None:
        falling = torch.arange(levels, 0, -1, dtype=x.dtype, device=x.device)
        means = falling / falling.sum()
    if len(means) != levels:
        raise ShapeError(f"{name}: {len(means)} means for {levels} levels")
    residual, quantized = x, []
    for mean in means:
        quantized.append(binarize(residual) * abs(mean))
        residual = residual - quantized[-1]
    return torch.stack(quantized) if levels > 1 else quantized[0]


def _check_images(function: str, x: Tensor) -> None:
    if x.ndim != 4 or x.numel() == 0:
        raise ShapeError(f"{function}: x needs 4 dimensions, none of them empty, got shape {tuple(x.shape)}")


def _sample_mean(x: Tensor) -> Tensor:
    return x.mean(dim=(1, 2, 3), keepdim=True)


def _per_sample(values: Tensor) -> Tensor:
    return values.reshape(-1, 1, 1, 1)
