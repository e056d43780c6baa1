"""Streamed statistics of tensors: extremes, moments, quantiles and a histogram, independent of the order of batches."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from octavo.errors import NonFiniteError
from octavo.tensors.fixed_order import ordered_sum

# Magnitudes are binned by the upper bits of their float32: the exponent and ten bits of the mantissa. A bin is about a
# thousandth of its values wide. The histogram covers the 16 binades below the largest magnitude.
_DROPPED = 13
_PER_BINADE = 1 << (23 - _DROPPED)
_BINS = 16 * _PER_BINADE
# Elements per step: as many as there are bins, and few enough that torch uses one thread, which does not wait for
# others on a busy machine (measured: up to ten times faster).
_CHUNK = 1 << 15


class Statistics:
    """Streamed minimum, maximum and histogram of finite numbers.

    The result does not depend on the order of numbers or batches. Error bound: a value in the histogram represents
    numbers within a relative 2^-10 of it; magnitudes below 2^-15 of the largest binade count as zero. ``low``,
    ``high``: exact. ``count``: number of values. Uses 260 kB.
    """

    def __init__(self) -> None:
        """Begin empty."""
        self.low, self.high, self.count = float("inf"), float("-inf"), 0
        self._base = 0  # the bits, shifted, of the lowest bin
        self._counts = torch.zeros(2, _BINS, dtype=torch.int64)  # of positive and of negative numbers

    @property
    def largest(self) -> float:
        """The largest magnitude; 0 without numbers."""
        return max(self.high, -self.low) if self.count else 0.0

    def add(self, x: Tensor, label: str = "x") -> None:
        """Add the elements of a float tensor. Raises NonFiniteError naming ``label``."""
        if not x.numel():
            return
        parts = x.detach().to("cpu", torch.float32).flatten().split(_CHUNK)
        ends = [torch.aminmax(part) for part in parts]
        low, high = float(torch.stack([e.min for e in ends]).min()), float(torch.stack([e.max for e in ends]).max())
        if not (abs(low) < float("inf") and abs(high) < float("inf")):  # NaN is in both ends
            problem = "NaN" if low != low else "infinity"
            raise NonFiniteError(f"{label}: {problem} among {x.numel():,} activations; calibration takes finite values")
        self.low, self.high, self.count = min(self.low, low), max(self.high, high), self.count + x.numel()
        self._make_room()
        for part in parts:
            bins = part.abs().view(torch.int32).bitwise_right_shift_(_DROPPED).sub_(self._base).clamp_(min=0)
            bins.add_(part < 0, alpha=_BINS)
            self._counts.view(-1).add_(torch.bincount(bins, minlength=2 * _BINS))

    def _make_room(self) -> None:
        """Move the window up to the largest magnitude's binade; values that fall below it count as zero."""
        bits = int(torch.tensor(self.largest).view(torch.int32)) >> 23
        base = max(bits - _BINS // _PER_BINADE + 1, 0) * _PER_BINADE
        shift = base - self._base
        if shift > 0:
            self._counts, self._base = _moved(self._counts, shift), base

    def join(self, other: Statistics) -> None:
        """Add the elements that other statistics have seen."""
        if not other.count:
            return
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.count += other.count
        self._make_room()
        self._counts += _moved(other._counts, self._base - other._base)

    def histogram(self) -> tuple[Tensor, Tensor]:
        """Return values, float32 and ascending, and their counts, int64."""
        bits = (torch.arange(_BINS) + self._base << _DROPPED) + (1 << (_DROPPED - 1))  # the middle of each bin
        middles = bits.to(torch.int32).view(torch.float32).clone()
        middles[0] = 0.0
        values = torch.cat([-middles.flip(0), middles]).clamp(self.low, self.high)
        counts = torch.cat([self._counts[1].flip(0), self._counts[0]])
        seen = counts.nonzero().squeeze(1)
        return values[seen], counts[seen]

    def mean(self) -> float:
        """Return the mean, within the error bound of the histogram; 0 without numbers."""
        values, counts = self.histogram()
        return float(ordered_sum(values.double() * counts)) / max(self.count, 1)

    def deviation(self) -> float:
        """Return the standard deviation, within the error bound of the histogram."""
        values, counts = self.histogram()
        centred = values.double() - self.mean()
        return math.sqrt(float(ordered_sum(centred * centred * counts)) / max(self.count, 1))

    def quantile(self, share: float) -> float:
        """Return the least value at or below which a share of all numbers lies, within the error bound."""
        values, counts = self.histogram()
        if not len(values):
            return 0.0
        wanted = torch.tensor(share * self.count, dtype=torch.float64)
        place = int(torch.searchsorted(counts.cumsum(0).double(), wanted))
        return float(values[min(place, len(values) - 1)])

    def zeros(self) -> int:
        """Return the count of zeros, including magnitudes below the histogram."""
        values, counts = self.histogram()
        return int(counts[values == 0].sum())


def _moved(counts: Tensor, shift: int) -> Tensor:
    """Return counts in a window that begins ``shift`` bins higher; those below it are in its lowest bin."""
    if shift == 0:
        return counts
    moved = torch.zeros_like(counts)
    if shift < _BINS:
        moved[:, : _BINS - shift] = counts[:, shift:]
    moved[:, 0] += counts[:, : min(shift, _BINS)].sum(1)
    return moved
