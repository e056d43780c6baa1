"""The codecs against recorded outputs of others: every case that FORMATS.md can express, 0 differing bits.

The tables of cases, and why a case is left out, are those of test_oracle.py; here ``octavo`` takes the oracle's place.
Two things are no differences: the sign of a zero, and code -0, for which FORMATS.md has the code of zero.
"""

import math

import numpy as np
import ocp_mx
import octavo
import pytest
import torch
from helpers import oracle
from helpers.quick import spread
from octavo import PackedTensor
from test_oracle import (
    ELEMENT,
    MASE_CUDA_DECODE_DEVIATIONS,
    MASE_CUDA_INPUTS,
    ML_DTYPES,
    MX,
    SQNR_DB,
    SQNR_TOLERANCE_DB,
    assert_same,
    from_bfloat16_bits,
    recorded,
    same,
)


def unpacked(packed):
    """Codes as unsigned integers in the layout of the values."""
    return packed.unpack().numpy().astype(np.int64) & (2**packed.format.width - 1)


def without_negative_zero(codes, width):
    return np.where(codes == 2 ** (width - 1), 0, codes)


@pytest.mark.parametrize("text", ocp_mx.ELEMENTS)
def test_mx_codes_scales_and_values_equal_the_ocp_definition(text, simd):
    vectors = ocp_mx.recorded()
    for case in ocp_mx.recorded_cases():
        x, values = vectors[f"inputs.{case}"], vectors[f"{text}.{case}.values"]
        packed = octavo.encode(x, text)
        np.testing.assert_array_equal(packed.scales.numpy().ravel(), vectors[f"{text}.{case}.scales"], err_msg=case)
        codes = vectors[f"{text}.{case}.codes"].astype(np.int64)
        if text != "mxint8":
            codes = without_negative_zero(codes, packed.format.width)
        np.testing.assert_array_equal(unpacked(packed), codes, err_msg=case)
        assert_same(octavo.decode(packed).numpy(), values, case)
        assert_same(octavo.quantize(x, text), values, case)


@pytest.mark.parametrize("name", list(MX))
def test_mx_values_equal_microxcaling_even(name, simd):
    arrays, index = recorded("microxcaling", f"mx_{name}.npz")
    cases = [(key, case) for key, case in index.items() if case["round"] == "even"]
    assert len(cases) == 23
    for key, case in cases:
        x, axis = arrays[case["input"]], case["axis"]
        text = f"{MX[name]}/{case['block_size'] or x.shape[axis]}"
        if case["flush_fp32_subnorms"]:
            x = np.where(np.abs(x).max(-1, keepdims=True) < 2.0**-126, np.float32(0), x)
        assert_same(octavo.quantize(x, text, axis=axis), arrays[key], key)
        assert_same(octavo.decode(octavo.encode(x, text, axis=axis, nonfinite="saturate")).numpy(), arrays[key], key)


def test_elements_equal_microxcaling_even(simd):
    """Elementwise casts, saturating or compared where finite, with subnormals or compared above them."""
    arrays, index = recorded("microxcaling", "elemwise.npz")
    x, compared = arrays["x"], 0
    for key, case in index.items():
        if case.get("round", "nearest") != "even" or case.get("bfloat") == 24:  # 24: e8m15, M is at most 10
            continue
        element, options = case.get("elem_format", ""), {}
        if element in ELEMENT:
            text = ELEMENT[element]
        elif element:  # an MXINT element: blocks of one, at scale 1
            text, options = f"mx{element}/1", {"scales": torch.full((*x.shape, 1), 127, dtype=torch.uint8)}
        elif "bfloat" in case:
            text = f"e8m{case['bfloat'] - 9}"
        else:
            text = f"e{case['exp_bits']}m{case['mantissa_bits']}"
        held = np.abs(x) < np.float32(oracle.F32_MAX)
        if not case.get("saturate_normals", False):
            held &= np.isfinite(arrays[key])
        if not case.get("allow_denorm", True):
            held &= np.abs(x) >= 2.0 ** (1 - oracle.parse(text).bias)
        if "exp_bits" in case:  # its largest exponent stands for inf
            held &= np.abs(x) < 2.0 ** (2 ** case["exp_bits"] - 1 - oracle.parse(text).bias)
        q = octavo.quantize(x, text, **options)
        assert_same(q[held], arrays[key][held], key)
        compared += 1
    assert compared == sum(case.get("round") == "even" and case.get("bfloat") != 24 for case in index.values()) > 0


@pytest.mark.parametrize("name", list(ML_DTYPES))
def test_minifloats_equal_ml_dtypes(name, simd):
    """Codes of all casts that do not overflow, the value of all codes, and saturation beyond the range."""
    arrays, _ = recorded("ml_dtypes", "casts.npz")
    text, different = ML_DTYPES[name]
    fmt = octavo.Format(text)
    table = arrays[name + "_decode"].astype(np.float32)
    finite = np.isfinite(table)
    if not different or different == "code 0x80 is NaN":
        listed = dict(fmt.codes())
        assert {code: table[code] for code in np.flatnonzero(finite) if code != 2 ** (fmt.width - 1)} == listed
    highest = table[finite].max()
    for x, codes in ((arrays["x"], arrays[name + "_code"]), (arrays[name + "_xmid"], arrays[name + "_xmid_code"])):
        codes = codes.astype(np.int64)
        held = np.isfinite(table[codes])
        packed = octavo.encode(x, text, nonfinite="saturate")
        np.testing.assert_array_equal(unpacked(packed)[held], without_negative_zero(codes, fmt.width)[held])
        assert_same(octavo.decode(packed).numpy()[held], table[codes][held], "decode")
        held &= ~np.isnan(x)  # where a type has no NaN, it casts NaN to zero
        assert_same(octavo.quantize(x, text)[held], table[codes][held], "quantize")
        if not different:
            beyond = np.abs(x) > highest
            assert_same(octavo.quantize(x, text)[beyond], np.copysign(highest, x[beyond]), "saturation")


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_every_float16_and_bfloat16_casts_as_ml_dtypes(dtype, simd):
    """All 65,536 inputs of both types, against ml_dtypes itself where it does not overflow."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    text = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}[dtype]
    bits = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    for kind in (torch.float16, torch.bfloat16):
        x = bits.view(kind)
        wide = x.float().numpy()
        with np.errstate(over="ignore", invalid="ignore"):
            cast = wide.astype(getattr(ml_dtypes, dtype)).astype(np.float32)
        held = np.isfinite(cast)
        assert_same(octavo.quantize(x, text).float().numpy()[held], cast[held], str(kind))


def test_e8m0_scales_equal_ml_dtypes():
    """The value of every scale code, as mxint8 reads it with code 64 (1.0); 255 is NaN."""
    arrays, _ = recorded("ml_dtypes", "casts.npz")
    codes, scales = torch.full((256, 1), 64, dtype=torch.uint8), torch.arange(256, dtype=torch.uint8).view(256, 1)
    none = torch.empty(0, dtype=torch.uint8)
    packed = PackedTensor(
        octavo.Format("mxint8/1"), codes, scales, none, torch.empty(0), shape=(256, 1), dtype=torch.float32
    )
    assert_same(octavo.decode(packed).numpy().ravel(), arrays["float8_e8m0fnu_decode"].astype(np.float32))


@pytest.mark.parametrize(
    ("name", "group_size"),
    [(name, size) for name in MASE_CUDA_INPUTS for size in (8, 16, 32, 64) if (name, size) != ("top", 64)],
)
def test_mxint8_codes_equal_mase_cuda(name, group_size, simd):
    """Its input is bfloat16. Deviation: it flushes subnormal inputs to zero, but not for the scales."""
    arrays, _ = recorded("mase_cuda", "mxint8.npz")
    key, text = f"{name}__g{group_size}", f"mxint8/{group_size}"
    x = torch.from_numpy(oracle.to_bfloat16(arrays["x_" + name])).to(torch.bfloat16)
    packed = octavo.encode(x, text)
    np.testing.assert_array_equal(packed.scales.numpy().ravel(), arrays[key + "_scale_u8"].ravel())
    flushed = x.abs() < 2.0**-126
    codes = torch.where(flushed, 0, packed.codes)
    assert name == "zeros_subn" or torch.equal(codes, packed.codes)
    np.testing.assert_array_equal(codes.numpy(), arrays[key + "_mant_i8"].view(np.uint8))
    packed.codes.copy_(codes)
    assert_same(octavo.decode(packed).float().numpy(), from_bfloat16_bits(arrays[key + "_deq_bf16_bits"]))


def test_mxint8_decode_equals_mase_cuda_but_for_named_pairs():
    arrays, _ = recorded("mase_cuda", "mxint8.npz")
    table = from_bfloat16_bits(arrays["dequant_table_bf16_bits"]).ravel()
    scale, code = torch.meshgrid(torch.arange(256), torch.arange(256), indexing="ij")
    parts = [part.reshape(65536, 1).to(torch.uint8) for part in (code, scale)]
    none = torch.empty(0, dtype=torch.uint8)
    packed = PackedTensor(
        octavo.Format("mxint8/1"), *parts, none, torch.empty(0), shape=(65536, 1), dtype=torch.bfloat16
    )
    wrong = ~same(octavo.decode(packed).float().numpy().ravel(), table)
    assert wrong.sum() == sum(MASE_CUDA_DECODE_DEVIATIONS.values())


def test_the_rule_of_mase_cuda_is_reproduced_bit_for_bit():
    from octavo.lab.mase import mxint8_dequantize

    arrays, _ = recorded("mase_cuda", "mxint8.npz")
    codes = torch.arange(256, dtype=torch.uint8).view(torch.int8).repeat(256, 1)
    found = mxint8_dequantize(codes, torch.arange(256, dtype=torch.uint8)[:, None], 256)
    assert np.array_equal(found.view(torch.int16).numpy().view(np.uint16), arrays["dequant_table_bf16_bits"])


@pytest.mark.parametrize("text", spread(SQNR_DB))
def test_error_of_normal_samples_in_blocks_of_32(text):
    """16 million samples: the sampling error is far below the tolerance."""
    generator = torch.Generator().manual_seed(20261121)
    signal = noise = 0.0
    for _ in range(4):
        x = torch.randn(4096, 1024, generator=generator)
        difference = x - octavo.quantize(x, text)
        signal += x.double().square().sum().item()
        noise += difference.double().square().sum().item()
    assert 10 * math.log10(signal / noise) == pytest.approx(SQNR_DB[text], abs=SQNR_TOLERANCE_DB)
