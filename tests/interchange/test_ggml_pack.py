"""Packing is the inverse of carrying: random blocks of every type come back byte for byte, other formats with equal values."""

import octavo
import pytest
import torch
from interchange.test_ggml_carry import KINDS, random_data, shape_of
from octavo import Format, PackedTensor, encode
from octavo.interchange.ggml_carry import CARRIERS, carry
from octavo.interchange.ggml_decode import codes5, decode, nibbles, pairs, ternary_digits, two_bits
from octavo.interchange.ggml_pack import (
    PACKERS,
    blocks_of,
    check_format,
    float_bytes,
    holds,
    join_fives,
    join_nibbles,
    join_pairs,
    join_ternary,
    join_two_bits,
    smallest_float,
    type_for,
)
from octavo.interchange.packed_rows import NoTypeError

# Formats, and the type that holds a random tensor of 4 x 512 elements.
HELD = {
    "int8:g32": "Q8_0", "int8:g64": "Q8_0", "int6:g32": "Q8_0", "int5:g32": "Q5_0", "int4:g32": "Q4_0",
    "int4:g64": "Q4_0", "int4:g128": "Q4_0", "int3:g32": "Q4_0", "int2:g256": "TQ2_0", "int2:g32": "Q4_0",
    "int4:g96": "Q4_0", "uint4:g32": "Q8_0", "uint7:g64": "Q8_0", "uint2:g32": "Q8_0", "mxint8": "Q8_0",
    "mxint4": "Q4_0", "mxint5": "Q5_0", "mxint8/64": "Q8_0", "bfp8/32": "Q8_0", "bfp4/32": "Q4_0", "fixed8.5": "Q8_0",
    "fixed4.2": "Q4_0", "fixed8": "Q8_0", "fixed8:channel": "Q8_0", "ufixed7.4": "Q8_0", "ternary:unit": "TQ2_0",
    "int4:g32,full": "Q4_0", "int5:g64,full": "Q5_0", "int8:g32,full": "Q8_0", "int3:g32,full": "Q4_0",
    "int2:g64,full": "Q2_0", "int2:g256,full": "TQ2_0", "int2:g32,full": "Q4_0", "uint4:g32,offset": "Q4_1",
    "uint5:g32,offset": "Q5_1", "uint3:g64,offset": "Q4_1", "binary:unit": "Q4_0", "mxfp4": "MXFP4", "nvfp4": "NVFP4",
}  # fmt: skip


def canonical(name, data):
    """Random blocks as encoders write them: bytes of TQ1_0 are digits, and zeros of Q8_0 and the like have no sign."""
    if name == "TQ1_0":
        blocks = data.reshape(-1, 54)
        blocks[:, :52] = join_ternary(ternary_digits(blocks))
    return data


def packed_again(packed, kind):
    return torch.cat(list(blocks_of(packed, kind)))


@pytest.mark.parametrize("name", CARRIERS)
def test_blocks_that_were_carried_come_back(name):
    data = canonical(name, random_data(name))
    packed = carry(data, KINDS[name], shape_of(name, data))
    assert type_for(packed, name) == KINDS[name]
    assert torch.equal(packed_again(packed, KINDS[name]), data)
    if name != "TQ1_0":  # has the format of TQ2_0, which is written where nothing tells
        assert type_for(packed) == KINDS[name]
    deep = carry(data, KINDS[name], (2, len(data) // 2, packed.shape[1]))
    assert torch.equal(packed_again(deep, KINDS[name]), data)


@pytest.mark.parametrize("name", CARRIERS)
def test_more_rows_than_a_chunk_come_back(name):
    kind = KINDS[name]
    data = canonical(name, random_data(name, rows=1, blocks=2)).expand((1 << 18) // kind.elements // 2 + 5, -1).clone()
    assert torch.equal(packed_again(carry(data, kind, shape_of(name, data)), kind), data)


def test_codes_are_joined_as_they_are_taken_apart():
    generator = torch.Generator().manual_seed(0)

    def codes(most, *shape):
        return torch.randint(0, most, shape, dtype=torch.uint8, generator=generator)

    four, two, five, three = codes(16, 50, 32), codes(4, 50, 256), codes(32, 50, 32), codes(3, 50, 256)
    assert torch.equal(nibbles(join_nibbles(four)), four)
    assert torch.equal(pairs(join_pairs(two.view(50, 4, 64))), two.view(50, 4, 64))
    assert torch.equal(codes5(*join_fives(five)), five)
    assert torch.equal(two_bits(join_two_bits(two)), two)
    assert torch.equal(ternary_digits(join_ternary(three)), three)


def sample(rows=4, columns=512):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("text", HELD)
def test_formats_are_held_with_equal_values(text):
    x = sample().abs() if text.startswith("ufixed") else sample()
    packed = encode(x, text)
    check_format(packed.format, 512)
    kind = type_for(packed)
    assert kind.name == HELD[text]
    if text == "nvfp4":  # its factor of the tensor stands apart
        packed = PackedTensor(packed.format, *packed.parts[:3], torch.ones(1), shape=packed.shape, dtype=packed.dtype)
    assert torch.equal(decode(packed_again(packed, kind), kind), packed.decode())


@pytest.mark.parametrize("text", ["int8:g32", "int4:g32", "mxint8"])
def test_all_codes_and_signs_are_held(text):
    """Also those that no encoder writes: the lowest code, and sparse codes."""
    fmt = Format(text)
    codes = torch.arange(256, dtype=torch.uint8).repeat(4).view(2, -1)[:, : 512 * fmt.width // 8]
    scales = encode(sample(2, 512), text).scales
    packed = PackedTensor(fmt, codes.contiguous(), scales, torch.empty(0, dtype=torch.uint8), torch.empty(0), shape=(2, 512), dtype=torch.float32)  # fmt: skip
    kind = type_for(packed)
    assert torch.equal(decode(packed_again(packed, kind), kind), packed.decode())
    sparse = packed.to_sparse()
    assert torch.equal(packed_again(sparse, kind), packed_again(packed, kind))


def with_scale(text, value, columns=512):
    packed = encode(sample(columns=columns), text)
    scales = packed.scales.clone()
    scales.view(-1)[-1] = value
    return PackedTensor(packed.format, packed.codes, scales, packed.zeros, packed.levels, shape=packed.shape, dtype=packed.dtype)  # fmt: skip


@pytest.mark.parametrize(
    ("packed", "told"),
    [
        (lambda: encode(sample(columns=48), "int8:g32"), "48 columns; Q8_0 has blocks of 32"),
        (lambda: encode(sample(columns=96), "nvfp4"), "96 columns; NVFP4 has blocks of 64"),
        (lambda: encode(sample(), "int8:g48"), "scales for each 48 elements; Q8_0 has one for 32"),
        (lambda: encode(sample(), "mxint8/16"), "scales for each 16 elements; Q8_0 has one for 32"),
        (lambda: encode(sample(), "int8:channel"), "row 0, group 0: scale 0.0"),
        (lambda: encode(sample(), "int8"), "row 0, group 0: scale 0.0"),
        (lambda: with_scale("int8:g32", float("inf")), "row 3, group 15: scale inf is no finite float16"),
        (lambda: with_scale("mxint8", 100), "row 3, group 15: scale 2^-33 is no float16"),
        (lambda: with_scale("mxint8", 255), "row 3, group 15: scale code 255, which is NaN"),
        (lambda: with_scale("bfp8/32", 160), "row 3, group 15: scale 2^26 is no float16"),
        (lambda: with_scale("mxfp4", 253), "row 3, group 15: scale code 253; up to 252 both mean the same"),
        (lambda: with_scale("nvfp4", 0x7F), "row 3, group 31: scale code 127; up to 126 both mean the same"),
        (lambda: encode(sample(), "fixed8.30"), "row 0, group 0: scale 2^-30 is no float16"),
        (lambda: encode(sample(), "nf4"), "no type of ggml holds 'nf4'"),
        (lambda: encode(sample(), "uint8:g32"), "no type of ggml holds 'uint8:g32'"),
        (lambda: encode(sample(), "int9:g32"), "no type of ggml holds 'int9:g32'"),
        (lambda: encode(sample(), "uint6:g32,offset"), "no type of ggml holds 'uint6:g32,offset'"),
        (lambda: with_scale("uint4:g32,offset", float("nan")), "row 3, group 15: scale and offset ["),
        (lambda: encode(sample(), "mxfp8e4m3"), "no type of ggml holds 'mxfp8e4m3'"),
        (lambda: encode(sample(), "binary2"), "no type of ggml holds 'binary2'"),
        (lambda: encode(sample(512), "int8:g32", axis=0), "packed along dimension 0; blocks run along the last"),
    ],
)  # fmt: skip
def test_what_no_type_holds_is_told(packed, told):
    with pytest.raises(NoTypeError) as error:
        type_for(packed())
    assert str(error.value).startswith(told)


@pytest.mark.parametrize("text", ["mxint8", "bfp4/32", "mxint8/64", "int8:channel", "fixed8:channel"])
def test_groups_of_zeros_need_no_scale(text):
    """Such as those of padding tokens, whose scale code is the lowest."""
    x = torch.zeros(4, 96)
    x[1:, :64] = torch.randint(-8, 8, (3, 64), generator=torch.Generator().manual_seed(0))
    packed = encode(x, text)
    if text == "int8:channel":
        scales = torch.tensor([[1e9], [1.0], [2.0], [0.5]])
        packed = PackedTensor(packed.format, packed.codes, scales, packed.zeros, packed.levels, shape=packed.shape, dtype=packed.dtype)  # fmt: skip
    kind = type_for(packed)
    assert torch.equal(decode(packed_again(packed, kind), kind), packed.decode())


def test_code_minus_two_is_no_ternary_one():
    packed = encode(sample(), "int2:g256")
    codes = packed.codes.clone()
    codes[1, 3] = 2
    packed = PackedTensor(packed.format, codes, packed.scales, packed.zeros, packed.levels, shape=packed.shape, dtype=packed.dtype)  # fmt: skip
    kind = type_for(packed)
    assert kind.name == "Q4_0" and torch.equal(decode(packed_again(packed, kind), kind), packed.decode())


@pytest.mark.parametrize("fmt", octavo.formats(), ids=str)
def test_every_format_is_held_or_refused(fmt):
    """Nothing else happens, and what is held has equal values."""
    packed = encode(sample().abs() if str(fmt).startswith("ufixed") else sample(), fmt)
    try:
        kind = type_for(packed)
    except NoTypeError:
        return
    factor = packed.levels.item() if packed.levels.numel() else 1
    values = decode(packed_again(packed, kind), kind) * factor
    assert ((values - packed.decode()).abs() <= (0 if factor == 1 else 2.0**-23) * values.abs()).all()


def test_every_carried_type_has_a_packer():
    assert {packer.type for packer in PACKERS} == set(CARRIERS)


def test_floats_are_the_smallest_that_hold_the_values():
    half, brain, single = torch.tensor([65504.0, 2.0**-24]), torch.tensor([2.0**100]), torch.tensor([0.1])
    assert [smallest_float(one) for one in (half, brain, single)] == ["F16", "BF16", "F32"]
    assert smallest_float(torch.tensor([-0.0, float("inf")])) == "F16"
    assert holds(half.half(), "F32") and not holds(single, "BF16")
    for values in (half, brain, single):
        kind = KINDS[smallest_float(values)]
        assert torch.equal(decode(float_bytes(values, kind.name).flatten()[None], kind)[0], values)
