"""Tensors of GGUF files are carried, plain, or decoded where that is asked for; the reason is told."""

import numpy as np
import pytest
import torch
from helpers.gguf_files import gguf
from octavo import ContainerError, FormatError, PackedTensor
from octavo.interchange.ggml_decode import decode
from octavo.interchange.ggml_types import TYPES
from octavo.interchange.gguf import GgufFile
from octavo.interchange.gguf_tensors import load_gguf, read_tensors

KINDS = {kind.name: kind for kind in TYPES.values()}


def blocks(name, rows, per_row, clear=()):
    kind = KINDS[name]
    data = np.random.default_rng(0).integers(0, 256, (rows, per_row, kind.nbytes), np.uint8)
    for at, content in clear:
        data[..., at] = content
    return data.reshape(rows, -1)


def entry(name, kind, data, shape):
    return name, KINDS[kind].number, shape, data.tobytes()


Q8 = blocks("Q8_0", 3, 2, [(1, 0x2C)])
IQ4 = blocks("IQ4_NL", 3, 2, [(1, 0x2C)])
NVFP4 = blocks("NVFP4", 3, 1, [(0, 56), (1, 7), (2, 120), (3, 0)])
FLOATS = np.arange(6, dtype=np.float16)


@pytest.fixture
def file(tmp_path):
    def written(*tensors):
        (tmp_path / "x.gguf").write_bytes(gguf([], tensors))
        return tmp_path / "x.gguf"

    return written


def test_tensors_are_carried_decoded_or_plain(file):
    path = file(
        entry("a.weight", "Q8_0", Q8, (3, 64)), entry("b", "IQ4_NL", IQ4, (3, 64)), entry("c", "F16", FLOATS, (2, 3))
    )
    tensors = load_gguf(path, decode=True)
    assert list(tensors) == ["a.weight", "b", "c"]
    assert isinstance(tensors["a.weight"], PackedTensor) and str(tensors["a.weight"].format) == "int8:g32"
    assert torch.equal(tensors["a.weight"].decode(), decode(torch.from_numpy(Q8), KINDS["Q8_0"]))
    assert torch.equal(tensors["b"], decode(torch.from_numpy(IQ4), KINDS["IQ4_NL"]))
    assert tensors["c"].dtype == torch.float32 and tensors["c"].tolist() == [[0, 1, 2], [3, 4, 5]]
    origins = [origin for _, origin in read_tensors(GgufFile(path), decode=True)]
    assert [(one.name, one.type, one.format, one.reason is None) for one in origins] == [
        ("a.weight", "Q8_0", "int8:g32", True), ("b", "IQ4_NL", None, False), ("c", "F16", None, True)
    ]  # fmt: skip
    assert origins[1].reason == "no format has its code book"
    assert [one.nbytes for one in origins] == [Q8.nbytes, IQ4.nbytes, FLOATS.nbytes]


def test_nothing_is_decoded_unless_that_is_asked_for(file):
    told = "tensor 'b' of IQ4_NL: no format has its code book; decode=True decodes it to float32"
    with pytest.raises(ContainerError, match=told):
        load_gguf(file(entry("b", "IQ4_NL", IQ4, (3, 64))))
    broken = Q8.copy()
    broken[1, 35] = 0x7C  # an infinite scale, if the lower byte is 0
    broken[1, 34] = 0
    with pytest.raises(ContainerError, match=r"tensor 'a' of Q8_0: row 1, block 1: scale inf; decode=True"):
        load_gguf(file(entry("a", "Q8_0", broken, (3, 64))))
    assert load_gguf(file(entry("a", "Q8_0", broken, (3, 64))), decode=True)["a"][1, 32:].isfinite().sum() < 32


def test_the_factor_of_a_tensor_goes_into_it(file):
    factor = entry("x.scale", "F32", np.float32([0.3]), (1,))
    tensors = load_gguf(file(entry("x.weight", "NVFP4", NVFP4, (3, 64)), factor))
    assert list(tensors) == ["x.weight"]
    expected = decode(torch.from_numpy(NVFP4), KINDS["NVFP4"]) * torch.tensor(0.3)
    assert ((tensors["x.weight"].decode() - expected).abs() <= 2.0**-23 * expected.abs()).all()
    broken = NVFP4.copy()
    broken[:, 1] = 0x7F
    decoded = load_gguf(file(entry("x.weight", "NVFP4", broken, (3, 64)), factor), decode=True)["x.weight"]
    assert torch.equal(decoded, decode(torch.from_numpy(broken), KINDS["NVFP4"]) * torch.tensor(0.3))


def test_a_factor_of_another_shape_is_refused(file):
    factor = entry("x.scale", "F32", np.float32([0.3, 0.4]), (2,))
    with pytest.raises(
        ContainerError, match=r"tensor 'x.scale': F32 of shape \[2\]; accepted as the factor of 'x.weig"
    ):
        load_gguf(file(entry("x.weight", "NVFP4", NVFP4, (3, 64)), factor))


def test_types_without_a_definition_are_refused_before_anything_is_read(file):
    other = entry("y", "IQ1_S", np.zeros(50, np.uint8), (1, 256))
    with pytest.raises(FormatError, match=r"tensor 'y': no definition of blocks of IQ1_S; decoded are F32"):
        next(read_tensors(GgufFile(file(entry("a", "Q8_0", Q8, (3, 64)), other)), decode=True))
