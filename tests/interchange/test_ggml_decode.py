"""ggml's blocks decode to the values of their definition and of gguf-py, to the bit, whatever bytes they have."""

import numpy as np
import pytest
import torch
from helpers.ggml_reference import VALUES, decoded
from octavo import DTypeError, FormatError, ShapeError
from octavo.interchange.ggml_decode import DECODERS, decode
from octavo.interchange.ggml_types import TYPES

KINDS = [kind for kind in TYPES.values() if kind.name in DECODERS]
ELEMENTS = 1 << 20


def random_blocks(kind, count, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, kind.nbytes), np.uint8)


def assert_same_bits(mine, theirs):
    """NaN is NaN, whatever its payload."""
    theirs = torch.from_numpy(np.array(theirs))
    same = (mine.view(torch.int32) == theirs.view(torch.int32)) | (mine.isnan() & theirs.isnan())
    assert mine.shape == theirs.shape and bool(same.all()), (~same).sum()


def test_every_type_of_the_list_is_decoded():
    names = "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 IQ4_NL MXFP4 NVFP4 Q2_K Q3_K Q4_K Q5_K Q6_K TQ1_0 TQ2_0 Q1_0 Q2_0"
    assert set(DECODERS) == set(VALUES) == set(names.split(" "))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_values_are_those_of_the_definition(kind):
    blocks = random_blocks(kind, max(2000 // kind.elements, 12))
    assert_same_bits(decode(torch.from_numpy(blocks), kind), decoded(blocks, kind))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_values_are_those_of_gguf_py(kind):
    peer = pytest.importorskip("gguf")
    number = getattr(peer.GGMLQuantizationType, kind.name, None)
    blocks = random_blocks(kind, ELEMENTS // kind.elements, seed=1)
    try:
        with np.errstate(all="ignore"):
            theirs = peer.quants.dequantize(blocks, number).astype(np.float32)
    except (NotImplementedError, AttributeError):
        pytest.skip(f"gguf-py decodes no {kind.name}")
    assert_same_bits(decode(torch.from_numpy(blocks), kind), theirs.reshape(len(blocks), kind.elements))


@pytest.mark.parametrize("name", ["MXFP4", "NVFP4"])
def test_every_scale_code_with_every_element_code(name):
    kind = next(kind for kind in KINDS if kind.name == name)
    blocks = random_blocks(kind, 256)
    head = kind.nbytes - kind.elements // 2
    blocks[:, :head] = np.arange(256)[:, None]
    blocks[:, head:] = (np.arange(kind.elements // 2) % 8 * 2)[None] * 17 + 16  # every code is in a block
    assert_same_bits(decode(torch.from_numpy(blocks), kind), decoded(blocks, kind))


def test_rows_of_many_blocks_keep_their_order():
    kind = next(kind for kind in KINDS if kind.name == "Q6_K")
    rows = torch.from_numpy(random_blocks(kind, 3 * 700)).reshape(3, -1)  # more than a chunk, which no row divides
    whole = decode(rows, kind)
    assert whole.shape == (3, 700 * 256)
    for row, values in zip(rows, whole, strict=True):
        assert_same_bits(decode(row.view(-1, kind.nbytes), kind).view(1, -1), values.view(1, -1).numpy())


def test_data_at_odd_addresses_decodes():
    data = torch.arange(41, dtype=torch.uint8)
    expected = np.frombuffer(data[1:].numpy().tobytes(), np.float32).reshape(2, 5)
    assert_same_bits(decode(data[1:].view(2, 20), TYPES[0]), expected)


@pytest.mark.parametrize("kind", [kind for kind in TYPES.values() if kind.name not in DECODERS], ids=lambda k: k.name)
def test_types_without_a_definition_are_refused_by_name(kind):
    with pytest.raises(FormatError, match=f"no definition of blocks of {kind.name}; decoded are F32, "):
        decode(torch.zeros(1, kind.nbytes, dtype=torch.uint8), kind)


def test_other_data_is_refused():
    with pytest.raises(DTypeError, match=r"Q8_0: data has dtype torch.int8; accepted is uint8"):
        decode(torch.zeros(1, 34, dtype=torch.int8), TYPES[8])
    with pytest.raises(ShapeError, match=r"Q8_0: data has shape \(1, 33\); accepted are rows of blocks of 34 bytes"):
        decode(torch.zeros(1, 33, dtype=torch.uint8), TYPES[8])
