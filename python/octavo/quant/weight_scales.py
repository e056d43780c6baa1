"""Fixed scales of weights, from the weights themselves: minmax, quantile, mse, kl."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.errors import FormatError
from octavo.graph.tensor_statistics import Statistics
from octavo.ops.codec import encode
from octavo.quant.activation_scales import activation_scales, quantile_share
from octavo.recipe.spec import Spec
from octavo.tensors.fixed_order import ordered_sum
from octavo.tensors.formats import Format
from octavo.tensors.packed_tensor import PackedTensor

Scales = tuple[Tensor, Tensor | None, Tensor | None]  # scales, packed zeros, levels

# Shares of the rule's scale that `mse` tries: down to an eighth, then finer and finer about each group's best. Scales
# that are means may be better larger, too.
_COARSE = [2 ** (-step / 4) for step in range(1, 13)]
_MEANS = [2 ** (step / 4) for step in range(-4, 5) if step]
_FINER = (1 / 8, 1 / 16, 1 / 32)
_MORE_BITS = range(1, 8)  # fraction bits that `mse` adds
# Elements whose errors are found at once: their float64 buffers stay in the cache, and torch works on so few in one
# thread, which does not wait for others on a busy machine (measured: up to ten times).
_CHUNK = 1 << 15


def weight_scales(spec: Spec, weight: Tensor, label: str) -> Scales:
    """Return the scales, packed zeros and levels that ``spec.calibration`` chooses for ``weight`` ``[N, K]``.

    ``minmax``: the codec's rule. ``quantile``: the same, of each group's magnitudes up to that quantile. ``mse`` (and
    the start of ``lsq``): per group the scale of least squared error among shares of minmax's, minmax's included.
    ``kl``: as for activations, one scale a tensor. Raises FormatError for what does not fit, with the way out.
    """
    fmt, calibration = spec.format, spec.calibration
    assert calibration is not None  # callers ask where there is one
    if fmt.scale_type is None:
        raise FormatError(f"{label}: '{spec}': '{fmt}' has no scale to calibrate; leave out @{calibration}")
    if fmt.is_block and calibration.method != "minmax":
        raise FormatError(
            f"{label}: '{spec}': block scales are chosen by a rule; take '{fmt}@ceil', '{fmt}@mse' as the rule "
            f"(Spec(format, scale='mse')), or leave out @{calibration}"
        )
    x = weight.detach()
    method = calibration.method
    if method == "minmax":
        return _parts(encode(x, fmt, scale=spec.scale))
    if method == "kl":
        if fmt.granularity != "tensor" or fmt.core.scales_per_group != 1:
            raise FormatError(f"{label}: '{spec}': kl chooses one scale a tensor; take @mse for channels and groups")
        seen = Statistics()
        seen.add(x, label)
        return (*activation_scales(spec, seen, label), None)
    if method not in ("quantile", "mse", "lsq"):
        raise FormatError(f"{label}: '{spec}': {method} is not chosen from the weight alone")
    chunks = [x] if fmt.granularity == "tensor" else x.split(max(_CHUNK // max(x.shape[-1], 1), 1))
    share = quantile_share(calibration) if method == "quantile" else None
    chosen = [
        _least(part, fmt) if share is None else _parts(encode(_clipped(part, fmt, share), fmt)) for part in chunks
    ]
    scales, zeros, _ = zip(*chosen, strict=True)
    return torch.cat(scales), None if zeros[0] is None else torch.cat(zeros), None


def _parts(packed: PackedTensor) -> Scales:
    core = packed.format.core
    return packed.scales, packed.zeros if core.has_zeros else None, packed.levels if core.has_levels else None


def _groups(x: Tensor, fmt: Format, padding: float) -> Tensor:
    """Elements that share a scale as rows ``[groups, n]``; short groups are filled up with ``padding``."""
    if fmt.granularity == "tensor":
        return x.reshape(1, -1)
    block = fmt.block or x.shape[-1]
    if missing := -x.shape[-1] % block:
        x = torch.nn.functional.pad(x, (0, missing), value=padding)
    return x.reshape(-1, block)


def _clipped(x: Tensor, fmt: Format, share: float) -> Tensor:
    """``x`` with every group cut off at the magnitude that ``share`` of it does not exceed."""
    magnitudes, _ = _groups(x.float().abs(), fmt, -1.0).sort(1)
    missing = (magnitudes < 0).sum(1)
    n = magnitudes.shape[1] - missing
    place = missing + (n * share).ceil().long().clamp(min=1) - 1
    limits = magnitudes.gather(1, place[:, None]).to(x.dtype)
    clipped = _groups(x, fmt, 0.0).clamp(-limits, limits)
    if fmt.granularity == "tensor":
        return clipped.view_as(x)
    return clipped.view(*x.shape[:-1], -1)[..., : x.shape[-1]]


def _least(x: Tensor, fmt: Format) -> Scales:
    """Scales of least squared error, group by group."""
    start = encode(x, fmt)
    zeros = start.zeros if fmt.core.has_zeros else None
    levels = fmt.core.scales_per_group
    best, least = start.scales.view(-1, levels), _errors(x, fmt, start.scales, zeros)
    for move in _moves(fmt):
        scales = move(best if move.from_best else start.scales.view(-1, levels))
        errors = _errors(x, fmt, scales.view(start.scales.shape), zeros)
        best = torch.where((errors < least)[:, None], scales, best)
        least = torch.minimum(errors, least)
    return best.view(start.scales.shape), zeros, None


@dataclass(frozen=True)
class _Move:
    """A step from the rule's scales, or from the best so far, to others."""

    by: float
    from_best: bool = False

    def __call__(self, scales: Tensor) -> Tensor:
        if scales.dtype == torch.int8:  # fraction bits
            return (scales.int() + int(self.by)).clamp(max=127).to(torch.int8)
        tiny = torch.finfo(scales.dtype).smallest_normal
        return torch.where(
            scales > tiny,
            (scales.float() * self.by).clamp(tiny, torch.finfo(scales.dtype).max).to(scales.dtype),
            scales,
        )


def _moves(fmt: Format) -> Iterator[_Move]:
    if fmt.scale_type == "int8":
        yield from map(_Move, _MORE_BITS)
        return
    yield from map(_Move, _MEANS if fmt.family in ("binary", "ternary") else _COARSE)
    for step in _FINER:
        for sign in (-1, 1):
            yield _Move(2 ** (sign * step), from_best=True)


def _errors(x: Tensor, fmt: Format, scales: Tensor, zeros: Tensor | None) -> Tensor:
    """Squared error of each group, in float64."""
    rounded = torch.ops.octavo.quantize_plain.default(x, str(fmt), -1, "floor", scales, zeros, None)
    groups = zip(_groups(x, fmt, 0.0).split(_CHUNK, 1), _groups(rounded, fmt, 0.0).split(_CHUNK, 1), strict=True)
    total = torch.zeros((), dtype=torch.float64)
    for a, b in groups:
        total = total + ordered_sum((a.double() - b).square())
    return total
