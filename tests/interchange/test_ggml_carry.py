"""ggml's blocks are carried into formats of ours with equal values; what has no equal is told, by row and block."""

import numpy as np
import octavo
import pytest
import torch
from octavo import FormatError, PackedTensor, load, save
from octavo.interchange.ggml_carry import CARRIERS, NOT_HELD, PLAIN, carry
from octavo.interchange.ggml_decode import DECODERS, decode
from octavo.interchange.ggml_types import TYPES
from octavo.nn import PackedLinear

KINDS = {kind.name: kind for kind in TYPES.values()}
ROWS, BLOCKS = 64, 24
SCALES_AT = {
    "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q2_0": [0], "TQ1_0": [52], "TQ2_0": [64],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
}  # fmt: skip
SIGNED = {*SCALES_AT} - {"Q8_0", "TQ1_0", "TQ2_0"}
ULP = 2.0**-23


def random_data(name, seed=0, rows=ROWS, blocks=BLOCKS):
    """Random bytes, without the scales and codes that have no equal."""
    kind, rng = KINDS[name], np.random.default_rng(seed)
    data = torch.from_numpy(rng.integers(0, 256, (rows, blocks, kind.nbytes), np.uint8))
    for at in SCALES_AT.get(name, []):
        scales = torch.from_numpy(rng.integers(0, 0x7C00, (rows, blocks), np.uint16).view(np.int16))
        if name in SIGNED:
            scales |= torch.from_numpy(rng.integers(0, 2, (rows, blocks), np.int16) << 15)
        data[..., at : at + 2] = scales.unsqueeze(2).view(torch.uint8)
    if name == "TQ2_0":
        low = data[..., :64]
        data[..., :64] = low & ~(low & (low >> 1) & 0x55)  # the lower bit of codes of 3 goes
    if name == "MXFP4":
        data[..., 0] %= 253
    if name == "NVFP4":
        data[..., :4] %= 127
    return data.reshape(rows, -1)


def shape_of(name, data):
    return len(data), data.shape[1] // KINDS[name].nbytes * KINDS[name].elements


@pytest.mark.parametrize("name", CARRIERS)
def test_values_are_those_of_the_blocks(name, tmp_path):
    data = random_data(name)
    packed = carry(data, KINDS[name], shape_of(name, data))
    assert isinstance(packed, PackedTensor), packed
    assert str(packed.format) == CARRIERS[name][0].format and packed.shape == shape_of(name, data)
    assert torch.equal(packed.decode(), decode(data, KINDS[name]))  # zeros of either sign are equal
    save({"x": packed}, tmp_path / "x.safetensors")
    assert load(tmp_path / "x.safetensors")["x"] == packed


@pytest.mark.parametrize(
    ("name", "at", "content", "text"),
    [
        ("Q8_0", 0, [0, 0xBC], "int8:g32,full"),
        ("TQ1_0", 52, [0, 0xBC], "int2:g256,full"),
        ("TQ2_0", 64, [0, 0xBC], "int2:g256,full"),
        ("TQ2_0", 5, [0x30], "int2:g256,full"),
    ],
)  # fmt: skip
def test_a_negative_scale_and_code_3_take_the_format_that_has_them(name, at, content, text):
    data = put(name, at, content)
    packed = carry(data, KINDS[name], shape_of(name, data))
    assert str(packed.format) == text and torch.equal(packed.decode(), decode(data, KINDS[name]))


@pytest.mark.parametrize("name", CARRIERS)
def test_dimensions_before_rows_stay(name):
    data, kind = random_data(name, rows=6), KINDS[name]
    whole, deep = carry(data, kind, shape_of(name, data)), carry(data, kind, (2, 3, shape_of(name, data)[1]))
    assert torch.equal(deep.decode(), whole.decode().view(deep.shape))
    row = carry(data[:1], kind, shape_of(name, data)[1:])
    assert torch.equal(row.decode(), whole.decode()[0])


@pytest.mark.parametrize("name", CARRIERS)
def test_more_rows_than_a_chunk_are_carried(name):
    kind = KINDS[name]
    data = random_data(name, rows=1, blocks=2).expand((1 << 18) // kind.elements // 2 + 5, -1).clone()
    data[-1] = random_data(name, seed=1, rows=1, blocks=2)
    assert torch.equal(carry(data, kind, shape_of(name, data)).decode(), decode(data, kind))


@pytest.mark.parametrize("name", CARRIERS)
def test_a_packed_layer_multiplies_the_carried_codes(name):
    """Its product is that of the decoded weight, up to the order of sums."""
    data = random_data(name, blocks=1 if KINDS[name].elements == 256 else 4)
    for at in SCALES_AT.get(name, []):  # near one
        data.view(ROWS, -1, KINDS[name].nbytes)[..., at + 1] &= 0x83
        data.view(ROWS, -1, KINDS[name].nbytes)[..., at + 1] |= 0x38
    if name == "MXFP4":
        data.view(ROWS, -1, 17)[..., 0] = 120 + data.view(ROWS, -1, 17)[..., 0] % 8
    packed = carry(data, KINDS[name], shape_of(name, data))
    x = torch.randn(3, packed.shape[1], generator=torch.Generator().manual_seed(0))
    dense = packed.decode().double()
    error = (PackedLinear(packed)(x).double() - x.double() @ dense.T).abs()
    sizes = dense.abs()
    if packed.format.core.has_offsets:  # codes of 0 stand for the offset
        zero = PackedTensor(
            packed.format, torch.zeros_like(packed.codes), *packed.parts[1:], shape=packed.shape, dtype=packed.dtype
        )
        offsets = zero.decode().double()
        sizes = (dense - offsets).abs() + offsets.abs()
    assert (error <= packed.shape[1] * ULP * (x.double().abs() @ sizes.T)).all()


def test_a_factor_of_a_tensor_is_its_level():
    """FORMATS.md multiplies it into the scale of a block: one rounding more than ggml's, of one unit."""
    data = random_data("NVFP4")
    packed = carry(data, KINDS["NVFP4"], shape_of("NVFP4", data), 0.37)
    assert packed.levels.item() == pytest.approx(0.37, rel=1e-7)
    expected = decode(data, KINDS["NVFP4"]) * torch.tensor(0.37)
    assert ((packed.decode() - expected).abs() <= ULP * expected.abs()).all()


def put(name, at, content, row=2, block=1):
    data = random_data(name)
    data.view(ROWS, BLOCKS, -1)[row, block, at : at + len(content)] = torch.tensor(content, dtype=torch.uint8)
    return data


@pytest.mark.parametrize(
    ("name", "at", "content", "told"),
    [
        *((name, at, [0, 0x7C], "scale inf") for name, places in SCALES_AT.items() for at in places),
        *((name, at, [1, 0x7E], "scale nan") for name, places in SCALES_AT.items() for at in places),
        ("MXFP4", 0, [253], "scale code 253; up to 252 both mean the same"),
        ("MXFP4", 0, [255], "scale code 255"),
        ("NVFP4", 2, [0x7F], "up to 126 both mean the same"),
        ("NVFP4", 0, [0x80], "scale codes [128, "),
    ],
)  # fmt: skip
def test_what_has_no_equal_is_told(name, at, content, told):
    data = put(name, at, content)
    reason = carry(data, KINDS[name], shape_of(name, data))
    assert isinstance(reason, str) and reason.startswith("row 2, block 1: ") and told in reason


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_factors_without_a_level_are_told(factor):
    data = random_data("NVFP4")
    told = carry(data, KINDS["NVFP4"], shape_of("NVFP4", data), factor)
    assert told == f"factor of the tensor is {factor}; accepted are finite numbers above 0"


def test_every_type_is_plain_carried_or_told_why_not():
    assert set(DECODERS) == {*PLAIN, *CARRIERS, *NOT_HELD}
    for name, reason in NOT_HELD.items():
        assert carry(torch.zeros(1, KINDS[name].nbytes, dtype=torch.uint8), KINDS[name], (1, 1)) == reason


@pytest.mark.parametrize("name", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_nothing_is_encoded_in_a_k_quant(name):
    text = name.lower()
    instead = octavo.Format(text).core.instead
    with pytest.raises(FormatError, match=f"'{text}' holds blocks of GGUF files .* Use '{instead}' instead"):
        octavo.quantize(torch.zeros(2, 256), text)
    with pytest.raises(FormatError, match=f"nothing is quantized to it: take '{instead}'"):
        octavo.quantize_model(torch.nn.Sequential(torch.nn.Linear(256, 4)), text)
    octavo.quantize_model(torch.nn.Sequential(torch.nn.Linear(256, 4)), instead)


def test_signs_of_zero_scales_are_kept():
    """ggml stores -0 for blocks of zeros in Q4_0; they decode to 0."""
    data = put("Q4_0", 0, [0, 0x80])
    packed = carry(data, KINDS["Q4_0"], shape_of("Q4_0", data))
    assert packed.scales[2, 1] == 0 and packed.scales[2, 1].signbit()
    assert not packed.decode()[2, 32:64].signbit().any()
