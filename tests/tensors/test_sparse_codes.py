"""Sparse codes: the same tensor in fewer bytes, exact there and back, and damage is refused by name."""

import copy
import json
import pickle
import struct

import octavo
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from octavo import ContainerError, DTypeError, FormatError, PackedTensor, ShapeError
from octavo.tensors import container, sparse_codes

TAKEN = [str(fmt) for fmt in octavo.formats() if sparse_codes.takes(fmt.core)]
OTHERS = ["nf4", "nf3", "uint8:g32", "uint4:g32", "binary", "int12", "fp16"]
shares = st.sampled_from([0.0, 0.1, 0.5, 0.75, 0.97, 1.0])


def weight(shape, zeros, seed=0):
    """Normal values, a share of which is 0."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    return torch.where(torch.rand(shape, generator=generator) < zeros, 0.0, x)


def raw(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def reference(packed):
    """The parts of sparse codes by the words of FORMATS.md: element by element."""
    width, codes = packed.format.width, packed.unpack()
    if not codes.numel():
        return b"", [], 0
    columns = codes.shape[-1] if codes.ndim else 1
    codes = codes.reshape(-1, columns)
    panels, quads = -(-codes.shape[0] // 16), -(-columns // 4)
    words, bits, count = [], 0, 0
    for panel in range(panels):
        for quad in range(quads):
            word = 0
            for place in range(64):
                row, column = 16 * panel + place // 4, 4 * quad + place % 4
                if row < codes.shape[0] and column < columns and codes[row, column]:
                    word |= 1 << place
                    bits |= (int(codes[row, column]) & (2**width - 1)) << (width * count)
                    count += 1
            words.append(word)
    return bits.to_bytes((count * width + 7) // 8, "little"), words, count


# --- there and back ---------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    st.sampled_from(TAKEN), st.lists(st.integers(0, 37), min_size=1, max_size=3), shares, st.integers(0, 2),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)  # fmt: skip
def test_sparse_codes_are_the_dense_ones(text, shape, zeros, axis, dtype):
    dense = octavo.encode(weight(shape, zeros).to(dtype), text, axis=axis % len(shape))
    sparse = dense.to_sparse()
    assert sparse.is_sparse and not dense.is_sparse and sparse == dense and dense == sparse
    assert torch.equal(raw(sparse.decode()), raw(dense.decode()))
    assert torch.equal(sparse.codes, dense.codes) and torch.equal(sparse.unpack(), dense.unpack())
    assert sparse.to_dense().parts[0].equal(dense.codes) and not sparse.to_dense().is_sparse
    assert sparse.dense_nbytes == dense.nbytes == dense.dense_nbytes
    assert sparse.zeros_share == pytest.approx(float((dense.unpack() == 0).sum()) / max(dense.numel(), 1))
    if shape[0] and dense.axis != 0:
        assert sparse[0] == dense[0] and not sparse[:2].is_sparse


@pytest.mark.parametrize("text", ["int8:g32", "mxfp6e2m3", "mxfp4", "int5", "ternary:channel", "nvfp4"])
@pytest.mark.parametrize("shape", [(18, 7), (3, 33), (1, 1), (2, 0), (16, 8)])
def test_parts_are_those_of_the_specification(text, shape):
    dense = octavo.encode(weight(shape, 0.6), text)
    sparse = dense.to_sparse()
    codes, words, count = reference(dense)
    assert sparse.sparse.nonzero == count
    assert raw(sparse.sparse.codes).numpy().tobytes() == codes
    assert sparse.sparse.bitmap.numpy().tobytes() == b"".join(struct.pack("<Q", word) for word in words)
    assert sparse.nbytes == len(codes) + 8 * len(words) + dense.nbytes - dense.codes.nbytes


def test_a_scalar_has_sparse_codes():
    for value in (0.0, 1.0):
        dense = octavo.encode(torch.tensor(value), "int8:tensor")
        assert dense.to_sparse() == dense and dense.to_sparse().decode() == dense.decode()


def test_codes_of_negative_zero_stay():
    """They are no code 0, and decode to -0."""
    dense = octavo.encode(torch.zeros(2, 32), "mxfp8e4m3")
    dense.codes[0, 3] = 0x80
    sparse = dense.to_sparse()
    assert sparse.sparse.nonzero == 1 and torch.signbit(sparse.decode()).sum() == 1


@pytest.mark.parametrize("text", OTHERS)
def test_formats_without_a_code_to_leave_out_are_refused(text):
    dense = octavo.encode(weight((4, 64), 0.5), text)
    with pytest.raises(
        FormatError, match=f"'{dense.format}' has no sparse codes; accepted are formats of up to 8 bits"
    ):
        dense.to_sparse()
    assert dense.to_sparse(if_smaller=True) is dense


def test_codes_are_sparse_where_that_is_smaller():
    for zeros, smaller in [(0.0, False), (0.08, False), (0.2, True), (0.9, True)]:
        dense = octavo.encode(weight((64, 256), zeros), "int8:channel")
        packed = dense.to_sparse(if_smaller=True)
        assert packed.is_sparse == smaller and (packed.nbytes < dense.nbytes) == smaller


def test_sparse_tensors_copy_pickle_and_show_themselves():
    sparse = octavo.encode(weight((33, 100), 0.5), "mxint8").to_sparse()
    for other in (copy.deepcopy(sparse), pickle.loads(pickle.dumps(sparse)), copy.copy(sparse)):
        assert other == sparse and other.is_sparse and other.nbytes == sparse.nbytes
    assert f"nbytes={sparse.nbytes}" in repr(sparse) and "zeros=" in repr(sparse)
    half = sparse.to(dtype=torch.bfloat16)
    assert half.is_sparse and half.dtype == torch.bfloat16 and torch.equal(half.decode(), sparse.decode().bfloat16())
    assert sparse.to_sparse() is sparse and sparse.bits_per_element < 8.25


def test_no_other_function_reads_sparse_codes_wrongly():
    sparse = octavo.encode(weight((16, 64), 0.5), "int8:g32").to_sparse()
    x = weight((3, 64), 0.0)
    from octavo.ops.linear import integer_linear, packed_linear, rounded_linear

    dense = sparse.to_dense()
    assert torch.equal(packed_linear(x, sparse), packed_linear(x, dense))
    assert torch.equal(rounded_linear(x, sparse, "int8:g32"), rounded_linear(x, dense, "int8:g32"))
    assert torch.equal(integer_linear(x, sparse, "int8:g32"), integer_linear(x, dense, "int8:g32"))
    with pytest.raises(ShapeError, match="with sparse codes, whose number is fixed; to_dense"):
        octavo.encode(weight((16, 64), 0.5), "int8:g32", out=sparse)
    with pytest.raises(DTypeError, match="takes no PackedTensor"):
        torch.nn.functional.linear(x, sparse)


# --- files ------------------------------------------------------------------------------------------------------------


def header(path):
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    return json.loads(data[8 : 8 + length])


def refusal_before_sparse_codes(head):
    """What readers of version 1 say of a file, as they were released: a rule and a text that never change."""
    found = head["__metadata__"]["octavo.version"]
    if found == "1":
        return None
    return f"octavo.version is '{found}'; this version of octavo reads '1'; a newer octavo reads this file"


@settings(max_examples=25)
@given(st.sampled_from(TAKEN), st.lists(st.integers(0, 37), min_size=1, max_size=3), shares)
def test_files_hold_sparse_codes(text, shape, zeros):
    sparse = octavo.encode(weight(shape, zeros), text).to_sparse()
    data = container.dumps({"w": sparse, "b": torch.ones(3)})
    loaded = container.loads(data)["w"]
    assert loaded.is_sparse and loaded == sparse and torch.equal(raw(loaded.decode()), raw(sparse.decode()))
    assert container.dumps({"w": loaded, "b": torch.ones(3)}) == data


@pytest.mark.parametrize("mmap", [False, True])
def test_bits_are_bytes_in_the_file(tmp_path, mmap):
    path = tmp_path / "x.safetensors"
    sparse = octavo.encode(weight((100, 300), 0.7), "int6:g32").to_sparse()
    container.save({"w": sparse}, path)
    (entry,) = container.inspect(path)
    assert entry.nbytes == sparse.nbytes and entry.nonzero == sparse.sparse.nonzero
    assert entry.zeros == sparse.zeros_share and entry.dense_nbytes == sparse.dense_nbytes
    assert entry.bits_per_element == sparse.bits_per_element
    parts = {name: info["data_offsets"] for name, info in header(path).items() if name != "__metadata__"}
    assert set(parts) == {"w.codes", "w.scales", "w.bitmap"}
    assert sum(end - begin for begin, end in parts.values()) == sparse.nbytes
    assert container.load(path, mmap=mmap)["w"] == sparse


def test_older_readers_refuse_sparse_files_by_name_and_read_dense_ones(tmp_path):
    path = tmp_path / "x.safetensors"
    dense = octavo.encode(weight((16, 64), 0.5), "mxint8")
    container.save({"w": dense, "w.bitmap": torch.zeros(2)}, path)  # the name was free, and is
    assert refusal_before_sparse_codes(header(path)) is None
    assert header(path)["__metadata__"]["octavo.version"] == "1"
    assert container.load(path)["w"] == dense and container.load(path)["w.bitmap"].shape == (2,)
    container.save({"w": dense.to_sparse()}, path)
    told = refusal_before_sparse_codes(header(path))
    assert told == "octavo.version is '2'; this version of octavo reads '1'; a newer octavo reads this file"
    with pytest.raises(ContainerError, match=r"stored as 'w\.bitmap'"):
        container.save({"w": dense.to_sparse(), "w.bitmap": torch.zeros(2)}, path)


def test_damaged_sparse_codes_are_refused_by_name(tmp_path):
    path = tmp_path / "x.safetensors"
    sparse = octavo.encode(weight((18, 33), 0.5), "int8:channel").to_sparse()
    container.save({"w": sparse}, path)
    data, head = bytearray(path.read_bytes()), header(path)
    start = len(data) - max(info["data_offsets"][1] for name, info in head.items() if name != "__metadata__")
    begin, end = (start + at for at in head["w.bitmap"]["data_offsets"])
    for at, bit in [(begin, 1), (end - 1, 0x80), (begin + 8 * 8, 0x10)]:
        damaged = bytearray(data)
        damaged[at] ^= bit
        path.write_bytes(damaged)
        for read in (container.load, lambda path: container.load(path, mmap=True)):
            with pytest.raises(ContainerError, match=r"x\.safetensors: w: sparse codes: the bitmap"):
                read(path)
        with pytest.raises(ContainerError, match="w: sparse codes: the bitmap"):
            container.loads(bytes(damaged))


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=9))
def test_changed_bytes_are_refused_or_decode(at, written):
    data = bytearray(container.dumps({"w": octavo.encode(weight((17, 34), 0.5), "int6:g32").to_sparse()}))
    at %= len(data)
    data[at : at + len(written)] = written
    try:
        loaded = container.loads(bytes(data))
    except (ContainerError, DTypeError):
        return
    for tensor in loaded.values():
        if isinstance(tensor, PackedTensor):
            tensor.decode()


def test_parts_changed_in_memory_are_an_error_or_other_values():
    """Their sizes were checked, their bytes may be written: no reader goes past the end."""
    sparse = octavo.encode(weight((40, 600), 0.5), "int8:g32").to_sparse()
    sparse.sparse.bitmap.fill_(-1)
    with pytest.raises(ShapeError, match="has 9600 codes from"):
        sparse.decode()
    from octavo.ops.sparse import multiply

    none = torch.empty(0)
    with pytest.raises(ShapeError, match="has 9600 codes from"):
        multiply(weight((1, 600), 0), sparse.sparse, sparse.scales, none, none, None, "int8:g32", 40, 600)
