"""Rules that need the float original: layers that are far from it, swapped or stale, and what was only suspected."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.errors import ContainerError
from octavo.interchange.check import code_rules, factor_rules, ggml_scale_rules, scale_rules
from octavo.interchange.check.decode_layers import float_values, floats_of, rows_of
from octavo.interchange.check.findings import ByteEdit, Findings, rule
from octavo.interchange.check.source import Raw
from octavo.interchange.check.stated_settings import Settings
from octavo.interchange.check.stored_layers import FLOATS, GPT_OSS, OCTAVO, PLAIN, Layer, Model

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
COLUMNS = rule(
    "columns-scaled", "suspect",
    "the columns of a layer are those of the original times a number each, as AWQ and SmoothQuant make them",
    "right with the norms of the same export alone; with others every output is wrong",
    "keep weights and norms of one export together",
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
_EXACT_DB = 46.0  # copies are exact, and casts to bfloat16 near this
_STALE_DB = 6.0  # below the median of layers of the same layout and width
_SAMPLE_ROWS = 64
_MOST_SEARCHES = 32  # layers for which all tensors of the original are tried


@dataclass(frozen=True)
class Agreement:
    """How near a layer is to the original.

    ``scale``: the number that the original times it is nearest with. ``column_cosine``: the cosine with a number for
    each column.
    """

    name: str
    layout: str
    bits: float
    cosine: float
    sqnr_db: float
    scale: float
    column_cosine: float

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON, which has no infinities."""
        return {
            "name": self.name,
            "layout": self.layout,
            "bits_per_element": self.bits,
            "cosine": self.cosine,
            "sqnr_db": self.sqnr_db if math.isfinite(self.sqnr_db) else None,
            "scale": self.scale,
            "column_cosine": self.column_cosine,
        }


def compare_with_base(
    model: Model, base: Model, settings: Settings, findings: Findings, progress: Callable[[str, int], None]
) -> list[Agreement]:
    """Compare every quantised layer and every float matrix with the original of its name.

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
    for layer in [*model.layers, *_plain_matrices(model)]:
        progress(layer.name, layer.nbytes)
        if layer.broken:
            continue
        original = _original_of(layer, model, base)
        if original is None and layer.layout == PLAIN:
            continue  # adapters, and parts that rotations add
        if original is None:
            findings.add(BASE_SHAPE, layer.name, "the original has no tensor of this name", file=layer.codes.file.name)
            continue
        if not original.fits(layer):
            text = f"{layer.rows} x {layer.columns}; the original is {list(original.raw.shape)}"
            findings.add(BASE_SHAPE, layer.name, text, file=layer.codes.file.name)
            continue
        try:
            agreements.append(_agreement(layer, model, settings, original))
        except (ContainerError, ValueError):  # a type without a definition here
            continue
        finally:
            layer.unpacked.clear()
        compared[layer.name] = layer
    _judge(agreements, compared, model, base, settings, findings)
    return agreements


def _plain_matrices(model: Model) -> Iterator[Layer]:
    """Yield the float matrices of a checkpoint as layers: they may be stale, too."""
    for name, raw in model.plain.items():
        if raw.dtype in FLOATS and len(raw.shape) >= 2 and raw.elements:
            columns = raw.shape[-1]
            rows = raw.elements // columns
            yield Layer(name.removesuffix(".weight"), PLAIN, {"weight": raw}, rows, columns, columns, 8 * raw.itemsize)


@dataclass(frozen=True)
class _Original:
    """A tensor of the original.

    ``order``: which of its rows each row of the layer is. ``turned``: experts, ``[experts, in, out]``.
    """

    raw: Raw
    order: NDArray[Any] | None = None
    turned: bool = False

    def fits(self, layer: Layer) -> bool:
        """Whether it has the sizes of a layer."""
        shape = self.raw.shape
        if self.raw.elements != layer.elements or len(shape) < 2:
            return False
        return shape[-2 if self.turned else -1] == layer.columns

    def rows(self, columns: int, start: int, stop: int) -> NDArray[np.float32]:
        """Return rows in the order of the layer."""
        raw = self.raw
        if self.turned:
            inner, outer = raw.shape[-2:]
            number = np.arange(start, stop)
            words = raw.words().reshape(-1, inner, outer)[number // outer, :, number % outer]
            return float_values(words, raw.dtype)
        if self.order is None:
            return floats_of(raw, start * columns, stop * columns).reshape(stop - start, columns)
        return float_values(raw.words().reshape(-1, columns)[self.order[start:stop]], raw.dtype)


def _original_of(layer: Layer, model: Model, base: Model) -> _Original | None:
    for name in (f"{layer.name}.weight", layer.name):
        raw = base.plain.get(name)
        if raw is not None and raw.dtype in FLOATS and len(raw.shape) >= 2:
            return _Original(raw, turned=layer.layout == GPT_OSS and len(raw.shape) == 3)
    if model.source.gguf is not None:
        from octavo.interchange.gguf_names import architecture_of, place_of

        try:
            name = f"{layer.name}.weight" if layer.layout == PLAIN else layer.name
            place = place_of(name, *architecture_of(model.source.gguf))
        except ContainerError:
            return None
        for prefix in ("", "model.", "transformer.", "bert."):
            raw = base.plain.get(prefix + place.name)
            if raw is not None and raw.dtype in FLOATS and not place.turned:
                order = place.row_order(layer.rows)
                return _Original(raw, None if order is None else np.argsort(order.numpy()))
    return None


def _agreement(layer: Layer, model: Model, settings: Settings, original: _Original) -> Agreement:
    products, own, squares = (np.zeros(layer.columns) for _ in range(3))  # of each column
    noise = 0.0
    step = max(_ROWS_BYTES // (4 * layer.columns) // 8 * 8, 8)
    if layer.layout == OCTAVO:  # decoded whole
        step = max(layer.rows, 1)
    with np.errstate(all="ignore"):
        for start in range(0, layer.rows, step):
            stop = min(start + step, layer.rows)
            left = rows_of(layer, model.source, settings, start, stop).astype(np.float64)
            right = original.rows(layer.columns, start, stop).astype(np.float64)
            products += np.einsum("rc,rc->c", left, right)
            own += np.einsum("rc,rc->c", left, left)
            squares += np.einsum("rc,rc->c", right, right)
            left -= right
            noise += float(np.einsum("rc,rc->", left, left))
        dot, length, size = float(products.sum()), float(own.sum()), float(squares.sum())
        explained = float(np.where(squares > 0, products**2 / squares, 0).sum())
    known = length > 0 and size > 0 and math.isfinite(length) and math.isfinite(size)
    sqnr = math.inf if noise == 0 else 10 * math.log10(size / noise) if known and math.isfinite(noise) else -math.inf
    return Agreement(
        layer.name,
        layer.layout,
        8 * layer.nbytes / layer.elements,
        dot / math.sqrt(length * size) if known else 0.0,
        sqnr,
        dot / size if known else 0.0,
        math.sqrt(explained / length) if known else 0.0,
    )


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
    searches, scaled = 0, set()
    for one in agreements:
        layer = layers[one.name]
        file, least = layer.codes.file.name, _least(layer, model)
        group = groups[one.layout, layer.bits]
        text = f"cosine {one.cosine:.4f}, SQNR {one.sqnr_db:.1f} dB"
        if one.cosine >= least and not 0.8 <= one.scale <= 1.25:
            number = f"1/{1 / one.scale:.3g}" if one.scale < 1 else f"{one.scale:.3g}"
            detail = f"cosine {one.cosine:.4f}; it is the original times {number}"
            findings.add(SCALED, one.name, detail, file=file, edits=_raised(layer, one.scale))
            scaled.add(one.name)
        elif one.cosine >= least:
            usual = min(float(np.median(group)), _EXACT_DB)
            if one.sqnr_db < usual - _STALE_DB:
                detail = f"{text}; the median of {len(group)} such layers is {usual:.1f} dB"
                findings.add(STALE, one.name, detail, file=file)
        elif one.column_cosine >= least and layer.rows >= _SAMPLE_ROWS:
            if settings.method != "awq":  # which folds scales of columns into the layer before
                detail = f"{text}; with a scale for each column the cosine is {one.column_cosine:.4f}"
                findings.add(COLUMNS, one.name, detail, file=file)
        else:
            other = None
            if one.cosine < 0.5 and searches < _MOST_SEARCHES:
                searches += 1
                other = _nearest(layer, model, base, settings)
            if other is not None:
                findings.add(SWAPPED, one.name, f"{text}; it has cosine {other[1]:.4f} with {other[0]}", file=file)
            else:
                findings.add(FAR, one.name, f"{text}; at {layer.bits} bits the cosine is {least} or higher", file=file)
    _confirm(findings, scaled)
    _settle(findings, {one.name: one.cosine >= _least(layers[one.name], model) for one in agreements})


def _settle(findings: Findings, is_near: dict[str, bool]) -> None:
    """Drop suspicions about memory that was never filled where the layer is near the original, and make others sure."""
    rules = (code_rules.UNFILLED, code_rules.GARBAGE, scale_rules.SPREAD, scale_rules.VANISHED, scale_rules.SATURATED)
    settled = []
    for finding in findings.listed:
        near = is_near.get(finding.subject.removesuffix(".weight"), is_near.get(finding.subject))
        if finding.rule not in rules or near is None:
            settled.append(finding)
        elif not near:
            settled.append(replace(finding, severity="error"))
    findings.listed = settled


def _least(layer: Layer, model: Model) -> float:
    """Return the cosine that a layer of Gaussian weights has at least in its format."""
    entry = model.source.packed.get(layer.name)
    if entry is not None and entry.format.startswith(_COARSE):
        return _LEAST_COSINE[2]
    return _LEAST_COSINE.get(layer.bits, _WIDE_COSINE)


def _confirm(findings: Findings, scaled: set[str]) -> None:
    """Make suspicions about the scales of layers errors, where the original shows the layers scaled."""
    rules = (factor_rules.LOW, factor_rules.INVERTED, ggml_scale_rules.GGUF_FACTOR)
    for number, finding in enumerate(findings.listed):
        if finding.rule in rules and scaled and (finding.rule is factor_rules.LOW or finding.subject in scaled):
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
