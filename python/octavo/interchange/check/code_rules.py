"""Rules of codes, zero points and plain values: NaN, memory that was never filled, zero points of another version."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.interchange.check.decode_layers import float_values, gptq_zeros, is_v2
from octavo.interchange.check.findings import PLACES, Findings, JsonEdit, Place, rule
from octavo.interchange.check.scan import PAGE, bits_of, constant_pages, sample
from octavo.interchange.check.source import Raw
from octavo.interchange.check.stated_settings import Settings
from octavo.interchange.check.stored_layers import (
    AWQ,
    BNB4,
    FLOATS,
    FP8,
    FP8_BLOCKS,
    GPTQ,
    MXFP8,
    OCTAVO,
    WORDS,
    Layer,
)

CODE_NAN = rule(
    "code-nan", "error",
    "a code of 8 bits is NaN or infinite (E4M3 0x7F and 0xFF, E5M2 0x7C and above)",
    "every output of its row is NaN",
    "export the layer again with a cast that saturates",
)  # fmt: skip
VALUE_NAN = rule(
    "value-nan", "error",
    "a plain tensor has NaN, or infinities outside of masks",
    "outputs of the model are NaN",
    "export the tensor again; the training or the cast to float16 overflowed",
)  # fmt: skip
UNFILLED = rule(
    "tensor-unfilled", "suspect",
    "a matrix, or a sixteenth of its pages, repeats one value",
    "weights that were on the meta device, or never copied, read so; every reader computes with them",
    "compare with the original: --base FOLDER; export again with the weights loaded",
)  # fmt: skip
GARBAGE = rule(
    "tensor-garbage", "suspect",
    "values of a plain matrix lie far outside of what weights are: above 10^6, or below 10^-20 and not zero",
    "memory that was never filled reads so; every reader computes with it",
    "compare with the original: --base FOLDER; export again with the weights loaded",
)  # fmt: skip
VERSION = rule(
    "gptq-zero-version", "error",
    "a symmetric GPTQ file stores zero points of the other version: v1 stores the middle less one, v2 the middle",
    "vLLM and GPTQModel shift every weight by one step of its scale; the model writes noise",
    "state `checkpoint_format` as the zero points have it; --fix does it",
)  # fmt: skip
WRAPPED = rule(
    "gptq-zero-wrapped", "suspect",
    "zero points of all ones, which v1 reads as 2^bits: a zero point of 0 from which one was taken",
    "readers disagree about such a group, and the borrow may have changed the zero point beside it",
    "export again with `checkpoint_format` gptq_v2",
)  # fmt: skip
AWQ_ZERO = rule(
    "awq-zero-wrapped", "suspect",
    "AWQ zero points of 15 that no zero points of 0 stand against, or of 0, which some kernels make 15",
    "groups with a zero point of the wrong end decode to values of one sign; outputs become NaN",
    "convert again with GPTQModel newer than January 2026; do not serve zero points of 0 with older ExLlama kernels",
)  # fmt: skip
G_RANGE = rule(
    "g-idx-range", "error",
    "an entry of g_idx names a group that the layer does not have",
    "kernels read scales beyond the end, which no check stops on a GPU",
    "export the layer again",
)  # fmt: skip
G_IGNORED = rule(
    "g-idx-ignored", "error",
    "g_idx orders the columns by activation, and the configuration states desc_act false",
    "vLLM reads groups in order and gives most columns the scale of another group",
    "state `desc_act` true; --fix does it",
)  # fmt: skip
TABLE = rule(
    "bnb-table", "error",
    "the table of values of a bitsandbytes layer is neither NF4 nor FP4",
    "bitsandbytes computes with its own table on some devices and with the stored one on others",
    "export the layer again",
)  # fmt: skip

_NF4 = (
    -1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0, 0.0795803, 0.1609302,
    0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
)  # fmt: skip
_FP4 = (0, 0.00520833, 0.6666667, 1.0, 0.3333333, 0.5, 0.1666667, 0.25)
_TABLE_ERROR = 1e-5  # tables are written from decimal texts
_LEAST_PAGES, _LEAST_ELEMENTS = 16, 4096
_MANY = 0.01  # share of values that tells garbage from a stray outlier
# Names of tensors whose values may be constant: adapters start at zero, masks and buffers are what they are.
_MAY_BE_CONSTANT = ("lora_B", "mask", "bias", "position", "inv_freq", "norm", "gate_weight", "ln_")


def check_codes(layer: Layer, settings: Settings, findings: Findings) -> None:
    """Check the codes of a layer that is not broken."""
    codes = layer.codes
    if layer.layout in (FP8, MXFP8, FP8_BLOCKS) and codes.dtype in ("F8_E4M3", "F8_E5M2"):
        bits = bits_of(codes)
        if bits.nan or bits.infinite:
            assert bits.wrong is not None
            data = codes.data()
            findings.add(
                CODE_NAN,
                layer.name,
                f"{bits.nan + bits.infinite} of {codes.elements} codes ({codes.dtype}) are not finite",
                file=codes.file.name,
                count=bits.nan + bits.infinite,
                places=[
                    Place(
                        codes.offset + one,
                        one // layer.columns,
                        one % layer.columns // max(layer.group, 1),
                        f"0x{int(data[one]):02X}",
                    )
                    for one in bits.wrong
                ],
            )
    if layer.layout != OCTAVO:  # our own writer fills what it writes, and a digest tells what became of it
        _check_filled(codes, layer.name, findings)
    if layer.layout in (GPTQ, AWQ):
        _check_zero_points(layer, settings, findings)
    if layer.layout in (GPTQ, WORDS) and "g_idx" in layer.parts:
        _check_g_idx(layer, settings, findings)
    if layer.layout == BNB4:
        _check_table(layer, findings)


def check_plain(raw: Raw, findings: Findings) -> None:
    """Check a plain tensor."""
    if raw.dtype not in FLOATS or not raw.elements:
        return
    bits = bits_of(raw)
    may_be_infinite = "mask" in raw.name or raw.name.endswith("attn.bias")
    count = bits.nan + (0 if may_be_infinite else bits.infinite)
    if count:
        assert bits.wrong is not None
        words, columns = raw.words(), raw.shape[-1] if raw.shape else 1
        findings.add(
            VALUE_NAN,
            raw.name,
            f"{count} of {raw.elements} values ({raw.dtype}) are not finite",
            file=raw.file.name,
            places=[
                Place(
                    raw.offset + one * raw.itemsize,
                    one // columns,
                    value=f"0x{int(words[one]):0{2 * raw.itemsize}X}, column {one % columns}",
                )
                for one in bits.wrong
            ],
            count=count,
        )
    if len(raw.shape) < 2 or raw.elements < _LEAST_ELEMENTS or any(part in raw.name for part in _MAY_BE_CONSTANT):
        return
    if bits.smallest == bits.largest:
        findings.add(
            UNFILLED,
            raw.name,
            f"all {raw.elements} values have one magnitude, 0x{bits.largest:X} ({raw.dtype})",
            file=raw.file.name,
            places=[Place(raw.offset)],
        )
        return
    _check_filled(raw, raw.name, findings)
    magnitudes = np.abs(float_values(sample(raw.words()), raw.dtype))
    with np.errstate(invalid="ignore"):
        odd = int(((magnitudes > 1e6) | ((magnitudes > 0) & (magnitudes < 1e-20))).sum())
    if odd > _MANY * len(magnitudes) and not count:
        findings.add(
            GARBAGE, raw.name, f"{odd / len(magnitudes):.1%} of {len(magnitudes)} sampled values", file=raw.file.name
        )


def _check_filled(raw: Raw, name: str, findings: Findings) -> None:
    """Suspect pages of one repeated word."""
    data = raw.data()
    same, pages, first = constant_pages(data)
    if pages < _LEAST_PAGES and same < pages:
        return
    if same * 16 >= pages > 0 and raw.elements >= 1024 // 8:
        size = min(PAGE, len(data))
        findings.add(
            UNFILLED,
            name,
            f"{same} of {pages} pages of {size} bytes of {raw.name} repeat 8 bytes",
            file=raw.file.name,
            places=[Place(raw.offset + first * size, value=data[first * size : first * size + 8].tobytes().hex())],
            count=same,
        )


def _check_zero_points(layer: Layer, settings: Settings, findings: Findings) -> None:
    raw = layer.parts["qzeros"]
    codes = gptq_zeros(layer)
    counts = np.bincount(codes.reshape(-1), minlength=1 << layer.bits)
    top, middle = (1 << layer.bits) - 1, 1 << layer.bits - 1
    if layer.layout == AWQ:
        high, low = int(counts[15]), int(counts[0])
        if bool(high) != bool(low):
            which = 15 if high else 0
            at = int(np.flatnonzero(codes.reshape(-1) == which)[0])
            findings.add(
                AWQ_ZERO,
                layer.name,
                f"{high} of {codes.size} zero points are 15, {low} are 0",
                file=raw.file.name,
                count=high + low,
                places=[_zero_place(layer, at, which)],
            )
        return
    symmetric = settings.flag("sym")
    expected, other = (middle, middle - 1) if is_v2(settings) else (middle - 1, middle)
    if symmetric and settings.method == "gptq" and int(counts[other]) == codes.size:
        stated = settings.table.get("checkpoint_format", "none")
        value = "gptq" if is_v2(settings) else "gptq_v2"
        edit = JsonEdit(raw.file.parent / settings.file, (*settings.keys, "checkpoint_format"), value)
        findings.add(
            VERSION,
            layer.name,
            f"all {codes.size} zero points are stored as {other}; checkpoint_format {stated} expects {expected}",
            file=raw.file.name,
            places=[Place(raw.offset, 0, 0, str(other))],
            count=codes.size,
            edits=(edit,),
        )
    elif int(counts[top]) and not is_v2(settings) and settings.method == "gptq":
        at = int(np.flatnonzero(codes.reshape(-1) == top)[0])
        findings.add(
            WRAPPED,
            layer.name,
            f"{int(counts[top])} of {codes.size} zero points are stored as {top}",
            file=raw.file.name,
            count=int(counts[top]),
            places=[_zero_place(layer, at, top)],
        )


def _zero_place(layer: Layer, at: int, value: int) -> Place:
    raw = layer.parts["qzeros"]
    group, row = divmod(at, layer.rows)
    word = group * raw.shape[1] + row * layer.bits // 32
    return Place(raw.offset + 4 * word, row, group, str(value))


def _check_g_idx(layer: Layer, settings: Settings, findings: Findings) -> None:
    raw = layer.parts["g_idx"]
    if raw.dtype not in ("I32", "I64"):
        return
    index: NDArray[Any] = raw.words().view(np.int32 if raw.dtype == "I32" else np.int64)
    groups = -(-layer.columns // layer.group)
    wrong = np.flatnonzero((index < 0) | (index >= groups))
    if len(wrong):
        if layer.layout == WORDS and (index == -1).all():
            return  # compressed-tensors' mark of columns in order
        findings.add(
            G_RANGE,
            layer.name,
            f"{len(wrong)} of {raw.elements} entries are outside of the {groups} groups",
            file=raw.file.name,
            places=[
                Place(raw.offset + int(one) * raw.itemsize, value=f"column {one}, group {index[one]}")
                for one in wrong[:PLACES]
            ],
            count=len(wrong),
        )
        return
    ordered = index == np.arange(layer.columns) // layer.group
    if layer.layout == GPTQ and settings.flag("desc_act") is False and not ordered.all():
        first = int(np.flatnonzero(~ordered)[0])
        edit = JsonEdit(raw.file.parent / settings.file, (*settings.keys, "desc_act"), True)
        findings.add(
            G_IGNORED,
            layer.name,
            f"{int((~ordered).sum())} of {layer.columns} columns are of another group than their place says",
            file=raw.file.name,
            places=[Place(raw.offset + first * raw.itemsize, value=f"column {first}, group {index[first]}")],
            count=int((~ordered).sum()),
            edits=(edit,),
        )


def _check_table(layer: Layer, findings: Findings) -> None:
    raw = layer.parts["table"]
    values = float_values(raw.words(), "F32")
    fp4 = np.array([*_FP4, *(-one for one in _FP4)], np.float32)
    if all(not np.allclose(values, table, rtol=0, atol=_TABLE_ERROR) for table in (np.array(_NF4, np.float32), fp4)):
        far = int(np.argmax(np.abs(values - np.array(_NF4, np.float32))))
        findings.add(
            TABLE,
            layer.name,
            f"entry {far} is {values[far]:g}; NF4 has {_NF4[far]:g}",
            file=raw.file.name,
            places=[Place(raw.offset + 4 * far, value=f"{values[far]:g}")],
        )
