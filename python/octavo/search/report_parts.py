"""Parts of a compression report that compare a model before and after: its layers, and the largest losses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from octavo.errors import OctavoError
from octavo.model_folder.pack_checkpoint import measure
from octavo.model_folder.stored_tensors import stored_state
from octavo.nn import PackedLayer
from octavo.ops.codec import quantize
from octavo.recipe.rule import KEEP
from octavo.recipe.sites import dtype_name, is_transposed
from octavo.tensors.packed_tensor import PackedTensor

if TYPE_CHECKING:
    from octavo.recipe import Recipe
    from octavo.search.layer_sensitivity import Sensitivity
    from octavo.search.pareto_front import Point

_DEVIATIONS = 6.0  # standard deviations that a histogram covers; values beyond count in its outermost bins
_RAMP = 8192  # values that are rounded to enumerate the values of a format
_MOST_VALUES = 4096


def layer_rows(
    before: nn.Module,
    after: nn.Module,
    *,
    recipe: Recipe | None = None,
    groups: Mapping[str, str] | None = None,
    sensitivity: Mapping[str, float] | None = None,
) -> list[dict[str, Any]]:
    """Return a row for every stored tensor of ``after``, tied ones once: its format, bits, bytes and SQNR.

    ``before``: the float model. ``after``: the model packed from it. ``recipe``: explains the rule of each layer.
    ``groups``: the name of the group by the path of the layer. ``sensitivity``: the loss of the chosen format by the
    path of the layer.
    """
    explained = () if recipe is None else recipe.explain(before).rows
    rules = {row.module: row.rule for row in explained if row.role == "weight"}
    float_state, _ = stored_state(before)
    rows = []
    packed = {weight.name: weight for weight in _packed_weights(before, after)}
    values, _ = stored_state(after)
    names = [*(name for name in float_state if name in values), *(name for name in values if name not in float_state)]
    for name in names:
        value = values[name]
        if not isinstance(value, Tensor | PackedTensor):
            continue
        path, _, _ = name.rpartition(".")
        old = float_state.get(name)
        match = packed.get(name)
        shape = tuple(old.shape) if isinstance(old, Tensor) else tuple(value.shape)
        elements = math.prod(shape)
        row = {
            "path": name, "shape": list(shape), "parameters": elements, "bytes": value.nbytes,
            "bits": 8 * value.nbytes / elements if elements else 0.0,
            "bytes_before": old.nbytes if isinstance(old, Tensor) else None,
            "format": str(value.format) if isinstance(value, PackedTensor) else None,
            "dtype": None if isinstance(value, PackedTensor) else dtype_name(value.dtype),
        }  # fmt: skip
        if match is not None:
            row |= {
                "class": match.layer_class, "sqnr_db": match.sqnr_db(), "rule": rules.get(path), "input": match.input,
                "group": (groups or {}).get(path), "sensitivity": (sensitivity or {}).get(path),
            }  # fmt: skip
        if isinstance(old, Tensor) and isinstance(value, Tensor | PackedTensor) and name.endswith("weight"):
            share = _zeros(value)
            row["sparsity"] = share if share > 0.01 else None
        rows.append({key: it for key, it in row.items() if it is not None})
    return rows


def histogram_rows(before: nn.Module, after: nn.Module, *, most: int = 6, bins: int = 96) -> list[dict[str, Any]]:
    """Return histograms of the packed weights with the lowest SQNR, lowest first, with the values of their formats.

    ``most``: number of weights. ``bins``: of equal width, over six standard deviations or all values, whichever is
    narrower. The values of the format are those of the group whose largest magnitude is the median.
    """
    ratios = [(weight.sqnr_db(), weight) for weight in _packed_weights(before, after)]
    lossy = sorted(((sqnr, weight) for sqnr, weight in ratios if sqnr is not None), key=lambda it: (it[0], it[1].name))
    return [_histogram(weight, sqnr, bins) for sqnr, weight in lossy[:most]]


def sensitivity_part(
    sensitivity: Sensitivity, point: Point | None = None, *, samples: int | None = None
) -> dict[str, Any]:
    """Return the heat map of a sensitivity, with the formats of ``point`` marked; ``keep`` has no column."""
    shown = [at for at, text in enumerate(sensitivity.formats) if text != KEEP]
    measures = {"kl": "KL divergence of outputs", "cosine": "1 - cosine of outputs", "mse": "squared error of outputs"}
    measure_ = measures.get(sensitivity.divergence, sensitivity.divergence)
    part: dict[str, Any] = {
        "measure": measure_ if sensitivity.method == "divergence" else f"{measure_}, estimated from one backward pass",
        "unit": "nats" if sensitivity.divergence == "kl" else "", "samples": samples,
        "formats": [sensitivity.formats[at] for at in shown],
        "groups": [
            {"name": group.name, "paths": list(group.layers), "parameters": group.elements}
            for group in sensitivity.groups
        ],
        "loss": [[_finite(row[at]) for at in shown] for row in sensitivity.loss],
    }  # fmt: skip
    if point is not None:
        chosen = (point.choice.get(group.name) for group in sensitivity.groups)
        part["chosen"] = [None if text == KEEP else text for text in chosen]
    return {key: it for key, it in part.items() if it is not None}


@dataclass(frozen=True)
class _PackedWeight:
    """A packed weight and its float values, both ``[outputs, inputs]``."""

    name: str
    layer_class: str
    values: Tensor
    packed: PackedTensor
    input: str | None

    def sqnr_db(self) -> float | None:
        """Signal to quantization noise; None without noise, or without a signal."""
        return _finite(measure(self.values, self.packed.decode(torch.float32)).sqnr_db)


def _packed_weights(before: nn.Module, after: nn.Module) -> Iterator[_PackedWeight]:
    """Yield the packed layers of ``after`` whose float weight is in ``before`` under the same path."""
    sources = dict(before.named_modules())
    for path, layer in after.named_modules():
        source = sources.get(path)
        values = getattr(source, "weight", None)
        if not isinstance(layer, PackedLayer) or source is None or not isinstance(values, Tensor):
            continue
        packed = layer.packed_weight
        matrix = values.detach().t() if is_transposed(source) else values.detach().flatten(1)
        if tuple(matrix.shape) != tuple(packed.shape):
            continue  # rows or columns were taken out
        rounding = layer.input_quantizer
        input_format = str(rounding.format) if rounding is not None and rounding.enabled else None
        name = f"{path}.weight" if path else "weight"
        yield _PackedWeight(name, type(source).__name__, matrix.float().contiguous(), packed, input_format)


def _histogram(weight: _PackedWeight, sqnr: float, bins: int) -> dict[str, Any]:
    values = weight.values.flatten()
    largest = float(values.abs().max())
    reach = min(largest, _DEVIATIONS * float(values.std()) if values.numel() > 1 else largest) or 1.0
    counts = torch.histc(values.clamp(-reach, reach), bins, -reach, reach)
    grid = _grid(weight.packed, reach)
    beyond = int((values.abs() > reach).sum())
    note = f"values of {weight.packed.format} in the group of median range" if grid else "more values than can be drawn"
    return {
        "path": weight.name, "format": str(weight.packed.format), "why": f"SQNR {sqnr:.1f} dB", "sqnr_db": sqnr,
        "edges": [reach * (2 * at / bins - 1) for at in range(bins + 1)], "counts": [int(it) for it in counts],
        "grid": grid, "grid_told": note + (f"; {beyond:,} of {len(values):,} weights lie beyond" if beyond else ""),
    }  # fmt: skip


def _grid(packed: PackedTensor, reach: float) -> list[float]:
    """Return the values up to ``reach`` that a group of a packed weight can hold; none if they are too many.

    A linear and a logarithmic ramp are rounded with the scale of the group, whichever criterion chose that scale.
    """
    steps = torch.linspace(-reach, reach, _RAMP)
    small = reach * torch.logspace(-6, 0, _RAMP // 2)
    ramp = torch.cat([steps, -small, small, torch.zeros(1)])
    decoded = packed.decode(torch.float32)
    size = packed.format.block if packed.format.granularity == "block" else None
    width = size or decoded.shape[1]
    ramp = torch.nn.functional.pad(ramp, (0, -len(ramp) % width)).view(1, -1)
    _, scales, _, levels = packed.parts
    zeros = packed.unpack_zeros()
    parameters: dict[str, Any] = {}
    if packed.format.granularity in ("channel", "block"):
        blocks = torch.nn.functional.pad(decoded.abs(), (0, -decoded.shape[1] % width)).view(len(decoded), -1, width)
        reaches = blocks.amax(-1).flatten()
        row, column = divmod(int(reaches.sort().indices[len(reaches) // 2]), blocks.shape[1])
        repeat = ramp.shape[1] // width if size else 1
        for name, part in (("scales", scales), ("zeros", zeros)):
            if part is not None and part.numel():
                parameters[name] = part[row : row + 1, column : column + 1].expand(1, repeat).contiguous()
    else:
        parameters = {name: it for name, it in (("scales", scales), ("zeros", zeros)) if it is not None and it.numel()}
    if levels is not None and levels.numel():
        parameters["levels"] = levels
    try:
        grid = quantize(ramp, packed.format, **parameters).unique()
    except OctavoError:
        grid = decoded.unique()  # a format whose scales cannot be given: what the weight holds
    inside = [float(value) for value in grid if abs(value) <= reach * 1.001]
    return inside if len(inside) <= _MOST_VALUES else []


def _zeros(value: Tensor | PackedTensor) -> float:
    plain = value.decode(torch.float32) if isinstance(value, PackedTensor) else value
    return float((plain == 0).float().mean()) if plain.numel() else 0.0


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
