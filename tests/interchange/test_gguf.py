"""GGUF files: what is read is what was written, and every damaged file is refused by name or read right."""

import random
import struct
import tracemalloc

import pytest
import torch
from helpers.gguf_files import NUMBERS, gguf, text, value
from hypothesis import given
from hypothesis import strategies as st
from octavo import ContainerError
from octavo.interchange.ggml_types import TYPES
from octavo.interchange.gguf import GgufFile

METADATA = [
    ("general.architecture", "str", "llama"),
    ("a", "u8", 255),
    ("b", "i8", -1),
    ("c", "u16", 65535),
    ("d", "i16", -2),
    ("e", "u32", 7),
    ("f", "i32", -7),
    ("g", "f32", 0.5),
    ("h", "bool", True),
    ("i", "u64", 2**64 - 1),
    ("j", "i64", -(2**63)),
    ("k", "f64", 0.1),
    ("tokens", "str", ["a", "", "ß"]),
    ("scores", "f32", [1.0, -2.0]),
    ("none", "i32", []),
]
TENSORS = [("x", 0, (2, 3), bytes(range(24))), ("y.weight", 8, (2, 64), bytes(range(136))), ("s", 0, (), bytes(4))]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [32, 8, 4096])
def test_what_was_written_is_read(file, version, alignment):
    keys = [*METADATA, ("general.alignment", "u32", alignment)]
    read = GgufFile(file(gguf(keys, TENSORS, version=version, alignment=alignment)))
    assert (read.version, read.alignment) == (version, alignment)
    assert read.metadata == {key: content for key, _, content in keys}
    assert [(entry.name, entry.type.number, entry.shape) for entry in read.tensors.values()] == [
        entry[:3] for entry in TENSORS
    ]
    for name, kind, shape, data in TENSORS:
        rows = read.read(name)
        assert rows.shape == (shape[0] if shape else 1, len(data) // (shape[0] if shape else 1))
        assert rows.numpy().tobytes() == data, (name, kind)
        assert read.tensors[name].offset % alignment == 0


NUMBER = st.sampled_from(sorted(NUMBERS)).flatmap(
    lambda kind: st.tuples(
        st.just(kind), st.binary(min_size=8, max_size=8).map(lambda data: struct.unpack_from(f"<{NUMBERS[kind][1]}", data)[0])
    )
)  # fmt: skip


@given(
    keys=st.dictionaries(
        st.text(min_size=1, max_size=9).filter(lambda name: name.isprintable() and name != "general.alignment"),
        st.one_of(NUMBER, st.tuples(st.just("str"), st.text(st.characters(codec="utf-8")) | st.lists(st.text(max_size=5)))),
        max_size=6,
    ),
    shapes=st.lists(st.lists(st.integers(1, 5), max_size=4), max_size=4),
)  # fmt: skip
def test_every_file_is_read_as_written(tmp_path_factory, keys, shapes):
    metadata = [(key, *content) for key, content in keys.items()]
    tensors = []
    for number, shape in enumerate(shapes):
        count = torch.Size(shape).numel()
        tensors.append((f"t{number}", 24, tuple(shape), bytes(i % 251 for i in range(count))))
    path = tmp_path_factory.getbasetemp() / "property.gguf"
    path.write_bytes(gguf(metadata, tensors))
    read = GgufFile(path)
    assert repr(read.metadata) == repr({key: content for key, _, content in metadata})  # NaN is NaN
    assert {name: read.read(name).numpy().tobytes() for name in read.tensors} == {
        name: data for name, _, _, data in tensors
    }


def test_files_of_gguf_py_are_read(tmp_path):
    """Its writer and its reader agree with ours about every type that it knows."""
    peer = pytest.importorskip("gguf")
    writer = peer.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_uint32("llama.block_count", 3)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    for name, number in peer.GGMLQuantizationType.__members__.items():
        if name == "Q8_1" or number not in TYPES:  # an intermediate of ggml, 36 bytes there and 40 in gguf-py
            continue
        elements, nbytes = peer.GGML_QUANT_SIZES[number]
        assert (TYPES[number].name, TYPES[number].elements, TYPES[number].nbytes) == (name, elements, nbytes)
        data = torch.randint(0, 256, (3, 2 * nbytes), dtype=torch.uint8).numpy()
        writer.add_tensor(name, data, raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    read, other = GgufFile(tmp_path / "x.gguf"), peer.GGUFReader(tmp_path / "x.gguf")
    assert read.metadata == {
        "general.architecture": "llama", "llama.block_count": 3, "tokenizer.ggml.tokens": ["a", "b"]
    }  # fmt: skip
    assert len(read.tensors) == len(other.tensors) > 25
    for entry in other.tensors:
        mine = read.tensors[entry.name]
        assert (mine.offset, mine.nbytes, list(mine.shape)) == (
            entry.data_offset,
            entry.n_bytes,
            list(entry.shape)[::-1],
        )
        assert read.read(entry.name).numpy().tobytes() == entry.data.tobytes()


def head(tensors=0, keys=0, version=3):
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def tensor(name=b"x", dims=(4,), kind=0, offset=0, ndim=None):
    dims = b"".join(struct.pack("<q", size) for size in dims) if not isinstance(dims, bytes) else dims
    return (
        text(name)
        + struct.pack("<I", len(dims) // 8 if ndim is None else ndim)
        + dims
        + struct.pack("<IQ", kind, offset)
    )


KEY = text("k")
HOSTILE = {
    "empty": (b"", "0 bytes; a GGUF file has at least 24"),
    "short": (b"GGUF", "4 bytes"),
    "magic": (b"GGML" + bytes(20), "begins with b'GGML'"),
    "version 1": (head(version=1), "version 1 at byte 4; accepted are 2, 3"),
    "version 4": (head(version=4), "version 4 at byte 4"),
    "big-endian": (b"GGUF" + struct.pack(">I", 3) + bytes(16), "a big-endian file; accepted are little-endian ones"),
    "tensors": (head(tensors=2**64 - 1), "18446744073709551615 tensors: 8 bytes are left"),
    "keys": (head(keys=2**63), "9223372036854775808 keys: 0 bytes are left"),
    "key length": (head(keys=1) + struct.pack("<Q", 2**64 - 1) + bytes(9), "key: 18446744073709551615 bytes"),
    "key empty": (head(keys=1) + text("") + value("u8", 1), "key '': is empty; at byte 24"),
    "key twice": (head(keys=2) + 2 * (KEY + value("u8", 1)), "key 'k': appears twice; at byte 38"),
    "key not UTF-8": (head(keys=1) + text(b"\xff") + value("u8", 1), "key: not UTF-8 at byte 32"),
    "type": (head(keys=1) + KEY + struct.pack("<IQ", 13, 0), "'k': values of type 13"),
    "array of arrays": (head(keys=1) + KEY + struct.pack("<IIQ", 9, 9, 1) + bytes(20), "no arrays in arrays"),
    "array length": (head(keys=1) + KEY + struct.pack("<IIQ", 9, 10, 2**61), "2305843009213693952 elements of 'k'"),
    "array of texts": (head(keys=1) + KEY + struct.pack("<IIQ", 9, 8, 2**40), "1099511627776 elements of 'k'"),
    "boolean": (head(keys=1) + KEY + struct.pack("<IB", 7, 2), "'k': a boolean that is neither 0 nor 1"),
    "alignment 0": (gguf([("general.alignment", "u32", 0)]), "general.alignment is 0; accepted are powers of two"),
    "alignment 3": (gguf([("general.alignment", "u32", 3)]), "general.alignment is 3"),
    "alignment u64": (gguf([("general.alignment", "u64", 32)]), "general.alignment is 32; accepted are powers"),
    "alignment array": (gguf([("general.alignment", "u32", [32])]), "general.alignment is [32]"),
    "name empty": (head(1) + tensor(b"") + bytes(64), "tensor '': a name of 0 bytes"),
    "name long": (head(1) + tensor(b"x" * 64) + bytes(64), "a name of 64 bytes; accepted are 1 to 63"),
    "dimensions": (head(1) + tensor(ndim=5, dims=(1,) * 5) + bytes(64), "tensor 'x': 5 dimensions"),
    "dimensions many": (head(1) + tensor(ndim=2**32 - 1) + bytes(64), "4294967295 dimensions"),
    "dimension 0": (head(1) + tensor(dims=(4, 0)) + bytes(64), "tensor 'x': dimension 1 is 0; accepted are 1 and more; at byte 45"),
    "dimension negative": (head(1) + tensor(dims=(-1,)) + bytes(64), "dimension 0 is -1"),
    "overflow": (head(1) + tensor(dims=(2**62, 2**62, 2**62)) + bytes(64), "shape [4611686018427387904, "),
    "no type": (head(1) + tensor(kind=99) + bytes(64), "tensor 'x': type 99; accepted are those of ggml"),
    "removed type": (head(1) + tensor(kind=4) + bytes(64), "type 4, Q4_2, which ggml no longer has"),
    "row": (head(1) + tensor(dims=(33,), kind=8) + bytes(64), "rows of 33 elements; Q8_0 takes multiples of 32"),
    "scalar of blocks": (head(1) + tensor(dims=(), kind=8) + bytes(64), "rows of 1 elements"),
    "offset": (head(1) + tensor(offset=8) + bytes(64), "offset 8 is no multiple of 32"),
    "offset far": (head(1) + tensor(offset=2**64 - 32) + bytes(64), "offset 18446744073709551584 and 16 bytes of F32"),
    "data": (head(1) + tensor(dims=(100,)) + bytes(64), "400 bytes of F32, shape [100], but the data has"),
    "no data": (head(1) + tensor(dims=(1,)), "but the data has 0 bytes"),
    "twice": (head(2) + tensor() + tensor(offset=32) + bytes(128), "tensor 'x': appears twice"),
    "overlap": (head(2) + tensor() + tensor(b"y") + bytes(128), "tensor 'y': its data overlaps that of 'x' at byte 96"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused_by_name(file, case):
    data, told = HOSTILE[case]
    path = file(data)
    tracemalloc.start()
    try:
        with pytest.raises(ContainerError) as error:
            GgufFile(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert str(error.value).startswith(f"{path}: ") and told in str(error.value), error.value


def test_a_cut_file_is_refused(file):
    whole = gguf(METADATA, TENSORS)
    end = GgufFile(file(whole)).tensors["s"]
    for length in range(end.offset + end.nbytes):
        with pytest.raises(ContainerError):
            GgufFile(file(whole[:length]))


def test_mutated_files_end_well(file):
    """A few bytes of each are changed: a typed error, or tensors that lie in the file."""
    rng, whole, ended = random.Random(0), gguf(METADATA, TENSORS), 0
    header = len(gguf(METADATA, TENSORS)) - 32 - 160 - 32
    tracemalloc.start()
    try:
        for _ in range(1000):
            data = bytearray(whole)
            for _ in range(rng.choice([1, 1, 2, 6])):
                at = rng.randrange(header)
                if rng.random() < 0.7:
                    data[at] = rng.choice([0, 1, 8, 9, 127, 128, 255, rng.randrange(256)])
                else:
                    data[at : at + 8] = struct.pack("<Q", rng.choice([0, 2**31, 2**32, 2**62, 2**63, 2**64 - 1]))
            try:
                read = GgufFile(file(data))
            except ContainerError:
                ended += 1
                continue
            for name, entry in read.tensors.items():
                assert read.read(name).numpy().tobytes() == bytes(data[entry.offset : entry.offset + entry.nbytes])
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert 250 < ended < 1000


def test_folders_and_odd_files_are_refused(tmp_path):
    with pytest.raises(IsADirectoryError):
        GgufFile(tmp_path)
    with pytest.raises(FileNotFoundError):
        GgufFile(tmp_path / "x.gguf")
