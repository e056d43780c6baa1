"""Sizes of layers by layout: rows, columns, groups and widths from the shapes of parts, which must agree."""

from __future__ import annotations

from math import ceil, prod

import numpy as np

from octavo.interchange.check.findings import Findings, Place, rule
from octavo.interchange.check.source import Raw
from octavo.interchange.check.stated_settings import Settings
from octavo.interchange.check.stored_layers import (
    AWQ,
    BNB4,
    BNB8,
    FLOATS,
    FP8,
    FP8_BLOCKS,
    GGML,
    GPT_OSS,
    GPTQ,
    INT8,
    MODELOPT_NVFP4,
    MXFP4,
    MXFP6,
    MXFP8,
    NVFP4,
    OCTAVO,
    WORDS,
    Layer,
    Model,
)

MISSING = rule(
    "part-missing", "error",
    "a quantised layer lacks its scales, or another part that its layout needs",
    "vLLM and transformers stop at load, or leave memory that was never filled in the place of the part",
    "export the layer again, or copy the part from the export that has it",
)  # fmt: skip
SHAPE = rule(
    "part-shape", "error",
    "the parts of a layer have sizes that contradict each other",
    "readers stop at load, or read scales of other blocks",
    "export the layer again; scales of half the size come from weights that were on the meta device",
)  # fmt: skip
RAGGED = rule(
    "group-ragged", "error",
    "the group size does not divide the columns of the layer",
    "compressed-tensors, vLLM and ggml refuse the layer when it is loaded",
    "quantise it by channel, by a group size that divides its columns, or leave it float",
)  # fmt: skip
SPARSE = rule(
    "words-sparse", "error",
    "codes of 3, 5, 6 or 7 bits fill 32-bit words with whole codes alone, as compressed-tensors before 0.18 wrote them",
    "compressed-tensors from 0.18 and vLLM read a dense stream: every weight after the first word is wrong",
    "export again with compressed-tensors 0.18 or newer",
)  # fmt: skip
# Layouts whose scales are floats.
_FLOAT_SCALES = (WORDS, INT8, FP8, FP8_BLOCKS, GPTQ, AWQ)


def measure_layer(layer: Layer, model: Model, settings: Settings, findings: Findings) -> None:
    """Set the sizes of a layer and report what contradicts; one that cannot be read is marked broken."""
    before = len(findings)
    _MEASURES[layer.layout](layer, model, settings, findings)
    sized = layer.rows and layer.columns and layer.group
    layer.broken = layer.broken or (len(findings) > before and not sized)
    scales = layer.scales if layer.layout in _FLOAT_SCALES and not layer.broken else None
    if scales is not None and scales.dtype not in FLOATS:
        _wrong(findings, layer, scales, f"accepted are scales of {', '.join(FLOATS)}")


def _wrong(findings: Findings, layer: Layer, raw: Raw, expected: str) -> None:
    layer.broken = True
    findings.add(
        SHAPE,
        layer.name,
        f"{raw.name} is {raw.dtype} {list(raw.shape)}; {expected}",
        file=raw.file.name,
        places=[Place(raw.offset)],
    )


def _needs(findings: Findings, layer: Layer, *roles: str) -> bool:
    for role in roles:
        if role not in layer.parts:
            layer.broken = True
            findings.add(
                MISSING, layer.name, f"{layer.layout}: no {_PART_NAMES.get(role, role)}", file=layer.codes.file.name
            )
            return False
    return True


_PART_NAMES = {
    "scales": "weight_scale", "divisor": "weight_global_scale", "factor": "weight_scale_2", "qscales": "scales",
    "qzeros": "qzeros", "block_scales": "_scales", "shape": "weight_shape", "state": "quant_state",
}  # fmt: skip


def _matrix(findings: Findings, layer: Layer, raw: Raw) -> bool:
    if len(raw.shape) == 2 and raw.elements:
        return True
    _wrong(findings, layer, raw, "accepted is a matrix")
    return False


def _grid(findings: Findings, layer: Layer, scales: Raw, settings: Settings) -> None:
    """Set the group of a layer from scales ``[rows, groups]``, ``[rows, 1]`` or ``[1]``."""
    if scales.elements == 1:
        layer.group = layer.columns
        return
    rows, groups = (scales.shape[0], prod(scales.shape[1:])) if scales.shape else (0, 0)
    stated = settings.group_of(layer.module)
    size = settings.whole("group_size", of=stated.weights) if stated else None
    if rows != layer.rows or not groups or groups > layer.columns:
        _wrong(findings, layer, scales, f"accepted are {layer.rows} rows, one for each of the weight")
        return
    if groups == 1:
        layer.group = layer.columns
        return
    stated_ragged = bool(size and size > 0 and layer.columns % size and ceil(layer.columns / size) == groups)
    if layer.columns % groups or stated_ragged:
        size = size if size and size > 0 else ceil(layer.columns / groups)
        if ceil(layer.columns / size) == groups:
            findings.add(RAGGED, layer.name, f"{layer.columns} columns in groups of {size}", file=scales.file.name)
            layer.broken = True
        else:
            _wrong(findings, layer, scales, f"{layer.columns} columns have no {groups} groups")
        return
    layer.group = layer.columns // groups


def _stated(findings: Findings, layer: Layer, settings: Settings, **facts: object) -> None:
    """Note facts of a compressed-tensors layer, which :func:`_check_groups` compares with its config group."""
    if settings.method == "compressed-tensors" and not layer.broken:
        layer.facts = facts


def _words(layer: Layer, model: Model, settings: Settings, findings: Findings) -> None:
    if not _needs(findings, layer, "scales", "shape"):
        return
    packed, shape, scales = layer.parts["packed"], layer.parts["shape"], layer.parts["scales"]
    if not _matrix(findings, layer, packed):
        return
    if shape.dtype not in ("I64", "I32") or shape.elements != 2:
        _wrong(findings, layer, shape, "accepted are two whole numbers")
        return
    rows, columns = (int(one) for one in shape.words().astype(np.int64))
    layer.rows, words = packed.shape
    group = settings.group_of(layer.module)
    stated = settings.whole("num_bits", of=group.weights) if group else None
    if rows != layer.rows or columns < 1 or columns > 32 * words:
        _wrong(findings, layer, shape, f"it states [{rows}, {columns}] for {packed.name} {list(packed.shape)}")
        return
    layer.columns = columns
    dense = [bits for bits in range(1, 9) if ceil(columns * bits / 32) == words]
    whole = [bits for bits in range(1, 9) if ceil(columns / (32 // bits)) == words]
    fitting = [bits for bits in dense if bits == stated] or [bits for bits in whole if bits == stated] or dense or whole
    if not fitting:
        _wrong(findings, layer, packed, f"{columns} columns of 1 to 8 bits do not fill {words} words")
        return
    layer.bits = fitting[0]
    layer.dense = layer.bits in dense
    _grid(findings, layer, scales, settings)
    if layer.broken:
        return
    if not layer.dense:
        findings.add(
            SPARSE,
            layer.name,
            f"{columns} columns of {layer.bits} bits in {words} words, {32 // layer.bits} a word; "
            f"a dense stream has {ceil(columns * layer.bits / 32)}",
            file=packed.file.name,
            places=[Place(packed.offset)],
        )
    g_idx = layer.parts.get("g_idx")
    if g_idx is not None and (g_idx.elements != columns or g_idx.dtype not in ("I32", "I64")):
        _wrong(findings, layer, g_idx, f"accepted are {columns} whole numbers, one for each column")
        return
    zeros = layer.parts.get("zeros")
    groups = columns // layer.group
    if zeros is not None and zeros.shape != (ceil(rows * layer.bits / 32), groups) and layer.dense:
        _wrong(findings, layer, zeros, f"accepted is [{ceil(rows * layer.bits / 32)}, {groups}]")
    channel = layer.group == columns
    _stated(findings, layer, settings, num_bits=layer.bits, group_size=None if channel else layer.group)


def _int8(layer: Layer, model: Model, settings: Settings, findings: Findings) -> None:
    _plain_codes(layer, settings, findings, "scales")
    layer.bits = 8
    _stated(findings, layer, settings, num_bits=8, type="int")


def _fp8(layer: Layer, model: Model, settings: Settings, findings: Findings) -> None:
    layer.bits = 8
    weight, scales = layer.parts["weight"], layer.parts["scales"]
    group = settings.group_of(layer.module)
    block = group.weights.get("block_structure") if group else None
    if len(weight.shape) == 2 and len(scales.shape) == 2 and isinstance(block, list) and len(block) == 2:
        layer.layout = FP8_BLOCKS
        layer.parts["scales_block"] = layer.parts.pop("scales")
        _fp8_blocks(layer, model, settings, findings)
        return
    _plain_codes(layer, settings, findings, "scales")
    _stated(findings, layer, settings, num_bits=8, type="float")


def _plain_codes(layer: Layer, settings: Settings, findings: Findings, role: str) -> None:
    weight, scales = layer.parts["weight"], layer.parts[role]
    if len(weight.shape) < 2 or not weight.elements:
        _wrong(findings, layer, weight, "accepted is a matrix")
        return
    layer.columns = weight.shape[-1]
    layer.rows = weight.elements // layer.columns
    if len(weight.shape) == 3 and scales.elements in (weight.shape[0], layer.rows):  # experts, a scale each or a row
        layer.group = layer.columns
        return
    _grid(findings, layer, scales, settings)


def _fp8_blocks(layer: Layer, model: Model, settings: Settings, findings: Findings) -> None:
    layer.bits = 8
    weight, scales = layer.parts["weight"], layer.parts["scales_block"]
    if len(weight.shape) != 2 or len(scales.shape) != 2 or not weight.elements:
        _wrong(findings, layer, scales, "accepted are matrices")
        return
    layer.rows, layer.columns = weight.shape
    group = settings.group_of(layer.module)
    size = settings.table.get("weight_block_size") or (group.weights.get("block_structure") if group else None)
    high, wide = (
        size
        if isinstance(size, list) and len(size) == 2 and all(isinstance(one, int) and one > 0 for one in size)
        else (128, 128)
    )
    if scales.shape != (ceil(layer.rows / high), ceil(layer.columns / wide)):
        _wrong(
            findings,
            layer,
            scales,
            f"accepted is {[ceil(layer.rows / high), ceil(layer.columns / wide)]}, a scale for {high} x {wide}",
        )
        return
    layer.group, layer.block_rows = wide, high


def _fp4(layer: Layer, model: Model, settings: Settings, findings: Findings) -> None:
    layer.bits = 4
    role = "packed" if "packed" in layer.parts else "weight"
    codes = layer.parts[role]
    needed = {NVFP4: ("scales", "divisor"), MODELOPT_NVFP4: ("scales", "factor"), MXFP4: ("scales",)}[layer.layout]
    if not _needs(findings, layer, *needed):
        return
    if codes.dtype != "U8" or len(codes.shape) < 2 or not codes.elements:
        _wrong(findings, layer, codes, "accepted is a matrix of U8")
        return
    factor = layer.factor
    if factor is not None and (factor.dtype not in FLOATS or not factor.elements):
        _wrong(findings, layer, factor, f"accepted is a number of {', '.join(FLOATS)}")
        return
    scales = layer.parts["scales"]
    if scales.shape and codes.shape[-1] == 24 * scales.shape[-1] and scales.dtype in ("U8", "F8_E8M0"):
        layer.layout, layer.bits = MXFP6, 6
    layer.columns = 8 * codes.shape[-1] // layer.bits
    layer.rows = codes.elements // codes.shape[-1]
    expected = 32 if scales.dtype in ("U8", "F8_E8M0") else 16
    groups = layer.columns // expected
    if layer.columns % expected:
        findings.add(RAGGED, layer.name, f"{layer.columns} columns in blocks of {expected}", file=codes.file.name)
        layer.broken = True
        return
    if scales.elements != layer.rows * groups or scales.shape[-1] != groups:
        if (
            len(scales.shape) == 2
            and scales.shape[0] == layer.rows
            and scales.elements
            and layer.columns % scales.shape[1] == 0
        ):
            group = settings.group_of(layer.module)
            stated = (settings.whole("group_size", of=group.weights) if group else None) or settings.whole("group_size")
            if stated == layer.columns // scales.shape[1]:
                layer.group = stated
                return
        _wrong(findings, layer, scales, f"accepted is [{layer.rows}, {groups}], a scale for {expected} columns")
        return
    layer.group = expected
    _stated(findings, layer, settings, num_bits=layer.bits, type="float", group_size=expected)


def _gpt_oss(layer: Layer, model: Model, settings: Settings, findings: Findings) -> None:
    layer.bits, layer.group = 4, 32
    if not _needs(findings, layer, "block_scales"):
        return
    blocks, scales = layer.parts["blocks"], layer.parts["block_scales"]
    if len(blocks.shape) < 3 or blocks.shape[-1] != 16 or not blocks.elements:
        _wrong(findings, layer, blocks, "accepted is [..., blocks of a row, 16]")
    elif scales.shape != blocks.shape[:-1] or scales.dtype != "U8":
        _wrong(findings, layer, scales, f"accepted is U8 {list(blocks.shape[:-1])}")
    else:
        layer.columns = 32 * blocks.shape[-2]
        layer.rows = 2 * blocks.elements // layer.columns


def _gptq(layer: Layer, model: Model, settings: Settings, findings: Findings) -> None:
    if not _needs(findings, layer, "qscales", "qzeros"):
        return
    qweight, qzeros, scales = layer.parts["qweight"], layer.parts["qzeros"], layer.parts["qscales"]
    if not (
        _matrix(findings, layer, qweight) and _matrix(findings, layer, qzeros) and _matrix(findings, layer, scales)
    ):
        return
    groups, rows = scales.shape
    if qweight.shape[1] != rows or qzeros.shape[0] != groups or qweight.dtype != "I32" or qzeros.dtype != "I32":
        _wrong(
            findings,
            layer,
            qweight,
            f"with qzeros {list(qzeros.shape)} and scales {list(scales.shape)} of another size",
        )
        return
    bits = next((one for one in (2, 3, 4, 8) if qzeros.shape[1] == ceil(rows * one / 32)), None)
    stated = settings.whole("bits", "w_bit")
    if stated in (2, 3, 4, 8) and qzeros.shape[1] == ceil(rows * stated / 32):
        bits = stated
    if bits is None or qweight.shape[0] * 32 % bits:
        _wrong(findings, layer, qzeros, f"{rows} zero points of 2, 3, 4 or 8 bits do not fill its words")
        return
    columns = qweight.shape[0] * 32 // bits
    g_idx = layer.parts.get("g_idx")
    if g_idx is not None and g_idx.elements != columns:
        _wrong(findings, layer, g_idx, f"accepted are {columns} entries, one for each column")
        return
    layer.rows, layer.columns, layer.bits = rows, columns, bits
    _gptq_group(layer, settings, findings, groups)


def _gptq_group(layer: Layer, settings: Settings, findings: Findings, groups: int) -> None:
    size = settings.whole("group_size", "q_group_size")
    if size is not None and size > 0 and ceil(layer.columns / size) == groups:
        layer.group = size
        if layer.columns % size:
            findings.add(RAGGED, layer.name, f"{layer.columns} columns in groups of {size}", file=layer.codes.file.name)
            layer.broken = True
            return
    elif layer.columns % groups:
        _wrong(findings, layer, layer.parts["qscales"], f"{layer.columns} columns have no {groups} groups of one size")
        return
    else:
        layer.group = layer.columns // groups
    if settings.table.get("dynamic"):
        return  # layers have settings of their own
    layer.facts = {"bits" if "bits" in settings.table else "w_bit": layer.bits}
    if groups > 1 or size != -1:
        layer.facts["group_size" if "group_size" in settings.table else "q_group_size"] = layer.group


def _awq(layer: Layer, model: Model, settings: Settings, findings: Findings) -> None:
    layer.bits = 4
    if not _needs(findings, layer, "qscales", "qzeros"):
        return
    qweight, qzeros, scales = layer.parts["qweight"], layer.parts["qzeros"], layer.parts["qscales"]
    if not _matrix(findings, layer, qzeros):
        return
    groups, rows = scales.shape
    if qzeros.shape != (groups, qweight.shape[1]) or qweight.dtype != "I32" or qzeros.dtype != "I32":
        _wrong(findings, layer, qzeros, f"accepted is I32 {[groups, qweight.shape[1]]}")
        return
    layer.rows, layer.columns = rows, qweight.shape[0]
    _gptq_group(layer, settings, findings, groups)


def _bnb4(layer: Layer, model: Model, settings: Settings, findings: Findings) -> None:
    from octavo.interchange.check.decode_layers import bnb_state

    layer.bits = 4
    if not _needs(findings, layer, "table", "state"):
        return
    weight, absmax = layer.parts["weight"], layer.parts["absmax"]
    state = bnb_state(layer)
    if state is None:
        _wrong(findings, layer, layer.parts["state"], "accepted is JSON with blocksize and shape")
        return
    layer.rows, layer.columns, layer.group = state.rows, state.columns, state.block
    if weight.nbytes != ceil(layer.elements / 2):
        _wrong(
            findings, layer, weight, f"accepted are {ceil(layer.elements / 2)} bytes for {[layer.rows, layer.columns]}"
        )
    elif absmax.elements != ceil(layer.elements / layer.group):
        _wrong(findings, layer, absmax, f"accepted are {ceil(layer.elements / layer.group)} blocks of {layer.group}")
    elif layer.parts["table"].dtype != "F32" or layer.parts["table"].elements != 16:
        _wrong(findings, layer, layer.parts["table"], "accepted are 16 values of F32")
    elif absmax.dtype == "U8" and _needs(findings, layer, "nested_absmax", "nested_table"):
        nested = layer.parts["nested_absmax"]
        if nested.elements != ceil(absmax.elements / state.nested_block):
            _wrong(findings, layer, nested, f"accepted are {ceil(absmax.elements / state.nested_block)} blocks")
        elif layer.parts["nested_table"].elements != 256 or layer.parts["nested_table"].dtype != "F32":
            _wrong(findings, layer, layer.parts["nested_table"], "accepted are 256 values of F32")


def _bnb8(layer: Layer, model: Model, settings: Settings, findings: Findings) -> None:
    layer.bits = 8
    weight, maxima = layer.parts["weight"], layer.parts["row_maxima"]
    if weight.dtype != "I8" or len(weight.shape) != 2 or not weight.elements:
        _wrong(findings, layer, weight, "accepted is a matrix of I8")
    elif maxima.elements != weight.shape[0] or maxima.dtype != "F32":
        _wrong(findings, layer, maxima, f"accepted is F32 [{weight.shape[0]}]")
    else:
        layer.rows, layer.columns = weight.shape
        layer.group = layer.columns


def _ggml(layer: Layer, model: Model, settings: Settings, findings: Findings) -> None:
    from octavo.interchange.ggml_types import TYPES

    kind = next(one for one in TYPES.values() if one.name == layer.codes.dtype)
    layer.group = kind.elements
    layer.bits = 8 * kind.nbytes // kind.elements


def _octavo(layer: Layer, model: Model, settings: Settings, findings: Findings) -> None:
    from octavo.tensors.formats import Format

    layer.bits = Format(model.source.packed[layer.name].format).width
    scales = layer.parts.get("scales")
    layer.group = max(layer.columns, 1) if scales is None else 1


_MEASURES = {
    WORDS: _words, INT8: _int8, FP8: _fp8, MXFP8: _fp8, FP8_BLOCKS: _fp8_blocks, NVFP4: _fp4, MXFP4: _fp4,
    MODELOPT_NVFP4: _fp4, GPT_OSS: _gpt_oss, GPTQ: _gptq, AWQ: _awq, BNB4: _bnb4, BNB8: _bnb8, GGML: _ggml,
    OCTAVO: _octavo,
}  # fmt: skip
