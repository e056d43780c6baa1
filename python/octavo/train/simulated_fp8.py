"""Linear layers with simulated products of 8-bit floats: the operands are rounded by the codecs.

Weights and inputs are rounded to E4M3, gradients to E5M2, each scaled by the largest magnitude of its tensor. Products
and their results are bfloat16, as on hardware. The trained weights stay float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from octavo.ops.codec import quantize

FORWARD, BACKWARD = "e4m3", "e5m2"
_LARGEST = {FORWARD: 448.0, BACKWARD: 57344.0}


def rounded(x: Tensor, format: str) -> Tensor:
    """Return ``x`` rounded to an 8-bit format after scaling its largest magnitude to the format's; bfloat16.

    A tensor of zeros stays zero. ``format``: ``e4m3`` or ``e5m2``.
    """
    x = x.detach().float()
    scale = x.abs().amax().clamp_min(1e-30) / _LARGEST[format]
    return (quantize(x / scale, format) * scale).bfloat16()


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        x8, weight8 = rounded(x, FORWARD), rounded(weight, FORWARD)
        ctx.save_for_backward(x8, weight8)
        ctx.dtypes = x.dtype, weight.dtype
        return x8 @ weight8.t()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x8, weight8 = ctx.saved_tensors
        y8 = rounded(gradients[0], BACKWARD)
        to_weight = y8.flatten(0, -2).t() @ x8.flatten(0, -2)
        return (y8 @ weight8).to(ctx.dtypes[0]), to_weight.to(ctx.dtypes[1])


class SimulatedFP8Linear(nn.Linear):
    """``nn.Linear`` with products of 8-bit floats in training.

    In evaluation mode it is a plain layer, because a scale over a whole tensor would leak later positions.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return ``[..., out]``, bfloat16 in training."""
        if not self.training:
            return super().forward(input)
        with torch.autocast(input.device.type, enabled=False):
            y = _Product.apply(input, self.weight)
        return y if self.bias is None else y + self.bias.to(y.dtype)


def simulate_fp8(model: nn.Module) -> None:
    """Make every plain linear layer inside ``blocks`` multiply in 8 bits; in a model without blocks, every one.

    Parameters and their names do not change. Layers of other classes, such as quantized ones, are not changed.
    """
    inside = [layer for name, layer in model.named_modules() if ".blocks." in f".{name}"] or list(model.modules())
    for layer in inside:
        if type(layer) is nn.Linear:
            layer.__class__ = SimulatedFP8Linear


def restore_float(model: nn.Module) -> None:
    """Undo :func:`simulate_fp8`."""
    for layer in model.modules():
        if type(layer) is SimulatedFP8Linear:
            layer.__class__ = nn.Linear  # type: ignore[assignment]
