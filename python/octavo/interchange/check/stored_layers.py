"""Quantised layers of a checkpoint: which raw tensors belong together, by their names and dtypes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from octavo.interchange.check.source import Raw, Source

WORDS, INT8, FP8, MXFP8, MXFP6, MXFP4, NVFP4 = "words", "int8", "fp8", "mxfp8", "mxfp6", "mxfp4", "nvfp4"
MODELOPT_NVFP4, FP8_BLOCKS, GPT_OSS = "modelopt-nvfp4", "fp8-blocks", "gpt-oss"
GPTQ, AWQ, BNB4, BNB8, GGML, OCTAVO = "gptq", "awq", "bnb-4bit", "bnb-int8", "ggml", "octavo"
"""Layouts of layers."""
PLAIN = "plain"
"""Layout of float matrices, where they are compared with the original."""
E2M1_LAYOUTS = (MXFP4, NVFP4, MODELOPT_NVFP4, GPT_OSS)
"""Layouts with two E2M1 codes in a byte, the first low."""

FLOATS = ("F64", "F32", "F16", "BF16")
_GGML_PLAIN = ("F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64")
# Suffixes of parts behind the name of a layer, longest first, with the roles of the parts.
_SUFFIXES = {
    ".weight_packed": "packed",
    ".weight_scale_inv": "scales_block",
    ".weight_scale_2": "factor",
    ".weight_scale": "scales",
    ".weight_zero_point": "zeros",
    ".weight_shape": "shape",
    ".weight_g_idx": "g_idx",
    ".weight_global_scale": "divisor",
    ".input_global_scale": "input_factor",
    ".input_scale": "input_scale",
    ".output_scale": "output_scale",
    "._weight_qdata": "qdata",
    "._weight_scale": "ao_scales",
    "._weight_zero_point": "ao_zeros",
    ".qweight": "qweight",
    ".qzeros": "qzeros",
    ".scales": "qscales",
    ".g_idx": "g_idx",
    ".SCB": "row_maxima",
    ".weight.absmax": "absmax",
    ".weight.quant_map": "table",
    ".weight.nested_absmax": "nested_absmax",
    ".weight.nested_quant_map": "nested_table",
    ".weight.quant_state.bitsandbytes__nf4": "state",
    ".weight.quant_state.bitsandbytes__fp4": "state",
    ".weight": "weight",
    "_blocks": "blocks",
    "_scales": "block_scales",
}
_MARKS = ("packed", "scales_block", "scales", "factor", "qweight", "row_maxima", "absmax", "blocks")


@dataclass
class Layer:
    """A quantised weight.

    ``name``: path of the layer, or of the tensor where it has no layer. ``parts``: raw tensors by role. ``rows``,
    ``columns``: of the weight as float layers hold it, leading dimensions in the rows. ``group``: elements of a row
    that share a scale, 0 where the sizes contradict each other. ``bits``: of a code. ``block_rows``: rows that share a
    scale in layouts of square blocks. ``dense``: False for words that hold whole codes alone. ``facts``: what a
    configuration should state of it. ``unpacked``: scales and zero points, while rows of it are decoded.
    """

    name: str
    layout: str
    parts: dict[str, Raw]
    rows: int = 0
    columns: int = 0
    group: int = 0
    bits: int = 0
    block_rows: int = 1
    dense: bool = True
    broken: bool = field(default=False, repr=False)
    facts: dict[str, object] = field(default_factory=dict, repr=False)
    unpacked: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def codes(self) -> Raw:
        """The tensor of codes."""
        return next(
            self.parts[role] for role in ("packed", "qweight", "blocks", "codes", "weight") if role in self.parts
        )

    @property
    def scales(self) -> Raw | None:
        """The tensor of scales, where there is one."""
        roles = ("scales_block", "scales", "qscales", "absmax", "row_maxima", "block_scales")
        return next((self.parts[role] for role in roles if role in self.parts), None)

    @property
    def factor(self) -> Raw | None:
        """The scale of the whole tensor of NVFP4, where there is one."""
        return self.parts.get("divisor") or self.parts.get("factor")

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(raw.nbytes for raw in self.parts.values())

    @property
    def elements(self) -> int:
        """Elements of the weight."""
        return self.rows * self.columns

    @property
    def module(self) -> str:
        """Path of the layer; of GGUF and packed tensors without the name of the parameter."""
        return self.name.removesuffix(".weight")


@dataclass
class Model:
    """The tensors of a checkpoint, sorted: quantised layers, plain tensors, and parts that belong to no layer."""

    source: Source
    layers: list[Layer] = field(default_factory=list)
    plain: dict[str, Raw] = field(default_factory=dict)
    orphans: list[Raw] = field(default_factory=list)

    @property
    def kinds(self) -> dict[str, int]:
        """Number of layers by layout, of GGUF files by type."""
        counts: dict[str, int] = {}
        for layer in self.layers:
            kind = layer.codes.dtype if layer.layout == GGML else layer.layout
            counts[kind] = counts.get(kind, 0) + 1
        return counts


def sorted_tensors(source: Source) -> Model:
    """Return the layers and plain tensors of a checkpoint, in the order of names."""
    model = Model(source)
    if source.gguf is not None:
        _sort_gguf(model)
        return model
    left = dict(source.tensors)
    for name, entry in source.packed.items():
        parts = {}
        for part in ("codes", "scales", "zeros", "levels", "bitmap"):
            if f"{name}.{part}" in left:
                parts[part] = left.pop(f"{name}.{part}")
        columns = entry.shape[entry.axis] if entry.shape else 1
        layer = Layer(name, OCTAVO, parts, math.prod(entry.shape) // max(columns, 1), columns)
        model.layers.append(layer)
    by_layer: dict[str, dict[str, Raw]] = {}
    for name, raw in left.items():
        suffix = next((one for one in _SUFFIXES if name.endswith(one) and len(name) > len(one)), None)
        if suffix is None:
            model.plain[name] = raw
        else:
            by_layer.setdefault(name.removesuffix(suffix), {})[_SUFFIXES[suffix]] = raw
    for name in sorted(by_layer):
        _sort_parts(model, name, by_layer[name])
    model.plain = dict(sorted(model.plain.items()))
    return model


def _sort_parts(model: Model, name: str, parts: dict[str, Raw]) -> None:
    if "qdata" in parts and parts["qdata"].dtype in ("I8", "F8_E4M3", "F8_E5M2"):  # torchao's rows of 8 bits
        renamed = {"qdata": "weight", "ao_scales": "scales", "ao_zeros": "zeros"}
        parts = {renamed.get(role, role): raw for role, raw in parts.items()}
    layout = _layout(parts)
    if layout is not None:
        model.layers.append(Layer(name, layout, parts))
        return
    weight = parts.pop("weight", None)
    if weight is not None:
        model.plain[weight.name] = weight
    for role, raw in parts.items():
        if role in ("input_scale", "output_scale", "shape") or not any(one in parts for one in _MARKS):
            model.plain[raw.name] = raw
        elif weight is None and raw.dtype in FLOATS and role in ("blocks", "block_scales", "qscales"):
            model.plain[raw.name] = raw  # a parameter that has such a name by chance
        else:
            model.orphans.append(raw)


def _layout(parts: dict[str, Raw]) -> str | None:
    """Return the layout that the roles and dtypes of parts tell; None where they are no quantised layer."""
    packed, weight, scales = parts.get("packed"), parts.get("weight"), parts.get("scales")
    if packed is not None:
        if packed.dtype == "I32":
            return WORDS
        return NVFP4 if "divisor" in parts or (scales is not None and scales.dtype == "F8_E4M3") else MXFP4
    if "qweight" in parts:
        qweight, grid = parts["qweight"], parts.get("qscales")
        wide = len(qweight.shape) == 2 and grid is not None and len(grid.shape) == 2
        return AWQ if wide and grid is not None and 8 * qweight.shape[1] == grid.shape[1] else GPTQ
    if "blocks" in parts and parts["blocks"].dtype == "U8":
        return GPT_OSS
    if weight is None:
        return None
    if "absmax" in parts:
        return BNB4
    if "row_maxima" in parts:
        return BNB8
    if "scales_block" in parts:
        return FP8_BLOCKS
    if weight.dtype == "U8" and scales is not None and scales.dtype in ("U8", "F8_E8M0"):
        return MXFP4
    if weight.dtype == "U8" and ("factor" in parts or scales is not None):
        return None if scales is not None and _is_int4(weight, scales) else MODELOPT_NVFP4
    if scales is not None and weight.dtype.startswith("F8_"):
        return MXFP8 if scales.dtype in ("U8", "F8_E8M0") else FP8
    if scales is not None and weight.dtype == "I8":
        return INT8
    return None


def _is_int4(weight: Raw, scales: Raw) -> bool:
    """Whether it is ModelOpt's layout of integers, two rows in a byte with float scales, which is not read."""
    rows = weight.shape[0] if weight.shape else 0
    return scales.dtype in FLOATS and bool(scales.shape) and scales.shape[0] == 2 * rows


def _sort_gguf(model: Model) -> None:
    factors = {}
    for name, raw in model.source.tensors.items():
        if (
            name.endswith(".scale")
            and raw.dtype == "F32"
            and f"{name.removesuffix('.scale')}.weight" in model.source.tensors
        ):
            factors[f"{name.removesuffix('.scale')}.weight"] = raw
    for name, raw in model.source.tensors.items():
        if raw.dtype in _GGML_PLAIN:
            model.plain[name] = raw
            continue
        columns = raw.shape[-1] if raw.shape else 1
        parts = {"weight": raw}
        if raw.dtype == "NVFP4" and name in factors:
            parts["factor"] = factors[name]
        model.layers.append(Layer(name, GGML, parts, raw.elements // columns, columns))


def linear_weights(model: Model) -> Iterator[tuple[str, Raw]]:
    """Yield plain float matrices that look like weights of linear layers, with the paths of their layers."""
    for name, raw in model.plain.items():
        if raw.dtype not in FLOATS or not name.endswith(".weight"):
            continue
        layer = name.removesuffix(".weight")
        last = layer.rpartition(".")[2].lower()
        if len(raw.shape) == 2 and min(raw.shape) >= 16 and not any(word in last for word in NOT_LINEAR):
            yield layer, raw


def float_experts(model: Model) -> Iterator[tuple[str, Raw]]:
    """Yield plain float tensors of all experts of a layer, with the paths of the modules that hold them."""
    for name, raw in model.plain.items():
        path, _, last = name.removesuffix(".weight").rpartition(".")
        if raw.dtype in FLOATS and len(raw.shape) == 3 and "experts" in path and "bias" not in last:
            yield name.removesuffix(".weight"), raw


NOT_LINEAR = (
    "norm", "embed", "wte", "wpe", "lm_head", "output_layer", "shared", "position", "token_type", "relative", "ln_",
    "router", "patch", "class", "score", "pooler", "conv", "layerscale", "lora_",
)  # fmt: skip
"""Parts of names whose matrices no scheme rounds by default."""
