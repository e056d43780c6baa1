"""Weights of a checkpoint: measuring what quantizing loses, packing by a recipe, and comparing formats."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor

from octavo.errors import FormatError, OctavoError, ShapeError
from octavo.ops.codec import decode, encode, quantize
from octavo.recipe import Recipe
from octavo.recipe.decide import Decision
from octavo.recipe.sites import dtype_name
from octavo.recipe.spec import BLOCK_RULES, Spec
from octavo.recipe.tensor_decisions import decide_tensors, select
from octavo.tensors.formats import Format
from octavo.tensors.packed_tensor import PackedTensor

# Called with a tensor's name and the bytes of it that were just worked through.
Progress = Callable[[str, int], None]

NO_WEIGHT = "no weight of a layer"
"""Why a buffer is kept, and a tensor that a recipe does not ask about."""
_NATIVE = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# Elements whose errors are summed at once. Their float64 buffers stay in the cache, and torch works on so few in one
# thread: sums do not depend on the number of threads, nor wait for them on a busy machine (measured: up to 100 times).
_CHUNK = 1 << 15


# --- errors ---------------------------------------------------------------------------------------------------------


@dataclass
class Errors:
    """Error sums of one or more tensors. Adding two gives the sums over both."""

    signal: float = 0.0  # sum of x^2
    noise: float = 0.0  # sum of (x - q)^2
    power: float = 0.0  # sum of q^2
    largest: float = 0.0  # max |x - q|

    def __add__(self, other: Errors) -> Errors:
        """Return the sums over both."""
        return Errors(
            self.signal + other.signal,
            self.noise + other.noise,
            self.power + other.power,
            max(self.largest, other.largest),
        )

    @property
    def sqnr_db(self) -> float:
        """Signal to quantization noise in decibels; infinite without noise."""
        if self.noise == 0:
            return math.inf
        return 10 * math.log10(self.signal / self.noise) if self.signal else -math.inf

    @property
    def cosine(self) -> float:
        """Cosine between the tensors before and after; 1 where both are zero, 0 where one is."""
        if self.signal == 0 or self.power == 0:
            return float(self.signal == self.power)
        dot = (self.signal + self.power - self.noise) / 2  # (x - q)^2 = x^2 + q^2 - 2 x q
        return dot / math.sqrt(self.signal * self.power)


def measure(x: Tensor, quantized: Tensor) -> Errors:
    """Sum the errors of ``quantized`` against ``x``, in float64. Raises ShapeError where their shapes differ."""
    if x.shape != quantized.shape:
        raise ShapeError(f"shapes {tuple(x.shape)} and {tuple(quantized.shape)} differ")
    total = Errors()
    before, after, squares = (torch.empty(_CHUNK, dtype=torch.float64) for _ in range(3))
    for a, b in zip(x.detach().reshape(-1).split(_CHUNK), quantized.reshape(-1).split(_CHUNK), strict=True):
        if n := a.numel():
            total += _measure_chunk(before[:n].copy_(a), after[:n].copy_(b), squares[:n])
    return total


def _measure_chunk(a: Tensor, b: Tensor, squares: Tensor) -> Errors:
    """Sum the errors of one chunk in float64; ``a`` and ``squares`` are overwritten."""
    signal = torch.mul(a, a, out=squares).sum().item()
    power = torch.mul(b, b, out=squares).sum().item()
    gap = a.sub_(b)
    low, high = torch.aminmax(gap)
    return Errors(signal, torch.mul(gap, gap, out=squares).sum().item(), power, max(-low.item(), high.item()))


# --- packing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorReport:
    """The packing of one tensor: ``format`` is None where it was kept, ``sqnr_db`` where nothing was measured.

    ``zeros``: share of the codes that are 0 and left out, ``dense_nbytes``: bytes with them; None of dense codes.
    ``reason``: why the tensor was kept.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    format: str | None
    nbytes_before: int
    nbytes: int
    errors: Errors | None = None
    zeros: float | None = None
    dense_nbytes: int | None = None
    reason: str | None = None

    @property
    def elements(self) -> int:
        """Number of logical elements."""
        return math.prod(self.shape)

    @property
    def bits_per_element(self) -> float:
        """Bits per element on disk, scales included."""
        return 8 * self.nbytes / max(self.elements, 1)


@dataclass
class Packing:
    """Tensors after packing, under their old names, and a report for each."""

    tensors: dict[str, Tensor | PackedTensor] = field(default_factory=dict)
    reports: list[TensorReport] = field(default_factory=list)

    @property
    def bits_per_weight(self) -> float:
        """Average bits per element of the tensors that were packed."""
        return bits_per_weight(self.reports)


def bits_per_weight(reports: Iterable[TensorReport]) -> float:
    """Return the average bits per element of the tensors that were packed."""
    packed = [report for report in reports if report.format]
    return 8 * sum(report.nbytes for report in packed) / max(sum(report.elements for report in packed), 1)


def plan(tensors: Mapping[str, Tensor | PackedTensor], recipe: Recipe) -> list[TensorReport]:
    """Tell what :func:`pack_tensors` would do, from names and shapes alone. Raises as :meth:`Recipe.assign`."""
    reports = []
    for name, spec in recipe.assign(tensors).items():
        nbytes = tensors[name].nbytes if spec is None else spec.format.nbytes(tuple(tensors[name].shape))
        reports.append(_report(name, tensors[name], spec, nbytes))
    return with_reasons(reports, decide_tensors(recipe.rules, tensors))


def pack_tensors(
    tensors: Mapping[str, Tensor | PackedTensor],
    recipe: Recipe,
    *,
    sparse: bool = False,
    progress: Progress | None = None,
) -> Packing:
    """Encode each tensor in the format its rule gives, along its last dimension, and measure the error.

    ``sparse``: leave out codes that are 0 where that takes fewer bytes.
    ``fp32``, ``fp16`` and ``bf16`` cast and store a plain tensor. Raises FormatError as :meth:`Recipe.assign`,
    NonFiniteError and the like with the tensor's name.
    """
    packing = Packing()
    for name, spec in recipe.assign(tensors).items():
        before = tensors[name]
        after, errors = before, None
        if spec is not None:
            assert isinstance(before, Tensor)  # rules reach no packed tensor
            with _named(name):
                after = _pack(before, spec)
                errors = measure(before, after.decode() if isinstance(after, PackedTensor) else after)
                if sparse and isinstance(after, PackedTensor):
                    after = after.to_sparse(if_smaller=True)
        packing.tensors[name] = after
        packing.reports.append(with_zeros(_report(name, before, spec, after.nbytes, errors), after))
        if progress:
            progress(name, before.nbytes)
    packing.reports = with_reasons(packing.reports, decide_tensors(recipe.rules, tensors))
    return packing


def unpack_tensors(
    tensors: Mapping[str, Tensor | PackedTensor], dtype: torch.dtype | None = None, *, progress: Progress | None = None
) -> dict[str, Tensor]:
    """Decode every packed tensor, to ``dtype`` or its logical dtype; plain tensors stay as they are."""
    plain = {}
    for name, tensor in tensors.items():
        plain[name] = tensor.decode(dtype) if isinstance(tensor, PackedTensor) else tensor
        if progress:
            progress(name, tensor.nbytes)
    return plain


def _pack(x: Tensor, spec: Spec) -> Tensor | PackedTensor:
    native = _NATIVE.get(str(spec.format))
    if native is not None:
        # Saturated first, where a bare cast would overflow to infinity; in float32, so that nothing is rounded twice.
        return quantize(x.float(), spec.format).to(native)
    return encode(x, spec.format, scale=spec.scale)


def _report(
    name: str, tensor: Tensor | PackedTensor, spec: Spec | None, nbytes: int, errors: Errors | None = None
) -> TensorReport:
    text = None if spec is None else str(spec.format)
    return TensorReport(name, tuple(tensor.shape), dtype_name(tensor.dtype), text, tensor.nbytes, nbytes, errors)


def with_reasons(reports: Iterable[TensorReport], decisions: Iterable[Decision]) -> list[TensorReport]:
    """Return the reports, those of kept tensors with the reason, of the decision about the tensor of that name."""
    reasons = {decision.site.path: decision.reason for decision in decisions}
    return [
        report if report.format else replace(report, reason=reasons.get(report.name) or NO_WEIGHT) for report in reports
    ]


def with_zeros(report: TensorReport, packed: Tensor | PackedTensor) -> TensorReport:
    """Return the report with the share of zeros and the dense bytes, where codes are sparse."""
    if not isinstance(packed, PackedTensor) or not packed.is_sparse:
        return report
    return replace(report, zeros=packed.zeros_share, dense_nbytes=packed.dense_nbytes)


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Put the tensor's name before the message of an error raised inside."""
    try:
        yield
    except OctavoError as error:
        raise type(error)(f"{name}: {error}") from error


# --- comparing ------------------------------------------------------------------------------------------------------


@dataclass
class Comparison:
    """One format over the selected tensors. Times are of one pass on this machine: informative, not a benchmark."""

    format: Format
    elements: int = 0
    nbytes_before: int = 0
    nbytes: int = 0
    errors: Errors = field(default_factory=Errors)
    encode_s: float = 0.0
    decode_s: float = 0.0

    @property
    def bits_per_element(self) -> float:
        """Bits per element on disk, scales included."""
        return 8 * self.nbytes / max(self.elements, 1)

    @property
    def encode_gbps(self) -> float:
        """Gigabytes of original tensor encoded per second."""
        return self.nbytes_before / max(self.encode_s, 1e-9) / 1e9

    @property
    def decode_gbps(self) -> float:
        """Gigabytes of original tensor decoded per second."""
        return self.nbytes_before / max(self.decode_s, 1e-9) / 1e9


def compare_formats(
    tensors: Mapping[str, Tensor | PackedTensor],
    formats: list[Format],
    *,
    glob: str | None = None,
    scale: str = "floor",
    progress: Progress | None = None,
) -> list[Comparison]:
    """Encode and decode every selected tensor in every format; errors are summed over the tensors.

    ``glob``: which tensors (default: that of :func:`select`). ``scale``: the rule of block scales, for formats that
    have them. One tensor is held in memory at a time.

    Raises FormatError for another rule and where nothing is selected, NonFiniteError with the tensor's name.
    """
    if scale not in BLOCK_RULES:
        raise FormatError(f"unknown scale rule {scale!r}; accepted are {', '.join(BLOCK_RULES)}")
    compared = [Comparison(fmt) for fmt in formats]
    for name in select(tensors, glob):
        x = cast("Tensor", tensors[name]).clone()  # reads a mapped file now, so that no format's time includes it
        with _named(name):
            for entry in compared:
                _compare(x, entry, scale)
        if progress:
            progress(name, x.nbytes)
    return compared


def _compare(x: Tensor, entry: Comparison, scale: str) -> None:
    """Add one tensor to a comparison."""
    start = time.perf_counter()
    packed = encode(x, entry.format, scale=scale if entry.format.is_block else "floor")
    encoded = time.perf_counter()
    decoded = decode(packed)
    entry.decode_s += time.perf_counter() - encoded
    entry.encode_s += encoded - start
    entry.elements += x.numel()
    entry.nbytes_before += x.nbytes
    entry.nbytes += packed.nbytes
    entry.errors += measure(x, decoded)


def best_format(compared: list[Comparison], budget: float) -> Comparison:
    """Return the comparison of highest SQNR whose bits per element fit ``budget``; the smaller one on a tie.

    Raises FormatError where none fits.
    """
    fitting = [entry for entry in compared if entry.bits_per_element <= budget]
    if not fitting:
        least = min(compared, key=lambda entry: entry.bits_per_element)
        raise FormatError(
            f"no format fits a budget of {budget:g} bits per weight; "
            f"the smallest, '{least.format}', takes {least.bits_per_element:.4g}"
        )
    return max(fitting, key=lambda entry: (entry.errors.sqnr_db, -entry.nbytes))
