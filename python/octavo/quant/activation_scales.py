"""Static scales of activations, from their statistics: minmax, quantile, mse, kl.

Every method chooses a range; the codec's own rule turns a range into scales, so that formats need no case of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from octavo.errors import CalibrationError, FormatError
from octavo.graph.tensor_statistics import Statistics
from octavo.ops.codec import encode, quantize
from octavo.recipe.spec import Calibration, Spec
from octavo.tensors.fixed_order import logarithm, ordered_sum
from octavo.tensors.formats import Format

Scales = tuple[Tensor, Tensor | None]  # scales, packed zeros
Range = tuple[float, float]

# Shares of the range that `mse` tries: sixteen to the octave down to a thirty-second, then eight about the best.
_COARSE = [2 ** (-step / 16) for step in range(81)]
_FINE = [2 ** (step / 128) for step in range(-8, 9)]
# `kl` compares distributions over this many equal bins, and tries thresholds from the 128th bin of one sign on.
_KL_BINS = 4096
_KL_FIRST, _KL_STRIDE = 128, 16
# What `kl` puts where the quantized distribution has nothing and the other one something.
_KL_LEAST = 1e-9


def activation_scales(spec: Spec, seen: Statistics, label: str) -> Scales:
    """Return the scales, and packed zeros for ``uintW``, that ``spec.calibration`` chooses.

    ``seen``: what the tensor held; where it was all zeros, the range is taken as -1 to 1. ``lsq`` starts from ``mse``.
    Raises FormatError for a format without one scale a tensor, CalibrationError where nothing was seen.
    """
    fmt, calibration = spec.format, spec.calibration
    check_format(spec, label)
    assert calibration is not None  # callers ask where there is one
    if not seen.count:
        raise CalibrationError(
            f"{label}: '{spec}' got no calibration data: the layer was never called; "
            "leave it out of the recipe, or give batches that reach it"
        )
    if seen.largest == 0:
        return scales_of(fmt, (-1.0, 1.0))
    full = (min(seen.low, 0.0), max(seen.high, 0.0))
    if calibration.method == "minmax":
        return scales_of(fmt, full)
    if calibration.method == "quantile":
        return scales_of(fmt, _quantile(fmt, seen, quantile_share(calibration)))
    return scales_of(fmt, _SEARCHES[calibration.method](fmt, seen, full))


def check_format(spec: Spec, label: str) -> None:
    """Refuse what has no single scale to calibrate. Raises FormatError with the way out."""
    fmt, method = spec.format, None if spec.calibration is None else spec.calibration.method
    if fmt.granularity != "tensor" or fmt.core.scales_per_group != 1:
        raise FormatError(
            f"{label}: '{spec}': static scales of activations are one for the tensor; take intW, uintW or fixedW, "
            f"or leave out @{spec.calibration} and have them chosen at run time"
        )
    if method in ("gptq", "hqq"):
        raise FormatError(f"{label}: '{spec}': {method} is for weights; activations take minmax, quantile, mse or kl")


def scales_of(fmt: Format, ends: Range) -> Scales:
    """Return the scales and zeros that the codec chooses for a tensor that spans a range."""
    packed = encode(torch.tensor(ends, dtype=torch.float32), fmt)
    return packed.scales, packed.zeros if fmt.core.has_zeros else None


def range_of(fmt: Format, scales: Tensor, zeros: Tensor | None) -> Range:
    """Return the range that one scale of a tensor covers: what :func:`scales_of` would take."""
    low, high = fmt.range
    number = float(scales.flatten()[0])
    step = 2.0 ** -round(number) if fmt.core.scale_type == "int8" else number  # int8: fraction bits
    zero = 0
    if zeros is not None:
        # Packed little-endian; a tensor's zero point is a number of one or two bytes.
        zero = sum(byte << (8 * place) for place, byte in enumerate(zeros.flatten().tolist()))
        low, high = low - zero, high - zero
    return (low * step, high * step) if fmt.core.has_zeros else (-high * step, high * step)


def quantile_share(calibration: Calibration) -> float:
    """Return the share of magnitudes that ``quantile`` keeps."""
    assert calibration.argument is not None  # the constructor gives one to quantile
    return calibration.argument


def _quantile(fmt: Format, seen: Statistics, share: float) -> Range:
    """Keep ``share`` of the magnitudes; of formats with a zero point, cut half of the rest at either end."""
    values, counts = seen.histogram()
    if fmt.core.has_zeros:
        rest = (1 - share) / 2
        return min(_at(values, counts, rest), 0.0), max(_at(values, counts, 1 - rest), 0.0)
    order = values.abs().argsort()
    largest = _at(values.abs()[order], counts[order], share)
    return -largest, largest


def _at(values: Tensor, counts: Tensor, share: float) -> float:
    """Return the first of ascending values that ``share`` of the counts do not exceed."""
    reached = counts.cumsum(0) >= share * counts.sum()
    return float(values[int(reached.int().argmax())])


def _mse(fmt: Format, seen: Statistics, full: Range) -> Range:
    """Return the range of least squared error: a common share of both ends, then of either where both can move."""
    values, counts = seen.histogram()
    weights = counts.double()
    errors: dict[bytes, float] = {}

    def error(ends: Range) -> float:
        scales, zeros = scales_of(fmt, ends)
        key = scales.numpy().tobytes() + (b"" if zeros is None else zeros.numpy().tobytes())
        if key not in errors:
            rounded = quantize_to(values, fmt, (scales, zeros))
            errors[key] = float(ordered_sum((rounded.double() - values).square() * weights))
        return errors[key]

    low, high = full
    best = min(((low * share, high * share) for share in _COARSE), key=error)
    best = min(((best[0] * share, best[1] * share) for share in _FINE), key=error)
    if fmt.core.has_zeros:
        for _ in range(2):
            best = min([best, *((low * share, best[1]) for share in _COARSE)], key=error)
            best = min([best, *((best[0], high * share) for share in _COARSE)], key=error)
    return min(full, best, key=error)


def quantize_to(values: Tensor, fmt: Format, parts: Scales) -> Tensor:
    """:func:`octavo.quantize` with packed zeros."""
    scales, zeros = parts
    if zeros is None:
        return quantize(values, fmt, scales=scales)
    return torch.ops.octavo.quantize_plain.default(values, str(fmt), -1, "floor", scales, zeros, None)


def _kl(fmt: Format, seen: Statistics, full: Range) -> Range:
    """Return the range whose quantized distribution has the least relative entropy to the clipped one.

    The clipped distribution has what was cut off in its outermost bins. Source: Migacz, 8-bit Inference with TensorRT
    (2017), over both signs.
    """
    values, counts = seen.histogram()
    width = 2 * seen.largest / _KL_BINS
    places = ((values / width).floor().long() + _KL_BINS // 2).clamp(0, _KL_BINS - 1)
    masses = torch.zeros(_KL_BINS, dtype=torch.float64).index_add_(0, places, counts.double())
    masses /= ordered_sum(masses)
    middles = ((torch.arange(_KL_BINS) - _KL_BINS // 2 + 0.5) * width).float()

    def divergence(ends: Range) -> float:
        inside = (middles >= ends[0]) & (middles <= ends[1])
        inner = masses[inside]
        clipped = inner.clone()
        clipped[0] += ordered_sum(masses[middles < ends[0]])
        clipped[-1] += ordered_sum(masses[middles > ends[1]])
        rounded = quantize_to(middles[inside], fmt, scales_of(fmt, ends))
        _, groups = rounded.unique(return_inverse=True)
        size = int(groups.max()) + 1
        mass = torch.zeros(size, dtype=torch.float64).index_add_(0, groups, inner)
        filled = torch.zeros(size, dtype=torch.float64).index_add_(0, groups, (inner > 0).double())
        spread = torch.where(inner > 0, (mass / filled.clamp(min=1))[groups], 0.0)
        spread = (spread / ordered_sum(spread).clamp(min=_KL_LEAST)).clamp(min=_KL_LEAST)
        there = clipped > 0
        return float(ordered_sum(clipped[there] * logarithm(clipped[there] / spread[there])))

    return min(_thresholds(full, width), key=divergence)


def _thresholds(full: Range, width: float) -> Iterator[Range]:
    yield full
    for place in range(_KL_BINS // 2 - _KL_STRIDE, _KL_FIRST - 1, -_KL_STRIDE):
        end = place * width
        yield max(full[0], -end), min(full[1], end)


# What searches the range, by the name of the calibration.
_SEARCHES = {"kl": _kl, "mse": _mse, "lsq": _mse}
