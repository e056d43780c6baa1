"""Rules of factors of whole tensors, and of exponents that are all too low: what the sizes of weights tell."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.interchange.check.decode_layers import E4M3, floats_of, rows_of
from octavo.interchange.check.findings import Findings, Place, rule
from octavo.interchange.check.stated_settings import Settings
from octavo.interchange.check.stored_layers import (
    FLOATS,
    MODELOPT_NVFP4,
    MXFP4,
    NVFP4,
    Layer,
    Model,
)

FACTOR = rule(
    "factor-invalid", "error",
    "the global scale of an NVFP4 layer is zero, negative, infinite or NaN",
    "every reader decodes the layer to zeros, infinities or NaN",
    "export the layer again",
)  # fmt: skip
INVERTED = rule(
    "factor-inverted", "suspect",
    "the global scale multiplies where the layout divides, or the other way round",
    "weights are wrong by many orders of magnitude; outputs are noise",
    "compressed-tensors stores a divisor, ModelOpt a multiplier: export in the layout that the configuration names",
)  # fmt: skip
FUSED = rule(
    "factor-fused", "warning",
    "q, k and v, or gate and up, have different global scales",
    "vLLM joins them into one matrix and takes the largest factor: the others are scaled wrongly",
    "quantise them with one global scale, as llm-compressor and ModelOpt do",
)  # fmt: skip
LOW = rule(
    "exponent-low", "suspect",
    "all MXFP4 exponents seem two too low, as compressed-tensors before January 2026 stored them",
    "kernels that read E8M0 compute weights four times too small",
    "add 2 to every scale byte; --fix does it where --base shows it",
)  # fmt: skip
# Largest magnitudes that trained weights plausibly have; a wrong factor moves them by 10^4 and more.
_PLAUSIBLE, _POSSIBLE = (1e-3, 1e2), (1e-6, 1e3)
# Rows of layers beside those of the embedding: 1.6 in SmolLM2-135M, 1 before training, a quarter of it where exponents
# are two too low.
_SHORT = 0.5


def check_factor(layer: Layer, findings: Findings) -> None:
    """Check the factor of an NVFP4 layer, where it has one."""
    raw = layer.factor
    if raw is None or raw.dtype not in FLOATS or not raw.elements:
        return
    values = floats_of(raw)
    wrong = np.flatnonzero(~(np.isfinite(values) & (values > 0)))
    if len(wrong):
        findings.add(
            FACTOR,
            layer.name,
            f"{raw.name} is {values[wrong[0]]:g}",
            file=raw.file.name,
            places=[Place(raw.offset + int(wrong[0]) * raw.itemsize, value=f"{values[wrong[0]]:g}")],
            count=len(wrong),
        )
        return
    scales = layer.scales
    if layer.layout not in (NVFP4, MODELOPT_NVFP4) or scales is None or scales.dtype != "F8_E4M3":
        return
    magnitudes = scales.data() & 0x7F
    largest = 6 * float(np.nanmax(E4M3[np.minimum(magnitudes, 0x7E)].max(initial=0)))
    factor = float(values[0])
    if not largest:
        return
    stated, other = (
        (largest / factor, largest * factor) if "divisor" in layer.parts else (largest * factor, largest / factor)
    )
    if not _POSSIBLE[0] <= stated <= _POSSIBLE[1] and _PLAUSIBLE[0] <= other <= _PLAUSIBLE[1]:
        how = "divides" if "divisor" in layer.parts else "multiplies"
        findings.add(
            INVERTED,
            layer.name,
            f"{raw.name} is {factor:g} and {how}: the largest weight is {stated:.3g}; the other way round {other:.3g}",
            file=raw.file.name,
            places=[Place(raw.offset, value=f"{factor:g}")],
        )


_JOINED = (re.compile(r"(.*\.)(q|k|v)_proj$"), re.compile(r"(.*\.)(gate|up)_proj$"), re.compile(r"(.*\.)(w1|w3)$"))


def check_fused(model: Model, findings: Findings) -> None:
    """Compare the factors of layers that kernels join into one matrix."""
    joined: dict[tuple[int, str], list[tuple[str, float]]] = {}
    for layer in model.layers:
        raw = layer.factor
        if raw is None or layer.broken or raw.dtype not in FLOATS or layer.layout not in (NVFP4, MODELOPT_NVFP4):
            continue
        for number, pattern in enumerate(_JOINED):
            match = pattern.match(layer.name)
            if match:
                joined.setdefault((number, match[1]), []).append((match[2], float(floats_of(raw)[0])))
    for (_, path), members in joined.items():
        if len({value for _, value in members}) > 1:
            listed = ", ".join(f"{name} {value:g}" for name, value in members)
            findings.add(FUSED, path.removesuffix("."), f"global scales differ: {listed}")


def check_exponents(model: Model, settings: Settings, findings: Findings) -> None:
    """Suspect exponents of MXFP4 where rows are short beside those of plain matrices of the file."""
    layers = [one for one in model.layers if one.layout == MXFP4 and not one.broken]
    if not layers or settings.method != "compressed-tensors":
        return
    version = settings.table.get("version")
    if (
        isinstance(version, str)
        and (number := re.match(r"(\d{1,4})\.(\d{1,4})", version))
        and (int(number[1]), int(number[2])) >= (0, 14)
    ):
        return
    sizes = []
    for layer in layers[:64]:
        sizes.append(_norm(rows_of(layer, model.source, settings, 0, min(layer.rows, 64))))
        layer.unpacked.clear()
    sizes = [size for size in sizes if size > 0]
    plain = [
        rms for raw in model.plain.values()
        if len(raw.shape) == 2 and raw.dtype in FLOATS and min(raw.shape) >= 16
        and (rms := _norm(floats_of(raw, 0, 64 * raw.shape[1]).reshape(-1, raw.shape[1]))) > 0
    ]  # fmt: skip
    if not sizes or not plain:
        return
    size, beside = float(np.median(sizes)), float(np.median(plain))
    stated = f"version {version}" if isinstance(version, str) else "no version"
    if size < _SHORT * beside:
        findings.add(
            LOW,
            f"{len(layers)} layers",
            f"rows of the median layer have length {size:.2g}, of plain matrices {beside:.2g}; {stated} is stated",
        )


def _norm(rows: NDArray[Any]) -> float:
    """Return the root mean square length of rows."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.sqrt(np.nanmean(np.square(rows, dtype=np.float64).sum(1)))) if rows.size else 0.0
