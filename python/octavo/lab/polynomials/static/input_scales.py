"""Calibration: the scale of every layer's int8 input, from what the layers see while the model generates."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from octavo.errors import FormatError
from octavo.lab.polynomials.seq2seq import Seq2Seq
from octavo.lab.polynomials.static.layout import largest, linears, lstms, site
from octavo.lab.polynomials.static.observation import check_hybrid, observe

METHODS = ("absmax", "quantile", "mse")

# Magnitudes are counted by the upper bits of their float32: the exponent and ten bits of the mantissa, so that a bin
# is a thousandth of its values wide. Independent of range, order and batches.
_DROPPED = 13
# Share of magnitudes that `quantile` does not cut.
_SHARE = 0.9999
# Scales that `mse` tries: these shares of the largest magnitude.
_TRIED = torch.linspace(0.3, 1.0, 141)
# What a layer's scale is where all it saw was 0.
_NOTHING = 1.0
# Magnitudes that wait to be counted together: counting few costs as much as counting as many as there are bins.
_WAITING = 1 << 18


def calibrate(model: Seq2Seq, batches: Iterable[Tensor], method: str = "absmax") -> dict[str, float]:
    """Return the scale of every linear layer's input and of every LSTM's hidden state, by the name of the layer.

    ``batches``: sources ``[B, S]``, uint8 or int64, padded with 0; the model answers them token by token, greedily, and
    what its layers read on the way is counted, but for padding. ``method``: ``absmax`` (nothing is cut off; the best
    for a model that :func:`equalize` made), ``quantile`` (one magnitude in ten thousand is), or ``mse`` (the least
    squared error). Layers that read the same tensor get the same scale.

    Raises FormatError for another method, DTypeError for another model, DataError where there is no row,
    NonFiniteError, and as :meth:`Seq2Seq.generate`.
    """
    if method not in METHODS:
        raise FormatError(f"unknown method {method!r}; accepted are {', '.join(METHODS)}")
    config = check_hybrid(model).config
    names = [*linears(config), *lstms(config)]
    counts = {site(name): Counts() for name in names}
    observe(model, batches, lambda name, x: counts[site(name)].add(x))
    chosen = {place: count.scale(method) for place, count in counts.items()}
    return {name: chosen[site(name)] for name in names}


class Counts:
    """A histogram of magnitudes, in bins of a relative width of 1/1024."""

    def __init__(self) -> None:
        """Begin with none."""
        self._counts = torch.zeros(1 << (31 - _DROPPED), dtype=torch.int64)
        self._waiting: list[Tensor] = []
        self.largest = 0.0

    def add(self, x: Tensor) -> None:
        """Count the elements of a finite tensor that is not empty."""
        magnitudes = x.float().abs().cpu().flatten()
        self.largest = max(self.largest, float(magnitudes.max()))
        self._waiting.append(magnitudes.view(torch.int32) >> _DROPPED)
        if sum(map(len, self._waiting)) >= _WAITING:
            self._count()

    def _count(self) -> None:
        if self._waiting:
            self._counts += torch.bincount(torch.cat(self._waiting), minlength=len(self._counts))
            self._waiting.clear()

    def scale(self, method: str) -> float:
        """Return the scale that ``method`` chooses; 1 where nothing but zeros was seen."""
        if self.largest == 0:
            return _NOTHING
        if method == "absmax":
            return self.largest / largest()
        self._count()
        kept = self._counts.nonzero().squeeze(1)
        counts = self._counts[kept].double()
        # The middle of each bin.
        values = ((kept << _DROPPED) + (1 << (_DROPPED - 1))).to(torch.int32).view(torch.float32).double()
        if method == "quantile":
            reached = counts.cumsum(0) >= _SHARE * counts.sum()
            return min(float(values[reached][0]), self.largest) / largest()
        tried = _TRIED.double() * self.largest / largest()
        errors = [(counts * (_rounded(values, scale) - values).square()).sum() for scale in tried]
        return float(tried[torch.stack(errors).argmin()])


def _rounded(values: Tensor, scale: Tensor) -> Tensor:
    return (values / scale).round().clamp(max=largest()) * scale
