"""Scales moved from activations into weights under an unchanged function: SmoothQuant (Xiao et al. 2022)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from octavo.data.batches import Batches
from octavo.display.progress import Report, Stages
from octavo.errors import DTypeError, FormatError, NonFiniteError
from octavo.nn.meta_tensors import refuse_meta
from octavo.nn.quant_layer import QuantLayer
from octavo.quant.algorithms.consumers import Consumer, find_consumers, is_norm
from octavo.quant.calibration import run, seen_of, undisturbed
from octavo.storage.arguments import checks_arguments
from octavo.train.unpadded_samples import unpadded

_LEAST = 1e-5  # smallest largest magnitude of a weight's column that counts as one
_WIDEST = 1e4  # largest factor between the scales of two channels and 1


@dataclass(frozen=True)
class Fold:
    """One norm whose output was scaled: ``x / scales``, and the layers whose weights took the scales in."""

    norm: str
    consumers: tuple[str, ...]
    scales: Tensor  # [channels]
    before: float  # largest magnitude of the norm's output over the median of the channels' largest that are not 0
    after: float


@dataclass(frozen=True)
class Smoothing:
    """The result of :func:`smooth_model`: ``folds``, and why the other norms were left, ``skipped``, by name."""

    folds: tuple[Fold, ...]
    skipped: dict[str, str]

    def __str__(self) -> str:
        """Return a line for each norm."""
        lines = [
            f"{fold.norm} -> {', '.join(fold.consumers)}: largest channel {fold.before:.3g} -> {fold.after:.3g} medians"
            for fold in self.folds
        ]
        return "\n".join([*lines, *(f"{norm}: left, {reason}" for norm, reason in self.skipped.items())])


@checks_arguments
def smooth_model(
    model: nn.Module,
    calibration: Iterable[Any],
    *,
    strength: float = 0.5,
    samples: int | None = 512,
    progress: bool | Report = True,
) -> Smoothing:
    """Divide the channels of norms by scales and multiply the weights that read them, in place, before quantizing.

    Channel k of a norm's output is divided by ``s_k = max|x_k|^strength / max|w_k|^(1 - strength)``, which leaves the
    model's function as it is but for rounding and its activations with smaller outliers. A norm (LayerNorm, RMSNorm and
    others with a weight per channel) is scaled where every reader of its output is a linear layer (or the packed
    projection of torch's MultiheadAttention) whose weight is its own: in pre-norm transformers, mostly. Other norms are
    reported with the reason; in post-norm ones (BERT) the residual sum reads the output, too. Source: Xiao et al. 2022,
    SmoothQuant.

    Args:
        model: float; it is changed in place.
        calibration: batches, as :func:`octavo.quantize_model` takes them; the first also shows who reads what.
        strength: share of the outliers that moves to the weights, 0 to 1.
        samples: most samples of ``calibration``; None for all.
        progress: a bar on a terminal; or a function of stage, done and total.

    Returns:
        The scaled norms, and the reasons for the others.

    Raises:
        FormatError: for another strength.
        DTypeError: for an object that is no float model.
        CalibrationError: without data.
        NonFiniteError: where a norm gives NaN or infinity.

    Example:
        >>> model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8))
        >>> _ = model[0].weight.data[3].mul_(50)  # an outlier channel
        >>> batch = torch.randn(64, 8)
        >>> before = model[0](batch).abs().max()
        >>> smoothing = octavo.quant.smooth_model(model, [batch])
        >>> bool(model[0](batch).abs().max() < before / 5)
        True
    """
    refuse_meta(model, "smooth_model")
    if not (isinstance(strength, int | float) and 0 <= strength <= 1):
        raise FormatError(f"strength is {strength!r}; accepted are numbers from 0 to 1")
    for name, module in model.named_modules():
        if isinstance(module, QuantLayer):
            raise DTypeError(f"{name} is quantized already, with scales of its weight as it is; smooth the float model")
    batches, show = unpadded(model, Batches(calibration, samples)), Stages(progress)
    names = {module: name for name, module in model.named_modules()}
    norms = [module for module in names if is_norm(module)]
    with undisturbed(model):
        readers = find_consumers(model, norms, next(iter(batches)))
        reasons = {norm: read for norm, read in readers.items() if isinstance(read, str)}
        pairs = {norm: read for norm, read in readers.items() if not isinstance(read, str)}
        largest = _largest(model, pairs, names, batches, show)
    folds = []
    for norm, consumers in pairs.items():
        fold = _fold(norm, consumers, largest[norm], strength, names)
        if isinstance(fold, str):
            reasons[norm] = fold
        else:
            folds.append(fold)
    return Smoothing(tuple(folds), {names[norm]: reason for norm, reason in reasons.items()})


def _largest(
    model: nn.Module, norms: Iterable[nn.Module], names: dict[nn.Module, str], batches: Batches, show: Stages
) -> dict[nn.Module, Tensor]:
    """Return the largest magnitude of each channel of the norms' outputs."""
    largest: dict[nn.Module, Tensor] = {}

    def see(norm: nn.Module, _: Any, output: Tensor) -> None:
        now = seen_of(output.detach()).reshape(-1, output.shape[-1]).abs().amax(0).float()
        if not torch.isfinite(now).all():
            raise NonFiniteError(f"{names[norm]}: the output holds NaN or infinity; calibrate with finite data")
        largest[norm] = torch.maximum(largest[norm], now) if norm in largest else now

    handles = [norm.register_forward_hook(see) for norm in norms]
    try:
        run(model, batches, show, "measuring norms")
    finally:
        for handle in handles:
            handle.remove()
    return largest


def _fold(
    norm: nn.Module, consumers: list[Consumer], largest: Tensor, strength: float, names: dict[nn.Module, str]
) -> Fold | str:
    weights = torch.stack([consumer.columns() for consumer in consumers]).amax(0).clamp(min=_LEAST)
    scales = largest.pow(strength) / weights.pow(1 - strength)
    scales = torch.where(largest > 0, scales, 1.0).clamp(1 / _WIDEST, _WIDEST)
    if not _scale_norm(norm, scales):
        return f"a {type(norm).__name__} does not scale with its weight"
    for consumer in consumers:
        consumer.scale(scales)
    return Fold(
        names[norm],
        tuple(names[consumer.module] for consumer in consumers),
        scales,
        _outlier(largest),
        _outlier(largest / scales),
    )


def _outlier(largest: Tensor) -> float:
    live = largest[largest > 0]  # a median of 0, where half of the channels are dead, would measure nothing
    return (live.max() / live.median()).item() if len(live) else 1.0


@torch.no_grad()
def _scale_norm(norm: nn.Module, scales: Tensor) -> bool:
    """Divide a norm's output by ``scales``; False, and nothing changed, where its weight does not do that."""
    weight, bias = cast("Tensor", norm.weight), getattr(norm, "bias", None)
    tensors: list[Tensor] = [weight] if bias is None else [weight, bias]
    before = [tensor.clone() for tensor in tensors]
    probe = torch.linspace(-2, 3, 3 * len(scales), dtype=weight.dtype, device=weight.device)
    probe = probe.view(3, -1)[:, torch.randperm(len(scales), generator=torch.Generator().manual_seed(0))]
    wanted = norm(probe) / scales.to(weight)
    for tensor in tensors:
        tensor.div_(scales.to(tensor))
    close = 1e-4 if weight.dtype == torch.float32 else 3e-2
    if torch.allclose(norm(probe), wanted, rtol=close, atol=close * wanted.abs().max().item()):
        return True
    for tensor, values in zip(tensors, before, strict=True):
        tensor.copy_(values)
    return False
