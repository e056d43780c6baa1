"""Rules that need the float original: layers that are far from it, swapped or stale, and what was only suspected."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.errors import ContainerError
from octavo.interchange.check import scale_rules
from octavo.interchange.check.decode_layers import float_values, floats_of, rows_of
from octavo.interchange.check.findings import ByteEdit, Findings, rule
from octavo.interchange.check.source import Raw
from octavo.interchange.check.stated_settings import Settings
from octavo.interchange.check.stored_layers import FLOATS, GGML, OCTAVO, Layer, Model

FAR = rule(
    "layer-far", "error",
    "a layer is far from the original: its cosine is below what its width gives",
    "every reader computes with other weights than the model was trained to",
    "export the layer again, with its weights loaded",
)  # fmt: skip
SWAPPED = rule(
    "layer-swapped", "error",
    "a layer holds the weights of another layer of the original",
    "every reader computes the wrong layer",
    "export both layers again",
)  # fmt: skip
STALE = rule(
    "layer-stale", "warning",
    "a layer is much farther from the original than the other layers of its kind",
    "its weights are of another checkpoint, or its scales were chosen badly",
    "export the layer again from the original",
)  # fmt: skip
SCALED = rule(
    "layer-scaled", "error",
    "a layer is the original times a number that is not 1",
    "every output of the layer is wrong by that number",
    "correct the scales, or export again",
)  # fmt: skip
BASE_SHAPE = rule(
    "base-shape", "error",
    "a layer has another shape than in the original, or is not in it",
    "readers stop at load, or the checkpoint is of another model",
    "give the original of this checkpoint, or export again",
)  # fmt: skip

_ROWS_BYTES = 1 << 22  # bytes of float32 that are compared at once
_LEAST_COSINE = {1: 0.5, 2: 0.7, 3: 0.93, 4: 0.97, 5: 0.98, 6: 0.99, 7: 0.995}
_WIDE_COSINE = 0.995
_COARSE = ("log", "blog", "binary", "ternary", "denorm")  # few values for their width
_STALE_DB = 6.0  # below the median of layers of the same layout and width
_SAMPLE_ROWS = 64


@dataclass(frozen=True)
class Agreement:
    """How near a layer is to the original. ``scale``: the number that the original times it is nearest with."""

    name: str
    layout: str
    bits: float
    cosine: float
    sqnr_db: float
    scale: float

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON, which has no infinities."""
        return {
            "name": self.name,
            "layout": self.layout,
            "bits_per_element": self.bits,
            "cosine": self.cosine,
            "sqnr_db": self.sqnr_db if math.isfinite(self.sqnr_db) else None,
            "scale": self.scale,
        }


def compare_with_base(
    model: Model, base: Model, settings: Settings, findings: Findings, progress: Callable[[str, int], None]
) -> list[Agreement]:
    """Compare every layer with the original of its name.

    Args:
        model: the checkpoint.
        base: the original, whose plain tensors are read.
        settings: of the checkpoint.
        found: gets the findings.
        progress: called with the name of a layer and its bytes.

    Returns:
        An entry for each layer that the original has in the same shape.
    """
    agreements = []
    compared: dict[str, Layer] = {}
    for layer in model.layers:
        progress(layer.name, layer.nbytes)
        if layer.broken:
            continue
        original = _original(layer, model, base)
        if original is None:
            findings.add(BASE_SHAPE, layer.name, "the original has no tensor of this name", file=layer.codes.file.name)
            continue
        raw, order = original
        if raw.elements != layer.elements or (raw.shape and raw.shape[-1] != layer.columns):
            findings.add(
                BASE_SHAPE,
                layer.name,
                f"{layer.rows} x {layer.columns}; the original is {list(raw.shape)}",
                file=layer.codes.file.name,
            )
            continue
        try:
            agreements.append(_agreement(layer, model, settings, raw, order))
        except (ContainerError, ValueError):  # a type without a definition here
            continue
        compared[layer.name] = layer
    _judge(agreements, compared, model, base, settings, findings)
    return agreements


def _original(layer: Layer, model: Model, base: Model) -> tuple[Raw, NDArray[Any] | None] | None:
    for name in (f"{layer.name}.weight", layer.name):
        if name in base.plain and base.plain[name].dtype in FLOATS:
            return base.plain[name], None
    if layer.layout == GGML and model.source.gguf is not None:
        from octavo.interchange.gguf_names import architecture_of, place_of

        try:
            place = place_of(layer.name, *architecture_of(model.source.gguf))
        except ContainerError:
            return None
        for prefix in ("", "model.", "transformer.", "bert."):
            raw = base.plain.get(prefix + place.name)
            if raw is not None and raw.dtype in FLOATS and not place.turned:
                order = place.row_order(layer.rows)
                return raw, None if order is None else np.argsort(order.numpy())
    return None


def _base_rows(raw: Raw, columns: int, order: NDArray[Any] | None, start: int, stop: int) -> NDArray[np.float32]:
    if order is None:
        return floats_of(raw, start * columns, stop * columns).reshape(stop - start, columns)
    words = raw.words().reshape(-1, columns)[order[start:stop]]
    return float_values(words, raw.dtype)


def _agreement(layer: Layer, model: Model, settings: Settings, raw: Raw, order: NDArray[Any] | None) -> Agreement:
    dot = own = original = noise = 0.0
    step = max(_ROWS_BYTES // (4 * layer.columns) // 8 * 8, 8)
    if layer.layout == OCTAVO:  # decoded whole
        step = max(layer.rows, 1)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, layer.rows, step):
            stop = min(start + step, layer.rows)
            left = rows_of(layer, model.source, settings, start, stop).astype(np.float64).ravel()
            right = _base_rows(raw, layer.columns, order, start, stop).astype(np.float64).ravel()
            dot += float(left @ right)
            own += float(left @ left)
            original += float(right @ right)
            noise += float(((left - right) ** 2).sum())
    cosine = dot / math.sqrt(own * original) if own > 0 and original > 0 and math.isfinite(own) else 0.0
    scale = dot / original if original > 0 and math.isfinite(dot) else 0.0
    sqnr = 10 * math.log10(original / noise) if noise > 0 and original > 0 and math.isfinite(noise) else math.inf
    if not math.isfinite(own):
        cosine, sqnr = 0.0, -math.inf
    return Agreement(layer.name, layer.layout, 8 * layer.nbytes / layer.elements, cosine, sqnr, scale)


def _judge(
    agreements: list[Agreement],
    layers: dict[str, Layer],
    model: Model,
    base: Model,
    settings: Settings,
    findings: Findings,
) -> None:
    groups: dict[tuple[str, int], list[float]] = {}
    for one in agreements:
        groups.setdefault((one.layout, layers[one.name].bits), []).append(one.sqnr_db)
    for one in agreements:
        layer = layers[one.name]
        file = layer.codes.file.name
        least = _least(layer, model)
        text = f"cosine {one.cosine:.4f}, SQNR {one.sqnr_db:.1f} dB"
        if one.cosine >= least:
            if not 0.8 <= one.scale <= 1.25:
                edits = _raised(layer, one.scale)
                number = f"1/{1 / one.scale:.3g}" if one.scale < 1 else f"{one.scale:.3g}"
                findings.add(
                    SCALED,
                    one.name,
                    f"cosine {one.cosine:.4f}; it is the original times {number}",
                    file=file,
                    edits=edits,
                )
                _confirm(findings, one)
                continue
            usual = float(np.median(groups[one.layout, layer.bits]))
            if one.sqnr_db < usual - _STALE_DB:
                findings.add(
                    STALE,
                    one.name,
                    f"{text}; the median of {len(groups[one.layout, layer.bits])} such layers is {usual:.1f} dB",
                    file=file,
                )
            continue
        other = _nearest(layer, model, base, settings) if one.cosine < 0.5 else None
        if other is not None:
            findings.add(SWAPPED, one.name, f"{text}; it has cosine {other[1]:.4f} with {other[0]}", file=file)
        else:
            findings.add(FAR, one.name, f"{text}; at {layer.bits} bits the cosine is {least} or higher", file=file)


def _least(layer: Layer, model: Model) -> float:
    """Return the cosine that a layer of Gaussian weights has at least in its format."""
    entry = model.source.packed.get(layer.name)
    if entry is not None and entry.format.startswith(_COARSE):
        return _LEAST_COSINE[2]
    return _LEAST_COSINE.get(layer.bits, _WIDE_COSINE)


def _confirm(findings: Findings, one: Agreement) -> None:
    """Make a suspicion about scales of the layer an error."""
    for number, finding in enumerate(findings.listed):
        rules = (scale_rules.LOW, scale_rules.INVERTED, scale_rules.GGUF_FACTOR)
        own = finding.subject == one.name or finding.rule is scale_rules.LOW
        if finding.rule in rules and own:
            findings.listed[number] = replace(finding, severity="error")


def _raised(layer: Layer, scale: float) -> tuple[ByteEdit, ...]:
    """Return the edits that add 2 to the exponents of MXFP4, where these are two too low."""
    if layer.layout != "mxfp4" or not 0.2 <= scale <= 0.3 or layer.scales is None:
        return ()
    codes = layer.scales.data()
    if int(codes.max()) > 252:
        return ()
    return (ByteEdit(layer.scales.file, layer.scales.offset, (codes + 2).astype(np.uint8).tobytes()),)


def _nearest(layer: Layer, model: Model, base: Model, settings: Settings) -> tuple[str, float] | None:
    """Return the tensor of the original that some rows of a layer are near to; None where none is."""
    rows = min(layer.rows, _SAMPLE_ROWS)
    with np.errstate(over="ignore", invalid="ignore"):
        own = rows_of(layer, model.source, settings, 0, rows).astype(np.float64).ravel()
        length = math.sqrt(float(own @ own))
        if not length or not math.isfinite(length):
            return None
        best: tuple[str, float] | None = None
        for name, raw in base.plain.items():
            if (
                raw.dtype not in FLOATS
                or len(raw.shape) < 2
                or raw.shape[-1] != layer.columns
                or raw.elements != layer.elements
            ):
                continue
            other = floats_of(raw, 0, rows * layer.columns).astype(np.float64)
            norm = math.sqrt(float(other @ other))
            cosine = float(own @ other) / (length * norm) if norm > 0 else 0.0
            if best is None or cosine > best[1]:
                best = name, cosine
    return best if best is not None and best[1] > 0.9 else None
